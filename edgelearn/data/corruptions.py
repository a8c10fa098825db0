"""A changed world: corrupted pictures, pictures at night and in rain, recordings in noise and reverberation.

Fifteen kinds in five strengths are those of Hendrycks and Dietterich 2019 ("Benchmarking neural network robustness to
common corruptions and perturbations"), drawn by the package `imagecorruptions`. They are like CIFAR-10-C's, but not
equal to them: the package draws for pictures of 224 pixels, so smaller ones are enlarged for it, and reduced again.
`DRAWN` needs no package.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image

from edgelearn.errors import DataError

from . import RATE
from .draws import in_room, mix, stretch, synthetic_noises

KINDS = (
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "snow",
    "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip
WORKING_SIZE = 128  # pixels that smaller pictures are enlarged to: noise then is as strong as CIFAR-10-C's
# Pixelation at 5 keeps a quarter of the pixels of a side: of 32 that were enlarged to 128, all.
WORKING_SIZES = {"pixelate": 64}


def corrupt(pictures: np.ndarray, kind: str, severity: int = 5, seed: int = 0, first: int = 0) -> np.ndarray:
    """Corrupt pictures, uint8 (n, height, width, 3), each by a draw of its own, which depends on `seed`, `kind` and the
    picture's number.

    Arguments:
    - `kind`: one of KINDS, which need `pip install 'edgelearn[corruptions]'`, or of DRAWN.
    - `severity`: 1 to 5 (default 5).
    - `seed`: of the draws (default 0).
    - `first`: number of the first picture, where these are a part of others (default 0).

    Raises DataError for an unknown kind or severity, for pictures of another type, or if the package is missing.
    """
    pictures = np.asarray(pictures)
    if pictures.dtype != np.uint8 or pictures.ndim != 4 or pictures.shape[-1] != 3:
        raise DataError(
            f"Corruptions are of pictures (n, height, width, 3) in uint8, not {pictures.shape} in {pictures.dtype}."
        )
    if severity not in range(1, 6):
        raise DataError(f"The severity of a corruption is 1 to 5, not {severity!r}.")
    if kind in DRAWN:
        draw = DRAWN[kind]
        rows = [
            draw(picture / np.float32(255), severity, np.random.default_rng([seed, *kind.encode(), i]))
            for i, picture in enumerate(pictures, first)
        ]
        return np.round(255 * np.clip(rows, 0, 1)).astype(np.uint8).reshape(pictures.shape)
    if kind not in KINDS:
        raise DataError(f"There is no corruption '{kind}': there are {', '.join((*DRAWN, *KINDS))}.")
    package = _imagecorruptions()
    with _drawn_by(seed, kind) as start:
        rows = []
        for i, picture in enumerate(pictures, first):
            start(i)
            rows.append(_enlarged(package.corrupt, picture, kind, severity))
    return np.stack(rows) if rows else pictures


def _enlarged(corrupted: Callable[..., Any], picture: np.ndarray, kind: str, severity: int) -> np.ndarray:
    height, width, _ = picture.shape
    times = max(1, -(-WORKING_SIZES.get(kind, WORKING_SIZE) // min(height, width)))
    image = Image.fromarray(picture).resize((times * width, times * height), Image.Resampling.BICUBIC)
    found = np.asarray(corrupted(np.asarray(image), severity=severity, corruption_name=kind))
    image = Image.fromarray(np.clip(found, 0, 255).astype(np.uint8))
    return np.asarray(image.resize((width, height), Image.Resampling.BOX))


@contextmanager
def _drawn_by(seed: int, kind: str) -> Iterator[Callable[[int], None]]:
    """Give a function that starts the draws of a picture by its number. The package draws from NumPy's global
    generator, which goes on afterwards as if nothing had been drawn."""
    before = np.random.get_state()  # noqa: NPY002
    try:
        yield lambda i: np.random.seed(np.random.SeedSequence([seed, *kind.encode(), i]).generate_state(4))  # noqa: NPY002
    finally:
        np.random.set_state(before)  # noqa: NPY002


@cache
def _imagecorruptions() -> ModuleType:
    """The package, with what NumPy 2, SciPy, scikit-image 0.26 and setuptools no longer have. Raises DataError if it is
    missing."""
    _stand_in("pkg_resources", resource_filename=_beside)
    try:
        from scipy import ndimage

        _stand_in("scipy.ndimage.interpolation", map_coordinates=ndimage.map_coordinates)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the names that it imports
            package = import_module("imagecorruptions")
    except ImportError as error:
        raise DataError(
            f"The fifteen kinds of corruptions need the package imagecorruptions ({error}): "
            f"pip install 'edgelearn[corruptions]'. Without it there are {', '.join(DRAWN)}."
        ) from error
    own: Any = sys.modules["imagecorruptions.corruptions"]
    blurred, salted = own.gaussian, own.sk.util.random_noise

    def gaussian(image: Any, sigma: float = 1, multichannel: bool = False, **settings: Any) -> Any:
        return blurred(image, sigma=sigma, channel_axis=-1 if multichannel else None, **settings)

    def random_noise(image: Any, **settings: Any) -> Any:
        return salted(image, rng=np.random.randint(1 << 31), **settings)  # noqa: NPY002  else it can't be repeated

    own.gaussian, own.np, own.glass_blur = gaussian, _WithOldNames(), partial(_glass_blur, gaussian)
    package.corruption_dict["glass_blur"] = own.glass_blur
    own.sk = SimpleNamespace(**{**vars(own.sk), "color": import_module("skimage.color")})
    own.sk.util = SimpleNamespace(random_noise=random_noise)
    return package


def _glass_blur(gaussian: Callable[..., Any], image: Any, severity: int = 1) -> np.ndarray:
    """The package's, which takes 660 ms a picture of 128 pixels: the same draws at once, the same pixels moved in a
    list. As there, a pixel is replaced, not swapped."""
    sigma, most, times = [(0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)][severity - 1]
    x = (gaussian(np.array(image) / 255.0, sigma=sigma, multichannel=True) * 255).astype(np.uint8)
    rows, columns = (range(size - most, most, -1) for size in x.shape[:2])
    pixels, width = list(map(tuple, x.reshape(-1, 3))), x.shape[1]
    for _ in range(times):
        moves = np.random.randint(-most, most, size=(len(rows) * len(columns), 2)).tolist()  # noqa: NPY002
        for at, (dx, dy) in zip((h * width + w for h in rows for w in columns), moves, strict=True):
            pixels[at] = pixels[at + dy * width + dx]
    moved = np.array(pixels, np.uint8).reshape(x.shape)
    return np.clip(gaussian(moved / 255.0, sigma=sigma, multichannel=True), 0, 1) * 255


def _beside(module: str, file: str) -> str:
    return str(Path(sys.modules[module].__file__ or "").parent / file)


class _WithOldNames:
    """NumPy with a name that NumPy 2 dropped."""

    float_ = np.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def _stand_in(name: str, **functions: Any) -> None:
    """Put a module in place of one that the environment may lack."""
    try:
        import_module(name)
    except ImportError:
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(functions)


# -- drawn without a package -------------------------------------------------------------------------------------------


def _noise(x: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Gaussian noise of a deviation of 0.04 to 0.2."""
    return x + rng.normal(0, 0.04 * severity, x.shape)


