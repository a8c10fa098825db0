"""Labelled pictures: decoding of JPEG and PNG, folders with a subfolder for each class, preprocessing."""

import io
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
from PIL import Image

from edgelearn.errors import DataError, ShapeError

from .files import Labelled, decoding, filled, read_labelled, subfolders

# A 60 kB PNG can decompress to gigabytes. Phones' photographs stay below this limit.
MAX_PIXELS = 80_000_000

# At this size a JPEG is read to its end but decoded at an eighth of its scale.
_CHECK_SIZE = 8

# Exceptions that Pillow raises for damaged files.
_DAMAGE = (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, AssertionError, struct.error)
_BOMB = (Image.DecompressionBombError, Image.DecompressionBombWarning)

_ORIENTATION_TAG = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode(source: bytes | Path, size: int, name: str) -> np.ndarray:
    """Decode the central square of a picture, scaled to uint8 (size, size, 3) with an area-aware bilinear filter.

    Greyscale, palette, CMYK and 16-bit pictures become RGB; transparent parts become white; the EXIF orientation is
    applied.

    Arguments:
    - `source`: encoded bytes or a file.
    - `size`: side of the result in pixels.
    - `name`: name of the picture in errors.

    Raises DataError for a file that is neither JPEG nor PNG, is damaged or truncated, has more than MAX_PIXELS pixels,
    or takes too much memory to decode.
    """
    with _opened(source, name) as image:
        whole = image.width * image.height
        # The JPEG decoder can halve the picture for free. At twice the requested size or more the result
        # equals that of a full decode up to rounding.
        image.draft(None, (2 * size, 2 * size))
        turn = _UPRIGHT.get(_orientation(image))
        with decoding.hold(_bytes_to_decode(image, whole), name):
            square = _to_rgb(_central_square(image)).resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(square if turn is None else square.transpose(turn))


def check(source: bytes | Path, name: str):
    """Read a picture to its end, as cheaply as possible, and raise DataError if `decode` could."""
    decode(source, _CHECK_SIZE, name)
    with _opened(source, name) as image:
        image.verify()  # a PNG's checksums, which decoding ignores


def describe(source: bytes | Path, position: int) -> str:
    """Name of a picture in errors."""
    return f"Picture {position}" if isinstance(source, bytes) else os.fspath(source)


@contextmanager
def _opened(source: bytes | Path, name: str) -> Iterator[Image.Image]:
    """Open a picture; errors in the block become a DataError with its name."""
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    try:
        with Image.open(file, formats=("JPEG", "PNG")) as image:
            if image.width * image.height > MAX_PIXELS:
                raise _too_large(name)
            yield image
    except _BOMB as error:
        raise _too_large(name) from error
    except Image.UnidentifiedImageError as error:
        raise DataError(f"{name} is neither a JPEG nor a PNG. Remove it or convert it.") from error
    except _DAMAGE as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error) or "it is damaged"
        raise DataError(f"{name} cannot be read as a picture: {reason}. Remove it or replace it.") from error


def _too_large(name: str) -> DataError:
    return DataError(
        f"{name} has more than {MAX_PIXELS / 1e6:.0f} million pixels, which can exhaust the memory. "
        "Scale it down or remove it."
    )


def _orientation(image: Image.Image) -> int:
    try:
        return image.getexif().get(_ORIENTATION_TAG, 1)
    except (*_DAMAGE, UserWarning):  # damaged metadata doesn't make the picture unusable
        return 1


def _bytes_to_decode(image: Image.Image, whole: int) -> int:
    """Memory that decoding takes: the picture and its copies as Pillow stores them, and the coefficients of a
    progressive JPEG of `whole` pixels, which are all there before the first pixel is."""
    if image.has_transparency_data:
        copies = 24
    elif image.mode.startswith("I"):
        copies = 18
    else:
        copies = 8 if image.mode == "RGB" else 12
    return image.width * image.height * copies + (6 * whole if image.info.get("progressive") else 0)


