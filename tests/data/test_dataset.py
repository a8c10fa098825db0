import numpy as np
import pytest

from edgelearn.data.pictures import ImageDataset
from edgelearn.errors import DataError


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


def test_an_unreadable_picture_is_named(tmp_path):
    dataset = make([b"nonsense", tmp_path / "gone.png"], [0, 1])
    with pytest.raises(DataError, match=r"^Picture 0 "):
        dataset.image(0, 8)
    with pytest.raises(DataError, match=r"gone.png"):
        dataset.image(1, 8)


@pytest.mark.parametrize("labels", [[0], [0, 2], [-1, 0], [[0, 1]]])
def test_labels_must_fit(labels):
    with pytest.raises(DataError, match=r"few: "):
        make([b"", b""], labels)
