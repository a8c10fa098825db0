from dataclasses import replace

import pytest

from edgelearn.data import flowers
from edgelearn.data.flowers import TF_FLOWERS, load_flowers
from edgelearn.errors import DataError


@pytest.fixture
def no_network(nowhere, monkeypatch):
    monkeypatch.setattr(flowers, "TF_FLOWERS", replace(TF_FLOWERS, url="http://127.0.0.1:9/flowers.tgz"))


def test_the_sample_when_asked_for(nowhere):
    dataset = load_flowers(embedded=True)
    assert dataset.origin == "embedded sample"
    assert dataset.description == "The embedded sample: 1,000 drawn flowers of 5 kinds, as asked for."


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


def test_prepared_flowers(small_prepared, no_network, monkeypatch):
    monkeypatch.setenv("EDGELEARN_DATA", str(small_prepared[0]))
    dataset = load_flowers()
    assert dataset.origin == "EDGELEARN_DATA" and len(dataset) == 10
