import os

import numpy as np
import pytest
from PIL import Image

from edgelearn.data.pictures import load_folder
from edgelearn.errors import DataError


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
    assert "5 file(s) skipped" in dataset.description


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


def test_missing_folder(tmp_path):
    with pytest.raises(DataError, match="nowhere"):
        load_folder(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=str(tmp_path / "file")):
        load_folder(tmp_path / "file")


def test_no_subfolders(tmp_path, photo):
    photo.save(tmp_path / "a.png")
    with pytest.raises(DataError, match=str(tmp_path)):
        load_folder(tmp_path)


def test_one_class(tmp_path):
    (tmp_path / "roses").mkdir()
    with pytest.raises(DataError, match="'roses'"):
        load_folder(tmp_path)


def test_a_class_with_too_few_usable_pictures(flowers):
    (flowers / "roses" / "a.png").write_bytes(b"x")
    (flowers / "roses" / "b.jpg").write_bytes(b"x")
    with pytest.raises(DataError, match=r"'roses'.* 1 usable.*2 file\(s\).*a\.png"):
        load_folder(flowers)