def _central_square(image: Image.Image) -> Image.Image:
    side = min(image.size)
    left, top = ((length - side) // 2 for length in image.size)
    return image.crop((left, top, left + side, top + side))


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit greyscale, which convert() would clip at 255
        image = Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        picture = image.convert("RGBA")
        image = Image.new("RGBA", picture.size, "white")
        image.alpha_composite(picture)
    return image if image.mode == "RGB" else image.convert("RGB")


# Encoded bytes, a file, or a function that draws the picture: size -> uint8 (size, size, 3).
Item = bytes | Path | Callable[[int], np.ndarray]


@dataclass(frozen=True, eq=False)
class ImageDataset(Labelled):
    """Labelled pictures. It holds what was given: encoded bytes, paths or drawing functions.

    Arguments:
    - `name`: short name, such as "tf_flowers".
    - `origin`: where the pictures come from: "EDGELEARN_DATA" (prepared data in a folder the user named), "tfds"
      (TensorFlow Datasets' own folder), "folder", "embedded sample" or "drawn".
    - `description`: the origin as one sentence for a reader.
    - `class_names`: names in the order of the labels.
    - `labels`: int32 (n,), each from 0 to len(class_names) - 1.
    - `items`: n pictures.
    - `skipped`: (path, reason) of each file that was left out (default none).

    Raises DataError if the numbers of pictures and labels differ, or a label has no name.
    """

    name: str
    origin: str
    description: str
    class_names: tuple[str, ...]
    labels: np.ndarray
    items: Sequence[Item] = field(repr=False)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    nouns = "pictures"

    def image(self, i: int, size: int) -> np.ndarray:
        """The central square of picture `i`, uint8 (size, size, 3). Raises DataError if it can't be read."""
        item = self.items[i]
        if callable(item):
            return item(size)
        return decode(item, size, describe(item, i))

    def fingerprint(self) -> str | None:
        """A text that data sets of the same pictures share: of encoded bytes, of files' paths, sizes and times, of the
        package's drawings. None if a picture is drawn by some other function, or a file is gone."""
        found = sha256()
        for item in self.items:
            if isinstance(item, partial):
                item = f"{item.func.__module__}.{item.func.__qualname__}{item.args}{item.keywords}".encode()
            elif isinstance(item, Path):
                try:
                    status = item.stat()
                except OSError:
                    return None
                item = f"{item.absolute()} {status.st_size} {status.st_mtime_ns}".encode()
            elif callable(item):
                return None
            found.update(f"{len(item)} ".encode() + item)
        return found.hexdigest()


_LAYOUT = "Expected a folder with a subfolder of JPEG or PNG pictures for each class, such as roses/ and tulips/."


def load_folder(path: str | os.PathLike) -> ImageDataset:
    """Load a folder whose subfolders are the classes, numbered in sorted order.

    Pictures may have any size and lie in nested folders; hidden files are ignored. Every file is decoded once, so that
    none can fail during training; unusable files are listed in `skipped`.

    Raises DataError if there is no such folder, or fewer than two classes or two usable pictures of a class.
    """
    root, classes = subfolders(path, "picture folder", _LAYOUT)
    if len(classes) < 2:
        raise DataError(f"The picture folder {root} has only one class, {classes[0]!r}: two are needed. {_LAYOUT}")

    return ImageDataset(
        **read_labelled(
            root, classes, check, "{:,} pictures in {} classes", "JPEG or PNG pictures", 2,
            lambda name, count: f"Class {name!r} in {root} has {count} usable picture(s), and at least 2 are needed.",
        )
    )  # fmt: skip


def load_images(dataset: ImageDataset, indices: Sequence[int], size: int, out: np.ndarray | None = None) -> np.ndarray:
    """Decode the pictures at `indices` to uint8 (n, size, size, 3), into `out` if given.

    Raises DataError for a picture that cannot be read, ShapeError if `out` has another shape or type.
    """
    shape = (len(indices), size, size, 3)
    return filled(shape, np.uint8, out, lambda row: dataset.image(int(indices[row]), size))


# MobileNet's input range: x / SCALE - OFFSET takes 0..255 to -1..1.
SCALE = 127.5
OFFSET = 1.0


def normalize(images: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """MobileNet's preprocessing, x / 127.5 - 1: uint8 of any shape to float32 of the same shape in -1..1.

    Arguments:
    - `out`: array for the result (default: a new one).

    Raises ShapeError if `images` isn't uint8 or `out` has another shape or type.
    """
    _check_pixels(images)
    if out is None:
        out = np.empty(images.shape, np.float32)
    elif out.shape != images.shape or out.dtype != np.float32:
        raise ShapeError(f"out must be float32 of shape {images.shape}, got {out.dtype} of shape {out.shape}.")
    np.divide(images, np.float32(SCALE), out=out, dtype=np.float32)
    out -= np.float32(OFFSET)
    return out


def standardize(images: np.ndarray, mean: Sequence[float], deviation: Sequence[float]) -> np.ndarray:
    """Standardize each channel, (x / 255 - mean) / deviation: uint8 (..., channels) to float32 of the same shape.
    Raises ShapeError if `images` isn't uint8."""
    _check_pixels(images)
    scale = 1 / (255 * np.asarray(deviation))
    offset = np.asarray(mean) / np.asarray(deviation)
    return images * scale.astype(np.float32) - offset.astype(np.float32)


def _check_pixels(images: np.ndarray) -> None:
    if images.dtype != np.uint8:
        raise ShapeError(f"Pixels must be uint8 in 0..255, got {images.dtype}. Pass pictures without preprocessing.")