def _blur(x: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """A Gaussian blur of a deviation of 1 % to 5 % of the picture's shorter side."""
    return _blurred(x, 0.01 * severity * min(x.shape[:2]))


def _contrast(x: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Differences from the mean colour times 0.75 to 0.15."""
    mean = x.mean((0, 1), keepdims=True)
    return mean + (0.9 - 0.15 * severity) * (x - mean)


def _brightness(x: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """0.1 to 0.5 more."""
    return x + 0.1 * severity


def _night(x: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Little and bluish light, photons that are counted, and noise of reading: y = Poisson(p l) / p + N(0, 0.002 s) of
    the light l = t x^2.2 / 2^(s-1), with t = 0.8, 0.9, 1 by channel and p = 400 photons; brightened again as a camera
    does, to (2^(s-2) y)^(1/2.2)."""
    light = np.array([0.8, 0.9, 1.0], np.float32) * x**2.2 / 2 ** (severity - 1)
    seen = rng.poisson(400 * light) / 400 + rng.normal(0, 0.002 * severity, x.shape)
    return np.clip(seen * 2 ** (severity - 1) / 2, 0, 1) ** (1 / 2.2)


def _rain(x: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Streaks and a grey veil: (1 - a) x + 0.7 a + 0.8 r, with a = 0.08 s, and r a share of 0.4 s % of the pixels,
    drawn out along one slanted line of an eighth of the picture's height and blurred across."""
    height, width, _ = x.shape
    length, slant = max(2, height // 8), rng.uniform(-0.4, 0.4)
    drops, streaks = rng.random((height, width)) < 0.004 * severity, np.zeros((height, width), np.float32)
    for step in range(length):
        streaks += np.roll(drops, (step, round(slant * step)), (0, 1))
    veil = 0.08 * severity
    return (1 - veil) * x + 0.7 * veil + 0.8 * _blurred(np.minimum(streaks, 1)[..., None], max(0.5, width / 400))


def _blurred(x: np.ndarray, deviation: float) -> np.ndarray:
    from scipy.ndimage import gaussian_filter

    return gaussian_filter(x, (deviation, deviation, 0), mode="reflect")


DRAWN: dict[str, Callable[[np.ndarray, int, np.random.Generator], np.ndarray]] = {
    "noise": _noise, "blur": _blur, "low_contrast": _contrast, "bright": _brightness, "night": _night, "rain": _rain,
}  # fmt: skip


# -- recordings --------------------------------------------------------------------------------------------------------


def in_noise(clips: np.ndarray, decibels: float = 0.0, seed: int = 0, rate: int = RATE) -> np.ndarray:
    """Add white, pink or brown noise to clips, float32 (n, samples), at a power `decibels` below each clip's (default
    0: as loud)."""
    noises, rows = synthetic_noises(seed, rate=rate), []
    for i, clip in enumerate(clips):
        rng = np.random.default_rng([seed, i])
        rows.append(mix(clip, stretch(noises[rng.integers(len(noises))], len(clip), rng.random()), decibels))
    return np.stack(rows)


def reverberant(clips: np.ndarray, seconds: float = 0.6, seed: int = 0, rate: int = RATE) -> np.ndarray:
    """Put clips, float32 (n, samples), into rooms whose reverberation falls by 60 dB in `seconds` (default 0.6): see
    `draws.in_room`."""
    if not seconds > 0:
        raise DataError(f"A reverberation lasts more than 0 seconds, not {seconds}.")
    return np.stack([in_room(clip, seconds, np.random.default_rng([seed, i]), rate) for i, clip in enumerate(clips)])


def _sound_in_noise(clips: np.ndarray, severity: int, seed: int) -> np.ndarray:
    """Noise of 20 to 0 decibels below the clip."""
    return in_noise(clips, 5.0 * (5 - severity), seed)


def _sound_in_room(clips: np.ndarray, severity: int, seed: int) -> np.ndarray:
    """Reverberation of 0.2 to 1 seconds."""
    return reverberant(clips, 0.2 * severity, seed)


SOUNDS: dict[str, Callable[[np.ndarray, int, int], np.ndarray]] = {
    "in_noise": _sound_in_noise, "reverberant": _sound_in_room,
}  # fmt: skip
