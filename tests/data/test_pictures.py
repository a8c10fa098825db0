"""Pictures: decoded as they should look, refused by name, read from folders on threads that share a memory limit."""

import io
import os
import struct
import threading
import time
import zlib

import numpy as np
import pytest
from PIL import Image

from edgelearn.data import files, pictures
from edgelearn.data.files import DecodingLimit, each
from edgelearn.data.flowers import embedded_flowers
from edgelearn.data.pictures import ImageDataset, check, decode, load_folder, load_images, normalize, standardize
from edgelearn.errors import DataError, ShapeError


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


def grey(photo):
    return photo.convert("L")


@pytest.mark.parametrize(
    ("change", "size", "tolerance", "kind", "options"),
    [
        (None, 32, 0, "PNG", {}),
        (grey, 24, 6, "JPEG", {}),
        (grey, 24, 6, "PNG", {}),
        (lambda photo: photo.convert("CMYK"), 24, 12, "JPEG", {"quality": 98}),
        pytest.param(
            None, 32, 0, "PNG", {"exif": b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01\x12garbage"},
            marks=pytest.mark.filterwarnings("ignore:Corrupt EXIF"),
        ),
    ],
)  # fmt: skip
def test_the_central_square_is_scaled(photo, encode, tmp_path, change, size, tolerance, kind, options):
    picture = change(photo) if change else photo
    (tmp_path / "p").write_bytes(encode(picture, kind, **options))
    for source in (tmp_path / "p", (tmp_path / "p").read_bytes()):
        pixels = decode(source, size, "p")
        assert_near(pixels, resized(picture if change is grey else photo, size), tolerance)
        assert change is not grey or (pixels == pixels[..., :1]).all()


def test_quick_decoding_of_a_large_jpeg_keeps_the_quality(photo, encode):
    data = encode(photo.resize((1600, 1200)), "JPEG", quality=95)
    full = resized(Image.open(io.BytesIO(data)), 64)
    quick = decode(data, 64, "p").astype(int)
    assert np.abs(quick - full).mean() < 0.6
    assert np.abs(quick - full).max() <= 4


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
    stored = (  # as a camera held that way stores the scene
        None, way.FLIP_LEFT_RIGHT, way.ROTATE_180, way.FLIP_TOP_BOTTOM, way.TRANSPOSE, way.ROTATE_90, way.TRANSVERSE,
        way.ROTATE_270,
    )[orientation - 1]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = photo if stored is None else photo.transpose(stored)
    assert_near(decode(encode(picture, kind, exif=exif), 32, "p"), resized(photo, 32), 12)


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


@pytest.fixture
def flowers(tmp_path, photo):
    """Two classes of three pictures of different sizes and formats."""
    for name in ("tulips", "roses"):
        (tmp_path / name / "nested").mkdir(parents=True)
        photo.resize((300, 200)).save(tmp_path / name / "b.jpg")
        photo.save(tmp_path / name / "a.png")
        photo.resize((50, 90)).save(tmp_path / name / "nested" / "c.JPEG")
    return tmp_path


def test_classes_are_the_sorted_subfolders(flowers):
    dataset = load_folder(flowers)
    assert dataset.class_names == ("roses", "tulips")
    assert dataset.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert [item.relative_to(flowers).as_posix() for item in dataset.items[:3]] == [
        "roses/a.png",
        "roses/b.jpg",
        "roses/nested/c.JPEG",
    ]
    assert dataset.origin == "folder" and str(flowers) in dataset.description
    assert dataset.skipped == []
    assert all(dataset.image(i, 32).shape == (32, 32, 3) for i in range(6))


def test_hidden_files_and_loose_files_are_ignored(flowers):
    (flowers / "roses" / ".DS_Store").write_bytes(b"x")
    (flowers / ".cache").mkdir()
    (flowers / "roses" / ".thumbs").mkdir()
    (flowers / "roses" / ".thumbs" / "t.png").write_bytes(b"x")
    (flowers / "README.txt").write_text("about")
    dataset = load_folder(flowers)
    assert len(dataset) == 6 and dataset.skipped == []


def test_unusable_files_are_named_skipped_and_counted(flowers):
    whole = (flowers / "roses" / "b.jpg").read_bytes()
    (flowers / "roses" / "cut.jpg").write_bytes(whole[: len(whole) * 9 // 10])
    (flowers / "roses" / "notes.txt").write_text("not a picture")
    (flowers / "tulips" / "empty.png").write_bytes(b"")
    (flowers / "tulips" / "link.png").symlink_to(flowers / "nothing.png")
    Image.new("RGB", (9, 9)).save(flowers / "tulips" / "p.gif")
    dataset = load_folder(flowers)
    assert len(dataset) == 6
    names = [os.path.basename(path) for path, _ in dataset.skipped]
    assert names == ["cut.jpg", "notes.txt", "empty.png", "link.png", "p.gif"]
    reasons = dict(zip(names, (reason for _, reason in dataset.skipped), strict=True))
    assert "truncated" in reasons["cut.jpg"]
    assert "neither a JPEG nor a PNG" in reasons["notes.txt"]
    assert "neither a JPEG nor a PNG" in reasons["p.gif"]
    assert "5 files skipped" in dataset.description


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_a_pipe_does_not_hang(flowers):
    os.mkfifo(flowers / "roses" / "pipe.jpg")
    assert [reason for _, reason in load_folder(flowers).skipped] == [
        f"{flowers}/roses/pipe.jpg is not a file. Remove it."
    ]


def test_what_is_kept_can_be_decoded_later(flowers):
    rng = np.random.default_rng(0)
    whole = (flowers / "roses" / "b.jpg").read_bytes()
    for k in range(60):
        damaged = bytearray(whole)
        for at in rng.integers(0, len(whole), 3):
            damaged[at] = rng.integers(256)
        (flowers / "roses" / f"damaged{k}.jpg").write_bytes(damaged)
    dataset = load_folder(flowers)
    assert len(dataset) + len(dataset.skipped) == 66
    for i in range(len(dataset)):
        dataset.image(i, 64)


def test_folders_that_cannot_be_used(flowers, tmp_path_factory):
    empty = tmp_path_factory.mktemp("empty")
    (empty / "file").write_text("")
    for path, match in ((empty / "nowhere", "nowhere"), (empty / "file", str(empty / "file")), (empty, str(empty))):
        with pytest.raises(DataError, match=match):
            load_folder(path)
    (empty / "roses").mkdir()
    with pytest.raises(DataError, match="'roses'"):
        load_folder(empty)
    for name in ("a.png", "b.jpg"):
        (flowers / "roses" / name).write_bytes(b"x")
    with pytest.raises(DataError, match=r"'roses'.* 1 usable.*2 files.*a\.png"):
        load_folder(flowers)


def numbered(n, draw=None):
    """Pictures filled with their own number."""
    items = [lambda size, i=i: np.full((size, size, 3), i, np.uint8) for i in range(n)]
    return ImageDataset("numbered", "drawn", "Numbers.", ("a",), np.zeros(n, int), draw or items)


def decoders():
    return [thread for thread in threading.enumerate() if thread.name.startswith("edgelearn-data")]


@pytest.fixture(autouse=True)
def no_thread_stays():
    yield
    assert decoders() == []


def test_pictures_come_in_the_order_asked_for():
    images = load_images(numbered(20), np.array([7, 3, 3, 19]), 6)
    assert images.shape == (4, 6, 6, 3) and images.dtype == np.uint8
    assert images[:, 0, 0, 0].tolist() == [7, 3, 3, 19]
    assert load_images(numbered(2), np.array([], int), 6).shape == (0, 6, 6, 3)
    out = np.zeros((2, 4, 4, 3), np.uint8)
    assert load_images(numbered(5), np.array([4, 2]), 4, out=out) is out
    assert out[:, 0, 0, 0].tolist() == [4, 2]
    with pytest.raises(ShapeError, match=r"\(1, 4, 4, 3\).*\(2, 4, 4, 3\)"):
        load_images(numbered(5), np.array([1]), 4, out=out)


def test_an_interrupt_while_waiting_stops_everything(monkeypatch):
    from concurrent.futures import Future

    def interrupted(self, timeout=None):
        raise KeyboardInterrupt

    slow = [lambda size: (time.sleep(0.02), np.zeros((size, size, 3), np.uint8))[1]] * 600
    monkeypatch.setattr(Future, "result", interrupted)
    began = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        load_images(numbered(600, slow), np.arange(600), 4)
    assert decoders() == [] and time.perf_counter() - began < 2


def test_every_pixel_value():
    values = np.arange(256, dtype=np.uint8)
    result = normalize(values)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, np.arange(256) / 127.5 - 1, atol=1e-7)
    assert (result[0], result[255]) == (-1, 1)
    images = np.full((2, 3, 3, 3), 255, np.uint8)
    out = np.zeros(images.shape, np.float32)
    assert normalize(images, out=out) is out and (out == 1).all()
    for pixels, out in ((values[:3], np.zeros((2, 2), np.float32)), (values[:3], np.zeros(3))):
        with pytest.raises(ShapeError, match=r"float32 .*\(3,\)"):
            normalize(pixels, out=out)
    with pytest.raises(ShapeError, match="uint8"):
        normalize(np.zeros(3))


def test_standardized_channels():
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), np.uint8)
    mean, deviation = (pixels / 255).mean((0, 1, 2)), (pixels / 255).std((0, 1, 2))
    result = standardize(pixels, mean, deviation)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, (pixels / 255 - mean) / deviation, atol=1e-6)
    with pytest.raises(ShapeError, match=r"uint8"):
        standardize(pixels / 255, mean, deviation)


