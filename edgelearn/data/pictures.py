"""Decode a JPEG or PNG into a square RGB array."""

import io
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from edgelearn.errors import DataError

from .decoding_limit import decoding

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
