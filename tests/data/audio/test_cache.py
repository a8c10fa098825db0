from dataclasses import replace

import numpy as np
import pytest

from edgelearn.data import features
from edgelearn.data.audio import load_folder
from edgelearn.data.features import BC_RESNET, DS_CNN_ARM, compute_features, load_features
from edgelearn.data.synthetic_words import embedded_words


@pytest.fixture
def computed(monkeypatch):
    """How many times features were computed."""
    times = []
    monkeypatch.setattr(features, "compute_features", lambda *given: (times.append(1), compute_features(*given))[1])
    return times


def test_features_are_computed_once_for_each_content_and_setting(tmp_path, folder, computed, encode, tone):
    first = load_features(load_folder(folder), folder=tmp_path)
    np.testing.assert_array_equal(load_features(load_folder(folder), folder=tmp_path), first)
    assert len(computed) == 1 and first.shape == (6, 101, 40) and first.dtype == np.float32
    assert load_features(load_folder(folder), DS_CNN_ARM, folder=tmp_path).shape == (6, 49, 10)
    assert load_features(load_folder(folder), BC_RESNET, 0.5, tmp_path).shape == (6, 51, 40)
    other = replace(BC_RESNET, offset=1.0)  # of the same shape
    assert (load_features(load_folder(folder), other, folder=tmp_path) != first).all()
    file = folder / "no" / "ann_b_nohash_0.wav"
    file.write_bytes(encode(tone(500)))  # the same name, size and, on a coarse clock, time
    changed = load_features(load_folder(folder), folder=tmp_path)
    assert len(computed) == 5
    assert np.flatnonzero((changed != first).any((1, 2))).tolist() == [1]


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "text"])
def test_a_damaged_file_is_noticed_and_made_anew(tmp_path, computed, damage):
    dataset = embedded_words(2, 1, 2)
    whole = load_features(dataset, folder=tmp_path)
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[-1000] ^= 1
    path.write_bytes({"flipped": content, "cut": content[:-4000], "empty": b"", "text": b"{}" * 99}[damage])
    for times in (2, 2):  # made anew, and then kept
        np.testing.assert_array_equal(load_features(dataset, folder=tmp_path), whole)
        assert len(computed) == times
    assert list(tmp_path.iterdir()) == [path]


def test_where_they_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGELEARN_FEATURES", str(tmp_path / "kept"))
    load_features(embedded_words(1, 1, 1))
    assert len(list((tmp_path / "kept").iterdir())) == 1
    monkeypatch.setenv("EDGELEARN_FEATURES", "")
    assert features.cache_folder() is None and load_features(embedded_words(1, 1, 1)).shape == (1, 101, 40)
    monkeypatch.delenv("EDGELEARN_FEATURES")
    assert features.cache_folder().parts[-2:] == ("edgelearn", "features")


def test_no_place_to_keep_them(tmp_path, computed):
    (tmp_path / "file").write_text("")
    for times in (1, 2):
        assert load_features(embedded_words(1, 1, 2), folder=tmp_path / "file" / "below").shape == (2, 101, 40)
        assert len(computed) == times
