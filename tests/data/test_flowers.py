from dataclasses import replace

import numpy as np
import pytest

from edgelearn.data import flowers
from edgelearn.data.flowers import KINDS, TF_FLOWERS, draw_flower, embedded_flowers, load_flowers
from edgelearn.errors import DataError


@pytest.fixture
def no_network(nowhere, monkeypatch):
    monkeypatch.setattr(flowers, "TF_FLOWERS", replace(TF_FLOWERS, url="http://127.0.0.1:9/flowers.tgz"))


def test_the_sample_when_asked_for(nowhere):
    dataset = load_flowers(embedded=True)
    assert dataset.origin == "embedded sample"
    assert dataset.description == "The embedded sample: 1,000 drawn flowers of 5 kinds, as requested."


def test_the_sample_for_lack_of_a_network(no_network):
    dataset = load_flowers()
    assert dataset.origin == "embedded sample"
    assert dataset.description.startswith("The embedded sample: 1,000 drawn flowers of 5 kinds, because ")
    assert "http://127.0.0.1:9/flowers.tgz cannot be reached" in dataset.description
    assert "\n" not in dataset.description


def test_no_sample_when_no_download_is_wanted(no_network):
    with pytest.raises(DataError, match="tf_flowers"):
        load_flowers(download=False)


def test_a_folder_of_pictures(nowhere, tmp_path, photo):
    for name in "ab":
        (tmp_path / name).mkdir()
        for k in range(2):
            photo.save(tmp_path / name / f"{k}.png")
    assert load_flowers(images=tmp_path).origin == "folder"
    with pytest.raises(DataError, match=str(tmp_path / "c")):
        load_flowers(images=tmp_path / "c")


def test_named_data_without_flowers_is_an_error_and_nothing_else_is_used(no_network, tmp_path, monkeypatch):
    with pytest.raises(DataError, match="tf_flowers"):
        load_flowers(data=tmp_path)
    monkeypatch.setenv("EDGELEARN_DATA", str(tmp_path))
    with pytest.raises(DataError, match="tf_flowers"):
        load_flowers()
    assert load_flowers(embedded=True).origin == "embedded sample"


def test_two_sources_at_once(nowhere, tmp_path):
    with pytest.raises(DataError, match=r"embedded.*images"):
        load_flowers(embedded=True, images=tmp_path)
    with pytest.raises(DataError, match=r"images.*data"):
        load_flowers(images=tmp_path, data=tmp_path)


def test_prepared_flowers(small_prepared, reader_in_fork, no_network, monkeypatch):
    monkeypatch.setenv("EDGELEARN_DATA", str(small_prepared[0]))
    dataset = load_flowers()
    assert dataset.origin == "EDGELEARN_DATA" and len(dataset) == 10


@pytest.mark.parametrize("name", KINDS)
def test_pictures_are_repeatable_and_differ(name):
    first = draw_flower(name, 5, 0, 48)
    assert first.shape == (48, 48, 3) and first.dtype == np.uint8
    assert (first == draw_flower(name, 5, 0, 48)).all()
    assert np.std(first.astype(float)) > 3
    for other in (draw_flower(name, 5, 1, 48), draw_flower(name, 6, 0, 48)):
        assert (first != other).mean() > 0.5


@pytest.mark.parametrize("name", list(KINDS)[:1])
def test_the_same_picture_at_any_size(name):
    small, large = draw_flower(name, 1, 2, 48).astype(float), draw_flower(name, 1, 2, 144).astype(float)
    averaged = large.reshape(48, 3, 48, 3, 3).mean((1, 3))
    assert np.corrcoef(small.ravel(), averaged.ravel())[0, 1] > 0.9


def test_the_embedded_sample():
    dataset = embedded_flowers(n_per_class=3, seed=1)
    assert dataset.class_names == ("dandelion", "daisy", "tulips", "sunflowers", "roses")
    assert dataset.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    assert dataset.origin == "embedded sample" and "embedded sample" in dataset.description
    assert (dataset.image(4, 32) == draw_flower("daisy", 1, 1, 32)).all()


def test_at_least_one_picture():
    with pytest.raises(DataError, match=r"n_per_class=0"):
        embedded_flowers(n_per_class=0)


def test_mean_color_does_not_give_the_kind_away():
    """A nearest-centroid rule and a linear fit on mean colors stay near chance (0.2)."""
    dataset = embedded_flowers(n_per_class=60)
    colors = np.array([dataset.image(i, 24).reshape(-1, 3).mean(0) for i in range(len(dataset))]) / 255
    train = np.arange(len(dataset)) % 2 == 0
    features = np.concatenate([colors, colors**2, np.ones((len(colors), 1))], 1)
    weights = np.linalg.lstsq(features[train], np.eye(5)[dataset.labels[train]], rcond=None)[0]
    accuracy = ((features[~train] @ weights).argmax(1) == dataset.labels[~train]).mean()
    assert accuracy < 0.45