def make(items, labels, names=("a", "b")):
    return ImageDataset("few", "folder", "A few pictures.", names, labels, items)


def test_items_may_be_bytes_paths_or_drawings(photo, encode, tmp_path):
    data = encode(photo)
    (tmp_path / "p.png").write_bytes(data)
    dataset = make([data, tmp_path / "p.png", lambda size: np.full((size, size, 3), 7, np.uint8)], [0, 1, 1])
    assert len(dataset) == 3
    assert dataset.labels.dtype == np.int32
    assert (dataset.image(0, 16) == dataset.image(1, 16)).all()
    assert dataset.image(2, 5).tolist() == np.full((5, 5, 3), 7).tolist()
    assert dataset.image(0, 16).shape == (16, 16, 3)
    unreadable = make([b"nonsense", tmp_path / "gone.png"], [0, 1])
    for i, match in enumerate(("^Picture 0 ", "gone.png")):
        with pytest.raises(DataError, match=match):
            unreadable.image(i, 8)
    for labels in ([0], [0, 2], [-1, 0], [[0, 1]]):
        with pytest.raises(DataError, match="few: "):
            make([b"", b""], labels)


@pytest.fixture
def small(monkeypatch):
    """A limit of 1 MB for pictures."""
    limit = DecodingLimit(1_000_000)
    monkeypatch.setattr(pictures, "decoding", limit)
    return limit


