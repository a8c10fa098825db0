import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from edgelearn.data.pictures import check, decode
from edgelearn.errors import DataError


def resized(image, size):
    """The central square, scaled."""
    width, height = image.size
    assert (width - height) % 2 == 0, "the square lies between pixels: choose another size"
    border = abs(width - height) // 2
    box = (border, 0, width - border, height) if width > height else (0, border, width, height - border)
    return np.asarray(image.convert("RGB").crop(box).resize((size, size), Image.Resampling.BILINEAR)).astype(int)


def assert_near(pixels, expected, tolerance):
    assert pixels.dtype == np.uint8
    assert pixels.shape == expected.shape
    assert np.abs(pixels.astype(int) - expected).max() <= tolerance


def test_the_central_square_is_scaled(photo, encode):
    assert_near(decode(encode(photo), 32, "p"), resized(photo, 32), 0)


def test_decode_from_a_path(photo, encode, tmp_path):
    (tmp_path / "p.png").write_bytes(encode(photo))
    assert_near(decode(tmp_path / "p.png", 40, "p"), resized(photo, 40), 0)


def test_quick_decoding_of_a_large_jpeg_keeps_the_quality(photo, encode):
    data = encode(photo.resize((1600, 1200)), "JPEG", quality=95)
    full = resized(Image.open(io.BytesIO(data)), 64)
    quick = decode(data, 64, "p").astype(int)
    assert np.abs(quick - full).mean() < 0.6
    assert np.abs(quick - full).max() <= 4


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_grey_becomes_rgb(photo, encode, kind):
    pixels = decode(encode(photo.convert("L"), kind), 24, "p")
    assert (pixels[..., 0] == pixels[..., 1]).all() and (pixels[..., 0] == pixels[..., 2]).all()
    assert_near(pixels, resized(photo.convert("L"), 24), 6)


def test_cmyk_jpeg(photo, encode):
    assert_near(decode(encode(photo.convert("CMYK"), "JPEG", quality=98), 24, "p"), resized(photo, 24), 12)


def test_16_bit_grey_keeps_its_range(encode):
    values = np.linspace(0, 65535, 32 * 32).reshape(32, 32).astype(np.uint16)
    pixels = decode(encode(Image.fromarray(values)), 32, "p")
    assert np.abs(pixels[..., 0].astype(int) - (values >> 8)).max() <= 1


def test_transparent_parts_of_a_palette_png_become_white(encode):
    picture = Image.new("P", (8, 8), 1)
    picture.putpalette([0, 0, 0, 200, 30, 40])
    picture.paste(0, (4, 0, 8, 8))
    pixels = decode(encode(picture, transparency=bytes([0, 255])), 8, "p")
    assert pixels[4, 0].tolist() == [200, 30, 40]
    assert pixels[4, 7].tolist() == [255, 255, 255]


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_half_transparent_is_mixed_with_white(encode, mode):
    color = (0, 0, 0, 128) if mode == "RGBA" else (0, 128)
    pixels = decode(encode(Image.new(mode, (8, 8), color)), 4, "p")
    assert np.abs(pixels.astype(int) - 127).max() <= 1


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_exif_orientation(photo, encode, orientation, kind):
    way = Image.Transpose
    # How a camera held that way stores the scene.
    stored = {
        1: None,
        2: way.FLIP_LEFT_RIGHT,
        3: way.ROTATE_180,
        4: way.FLIP_TOP_BOTTOM,
        5: way.TRANSPOSE,
        6: way.ROTATE_90,
        7: way.TRANSVERSE,
        8: way.ROTATE_270,
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = photo if stored is None else photo.transpose(stored)
    assert_near(decode(encode(picture, kind, exif=exif), 32, "p"), resized(photo, 32), 12)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_broken_exif_does_not_lose_the_picture(photo, encode):
    data = encode(photo, exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01\x12garbage")
    assert_near(decode(data, 32, "p"), resized(photo, 32), 0)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9, 0.98])
@pytest.mark.parametrize("progressive", [False, True])
def test_truncated_files_are_refused_at_any_size(photo, encode, kind, kept, progressive):
    options = {"progressive": progressive} if kind == "JPEG" else {}
    data = encode(photo.resize((640, 480)), kind, **options)
    for size in (8, 224):
        with pytest.raises(DataError, match=r"^rose\.jpg "):
            decode(data[: int(len(data) * kept)], size, "rose.jpg")


@pytest.mark.parametrize("data", [b"", b"hello, this is text", b"\xff\xd8\xff\xe0", b"GIF89a" + bytes(50)])
def test_what_is_no_picture_is_refused(data):
    with pytest.raises(DataError, match=r"^rose.jpg "):
        decode(data, 32, "rose.jpg")


def test_a_palette_picture_without_its_palette_is_refused(photo, encode):
    data = encode(photo.convert("P"))
    start = data.index(b"PLTE") - 4
    length = struct.unpack_from(">I", data, start)[0]
    with pytest.raises(DataError, match=r"^rose\.png .*damaged"):
        decode(data[:start] + data[start + 12 + length :], 32, "rose.png")


def test_checking_finds_damage_that_decoding_passes_over(photo, encode):
    data = bytearray(encode(photo))
    check(bytes(data), "rose.png")
    data[len(data) // 2] ^= 0xFF
    with pytest.raises(DataError, match=r"^rose\.png "):
        check(bytes(data), "rose.png")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(("width", "height"), [(9001, 9000), (12000, 9000), (60000, 60000)])
def test_pictures_with_too_many_pixels_are_refused_by_name(width, height):
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    data += struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))
    with pytest.raises(DataError, match=r"^huge\.png .*80 million"):
        decode(data, 32, "huge.png")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"gone\.png .*No such file"):
        decode(tmp_path / "gone.png", 32, str(tmp_path / "gone.png"))
