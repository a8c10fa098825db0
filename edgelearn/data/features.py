"""Log-mel energies and MFCC, the input features of keyword networks: of clips, of streams, and cached on disk.

The two common front ends are one formula with different settings. `tf.signal`: frames begin at the first sample, mel
triangles are linear in mel. torchaudio and librosa (`htk=True, norm=None`): the clip is reflected at its ends and
triangles are linear in hertz. The mel scale is always HTK's: m = 2595 log10(1 + f / 700).
"""

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from edgelearn import atomic, caches, records
from edgelearn.errors import DataError, FormatError, ShapeError

from .audio import RATE, ClipDataset, Item, load_clips
from .files import each

_CHUNK = 8  # clips at once: their spectra fit in the CPU's cache


@dataclass(frozen=True)
class LogMel:
    """log(mel energies + offset) of clips.

    Arguments:
    - `window`: samples of a frame, with a periodic Hann window (default 480).
    - `hop`: samples between frames (default 160).
    - `fft`: samples of the transform (default 512).
    - `bands`: number of mel bands (default 40).
    - `low`, `high`: range of their frequencies in hertz (default 0 and half the rate).
    - `power`: 2 for energies (default), 1 for magnitudes.
    - `offset`: added before the logarithm (default 1e-6).
    - `triangles`: filters are linear in "hertz" (default) or in "mel".
    - `centred`: frame i is centred on sample i * hop, and the clip is reflected at its ends (default); otherwise it
      begins there, and an incomplete last frame is dropped.
    - `rate`: samples per second (default 16,000).

    Raises DataError for invalid settings.
    """

    window: int = 480
    hop: int = 160
    fft: int = 512
    bands: int = 40
    low: float = 0.0
    high: float = RATE / 2
    power: int = 2
    offset: float = 1e-6
    triangles: str = "hertz"
    centred: bool = True
    rate: int = RATE

    def __post_init__(self):
        if not (self.hop > 0 and 1 < self.window <= self.fft):
            raise DataError(f"A frame needs hop > 0 and 1 < window <= fft, got {self.hop}, {self.window}, {self.fft}.")
        if not 0 <= self.low < self.high <= self.rate / 2:
            raise DataError(
                f"Mel bands lie between 0 and {self.rate / 2:g} hertz, half the rate: {self.low:g} to {self.high:g}."
            )
        if self.bands < 1 or self.power not in (1, 2) or self.offset <= 0 or self.triangles not in ("hertz", "mel"):
            raise DataError(f'Expected bands and offset above 0, power 1 or 2, triangles "hertz" or "mel", got {self}.')

    def shape(self, samples: int) -> tuple[int, int]:
        """(frames, bands) of a clip of `samples` samples. Raises ShapeError if it is shorter than a frame."""
        margin = self.window // 2 if self.centred else 0
        if samples <= margin or samples + 2 * margin < self.window:
            raise ShapeError(f"A clip of {samples} samples is too short for a frame of {self.window}. Pad it.")
        return 1 + (samples + 2 * margin - self.window) // self.hop, self.bands

    def __call__(self, clips: np.ndarray) -> np.ndarray:
        """Compute features of `clips`, float (n, samples): float32 (n, frames, bands). Raises ShapeError for another
        shape."""
        clips = _check(clips)
        out = np.empty((len(clips), *self.shape(clips.shape[1])), np.float32)

        def work(start: int):
            out[start : start + _CHUNK] = self._log_mel(clips[start : start + _CHUNK])

        each(work, range(0, len(clips), _CHUNK))
        return out

    def _log_mel(self, clips: np.ndarray) -> np.ndarray:
        if self.centred:
            clips = np.pad(clips, ((0, 0), (self.window // 2,) * 2), mode="reflect")
        frames = np.lib.stride_tricks.sliding_window_view(clips, self.window, axis=1)[:, :: self.hop]
        # In float64: next to a loud tone, rounding errors of a float32 transform mask quiet bands.
        spectrum = np.fft.rfft(frames * _hann(self.window), self.fft)
        energy = spectrum.real**2 + spectrum.imag**2
        if self.power == 1:
            energy = np.sqrt(energy)
        flat = energy.astype(np.float32).reshape(-1, energy.shape[-1])
        mel = (flat @ mel_matrix(self)).reshape(*energy.shape[:2], self.bands)
        return np.log(mel + np.float32(self.offset))


@dataclass(frozen=True)
class MFCC:
    """Mel-frequency cepstral coefficients: the DCT of log-mel energies, scaled as HTK and tf.signal do.

    Arguments:
    - `coefficients`: number of the first ones that are used, at most the number of bands.
    - `log_mel`: the energies.

    Raises DataError for another number of coefficients.
    """

    coefficients: int
    log_mel: LogMel

    def __post_init__(self):
        if not 1 <= self.coefficients <= self.log_mel.bands:
            raise DataError(f"MFCC has 1 to {self.log_mel.bands} coefficients, one a band, not {self.coefficients}.")

    @property
    def rate(self) -> int:
        return self.log_mel.rate

    def shape(self, samples: int) -> tuple[int, int]:
        """(frames, coefficients), see LogMel.shape."""
        return self.log_mel.shape(samples)[0], self.coefficients

    def __call__(self, clips: np.ndarray) -> np.ndarray:
        """Compute MFCC of `clips`, float (n, samples): float32 (n, frames, coefficients)."""
        return self.log_mel(clips) @ _dct(self.log_mel.bands, self.coefficients)


FrontEnd = LogMel | MFCC

# Features of BC-ResNet (Kim et al. 2021): torchaudio's MelSpectrogram, then log(x + 1e-6).
BC_RESNET = LogMel()
# Features of DS-CNN, 49 frames of 10 coefficients: in MLPerf Tiny by tf.signal, and in ARM's ML-KWS-for-MCU by the ops
# AudioSpectrogram and Mfcc of TensorFlow 1, whose energies have a floor of 1e-12 instead of the offset.
DS_CNN_MLPERF = MFCC(10, LogMel(hop=320, low=20, high=4000, power=1, triangles="mel", centred=False))
DS_CNN_ARM = MFCC(10, replace(DS_CNN_MLPERF.log_mel, window=640, fft=1024, offset=1e-12))


def to_json(front_end: FrontEnd) -> str:
    """Serialize the settings: equal front ends give equal text."""
    return json.dumps(asdict(front_end), sort_keys=True)


def from_json(text: str) -> FrontEnd:
    """Read what `to_json` wrote. Raises FormatError for other text, DataError for invalid settings."""
    try:
        settings = records.parse(text, dict)
        return records.convert(settings, MFCC if "log_mel" in settings else LogMel)
    except records.RecordError as error:
        raise FormatError(f"Not the settings of a front end written by edgelearn: {error}.") from None


@lru_cache(maxsize=8)
def mel_matrix(settings: LogMel) -> np.ndarray:
    """Mel filter bank: float32 (fft / 2 + 1, bands). Triangles of height 1 at a band's centre end at the centres of its
    neighbours; centres are evenly spaced in mel."""
    low, high = _mel(np.array([settings.low, settings.high]))
    edges = np.linspace(low, high, settings.bands + 2)
    bins = np.linspace(0, settings.rate / 2, settings.fft // 2 + 1)
    if settings.triangles == "mel":
        bins = _mel(bins)
    else:
        edges = 700 * (10 ** (edges / 2595) - 1)
    rising = (bins[:, None] - edges[:-2]) / np.diff(edges)[:-1]
    falling = (edges[2:] - bins[:, None]) / np.diff(edges)[1:]
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)


def _mel(hertz: np.ndarray) -> np.ndarray:
    return 2595 * np.log10(1 + hertz / 700)


@lru_cache(maxsize=8)
def _hann(window: int) -> np.ndarray:
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)


@lru_cache(maxsize=8)
def _dct(bands: int, coefficients: int) -> np.ndarray:
    """DCT-II times sqrt(2 / bands): (bands, coefficients)."""
    angles = np.pi / bands * (np.arange(bands)[:, None] + 0.5) * np.arange(coefficients)
    return (np.sqrt(2 / bands) * np.cos(angles)).astype(np.float32)


def _check(clips: np.ndarray) -> np.ndarray:
    clips = np.asarray(clips)
    if clips.ndim != 2 or clips.dtype.kind != "f":
        raise ShapeError(f"Clips must be floats of shape (n, samples), got {clips.dtype} of shape {clips.shape}.")
    return clips.astype(np.float32, copy=False)


_FRAMES = 1024  # computed at once at most


class FeatureStream:
    """Computes the frames of a recording from consecutive pieces. Up to rounding they equal those of the whole
    recording, also at its ends, where a centred front end reflects it. Only samples that later frames need are held.

    Arguments:
    - `front_end`: computes the features.
    """

    def __init__(self, front_end: FrontEnd) -> None:
        self.front_end = front_end
        mfcc = isinstance(front_end, MFCC)
        log_mel = front_end.log_mel if mfcc else front_end
        self._margin = log_mel.window // 2 if log_mel.centred else 0
        self._window, self._hop = log_mel.window, log_mel.hop
        inner = replace(log_mel, centred=False)
        self._inner = replace(front_end, log_mel=inner) if mfcc else inner
        self._held = np.empty(0, np.float32)
        self._next = 0  # start of the next frame in `_held`
        self._begun = not self._margin

    def push(self, samples: np.ndarray) -> np.ndarray:
        """Append `samples`, float (n,), and return the frames that they complete: float32 (k, bands), k >= 0. Raises
        ShapeError for another shape or type."""
        samples = np.asarray(samples)
        if samples.ndim != 1 or samples.dtype.kind != "f":
            raise ShapeError(f"A stream takes floats of shape (n,), got {samples.dtype} of shape {samples.shape}.")
        self._held = np.concatenate([self._held, samples.astype(np.float32, copy=False)])
        if not self._begun and len(self._held) > self._margin:
            self._held = np.pad(self._held, (self._margin, 0), mode="reflect")
            self._begun = True
        return self._frames() if self._begun else self._none()

    def finish(self) -> np.ndarray:
        """Return the last frames, float32 (k, bands). Raises ShapeError if the whole recording was shorter than a
        frame."""
        if not self._begun:
            return self.front_end(self._held[None])[0]
        self._held = np.pad(self._held, (0, self._margin), mode="reflect")
        return self._frames()

    def _frames(self) -> np.ndarray:
        found = [self._none()]
        while (count := (len(self._held) - self._next - self._window) // self._hop + 1) > 0:
            count = min(count, _FRAMES)
            end = self._next + (count - 1) * self._hop + self._window
            found.append(self._inner(self._held[None, self._next : end])[0])
            self._next += count * self._hop
        unneeded = max(0, min(self._next, len(self._held) - self._margin - 1))
        self._held, self._next = self._held[unneeded:], self._next - unneeded
        return np.concatenate(found)

    def _none(self) -> np.ndarray:
        return np.empty((0, self._inner.shape(self._window)[1]), np.float32)


VARIABLE = "EDGELEARN_FEATURES"
_FORMAT = 1  # increment when decoding or features change, to invalidate the cache
_TOGETHER = 512  # clips in memory at once


def load_features(
    dataset: ClipDataset, front_end: FrontEnd = BC_RESNET, seconds: float = 1.0, folder: str | os.PathLike | None = None
) -> np.ndarray:
    """Features of all clips, padded or cut to the same length: float32 of shape (n, frames, bands).

    They are cached under a hash of the clips' content and the settings; damaged files are detected by their checksum. A
    clip that is a function may have an `identity`, a text that determines its samples: it is then not called.

    Arguments:
    - `front_end`: computes the features (default BC_RESNET).
    - `seconds`: length of a clip (default 1).
    - `folder`: of the cache (default `cache_folder()`).

    Raises DataError for a clip that cannot be read.
    """
    kept = cache_folder() if folder is None else Path(folder)
    if kept is None:
        return compute_features(dataset, front_end, seconds)
    path = kept / f"{_key(dataset, front_end, seconds)}.safetensors"
    shape = (len(dataset), *front_end.shape(round(front_end.rate * seconds)))
    features = _load(path, shape)
    if features is None:
        features = compute_features(dataset, front_end, seconds)
        from safetensors.numpy import save

        atomic.keep(path, save({"features": features}, {"sha256": _checksum(features)}))
    return features


def compute_features(dataset: ClipDataset, front_end: FrontEnd = BC_RESNET, seconds: float = 1.0) -> np.ndarray:
    """Like `load_features`, without a cache."""
    out = np.empty((len(dataset), *front_end.shape(round(front_end.rate * seconds))), np.float32)
    for start in range(0, len(dataset), _TOGETHER):
        some = np.arange(start, min(start + _TOGETHER, len(dataset)))
        out[some] = front_end(load_clips(dataset, some, front_end.rate, seconds))
    return out


def cache_folder() -> Path | None:
    """Folder of cached features: EDGELEARN_FEATURES, else in the user's cache. It may be deleted at any time. An empty
    EDGELEARN_FEATURES disables the cache."""
    return caches.folder("features", VARIABLE)


def _key(dataset: ClipDataset, front_end: FrontEnd, seconds: float) -> str:
    digest = hashlib.sha256(f"{_FORMAT} {front_end!r} {seconds!r}".encode())
    for content in each(lambda item: _digest(item, front_end.rate), dataset.items):
        digest.update(content)
    return digest.hexdigest()


def _digest(item: Item, rate: int) -> bytes:
    if identity := getattr(item, "identity", ""):
        return hashlib.sha256(f"identity {rate} {identity}".encode()).digest()
    if isinstance(item, Path):
        with suppress(OSError):  # decoding will report it
            item = item.read_bytes()
    elif callable(item):
        item = item(rate)
    kind = str(getattr(item, "dtype", "encoded")).encode()
    content = item if isinstance(item, bytes) else np.ascontiguousarray(item).tobytes()
    return hashlib.sha256(kind + content).digest()


def _load(path: Path, shape: tuple[int, ...]) -> np.ndarray | None:
    """Read features, or None if the file is missing or damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            features, checksum = file.get_tensor("features"), (file.metadata() or {}).get("sha256")
    except (OSError, SafetensorError, KeyError, ValueError):
        return None
    return features if features.shape == shape and checksum == _checksum(features) else None


def _checksum(features: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(features).data).hexdigest()