def encoded(size, kind, mode="RGB", **options):
    y, x = np.mgrid[0:size, 0:size]
    pixels = np.stack([x % 256, y % 256, (x + y) % 256, x * 0 + 128], 2).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., : len(mode)]).save(buffer, kind, **options)
    return buffer.getvalue()


def test_threads_wait_for_each_other():
    limit, held, most, lock = DecodingLimit(10), 0, 0, threading.Lock()

    def work(nbytes):
        nonlocal held, most
        with limit.hold(nbytes, "x"):
            with lock:
                held, most = held + nbytes, max(most, held + nbytes)
            time.sleep(0.002)
            with lock:
                held -= nbytes

    each(work, [6, 5, 4, 10, 1, 1, 1, 7] * 4)
    assert held == 0 and 0 < most <= 10 and files.LIMIT >= 8 * pictures.MAX_PIXELS
    with pytest.raises(DataError, match="x"), limit.hold(11, "x"):
        pass


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_a_picture_that_takes_too_much_is_refused_before_it_is_decoded(small, mode):
    assert pictures.decode(encoded(150, "PNG", mode), 32, "p").shape == (32, 32, 3)
    with pytest.raises(DataError, match=r"^huge\.png .*1\.00 MB"):
        pictures.decode(encoded(400, "PNG", mode), 32, "huge.png")
    assert pictures.decode(encoded(150, "PNG"), 32, "p").shape == (32, 32, 3)


def test_a_jpeg_is_decoded_at_a_smaller_scale(small):
    assert pictures.decode(encoded(1600, "JPEG"), 32, "p").shape == (32, 32, 3)
    with pytest.raises(DataError, match=r"^p "):  # it would hold all coefficients
        pictures.decode(encoded(1600, "JPEG", progressive=True), 32, "p")


def test_sound_that_grows_by_resampling_is_refused(monkeypatch):
    soundfile = pytest.importorskip("soundfile")
    from edgelearn.data import audio as sounds

    monkeypatch.setattr(sounds, "decoding", DecodingLimit(1_000_000))
    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros(100_000), 4000, format="FLAC")
    assert sounds.read(buffer.getvalue(), "s")[0].shape == (100_000,)
    with pytest.raises(DataError, match=r"^s .*4\.00 MB"):
        sounds.decode(buffer.getvalue(), "s")


def test_results_come_in_order():
    def slow_first(value):
        time.sleep(0.02 * (value == 0))
        return value**2

    assert each(slow_first, range(9)) == [value**2 for value in range(9)]
    assert each(slow_first, []) == []


def test_the_first_error_stops_what_has_not_begun():
    begun = []

    def fail(value):
        begun.append(value)
        time.sleep(0.005)
        raise ValueError(value)

    with pytest.raises(ValueError, match=r"^0$"):
        each(fail, range(500))
    assert len(begun) < 100


def test_data_sets_of_the_same_pictures_have_the_same_fingerprint(tmp_path):
    drawn, other = embedded_flowers(3).fingerprint(), embedded_flowers(4).fingerprint()
    assert drawn == embedded_flowers(3).fingerprint() != other
    path = tmp_path / "a.png"
    path.write_bytes(b"one")

    def fingerprint(item):
        return ImageDataset("few", "folder", "A picture.", ("a",), np.zeros(1, int), [item]).fingerprint()

    before = fingerprint(path)
    assert before == fingerprint(path) and fingerprint(b"one") == fingerprint(b"one") != fingerprint(b"two")
    path.write_bytes(b"other")
    assert fingerprint(path) != before
    path.unlink()
    assert fingerprint(path) is None and fingerprint(lambda size: np.zeros((size, size, 3), np.uint8)) is None
