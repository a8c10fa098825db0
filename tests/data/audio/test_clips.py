from functools import partial

import numpy as np
import pytest

from edgelearn.data.audio import ClipDataset, load_clips
from edgelearn.errors import DataError, ShapeError


@pytest.fixture
def dataset(encode, tone):
    """A clip of each kind: encoded at another rate, samples as integers and floats, a function."""
    items = [
        encode(tone(rate=8000), 8000, "FLAC"),
        np.round(tone() * 32768).astype(np.int16),
        tone(),
        lambda rate: tone(440, 1, rate),
    ]
    return ClipDataset("four", "folder", "Four.", ("a", "b"), [0, 1, 0, 1], ["x", "x", "y", ""], items)


@pytest.mark.parametrize("rate", [16000, 8000])
def test_all_kinds_sound_the_same(dataset, tone, rate):
    clips = load_clips(dataset, rate=rate)
    assert clips.dtype == np.float32
    for clip in clips:
        np.testing.assert_allclose(clip[500:-500], tone(440, 1, rate)[500:-500], atol=2e-3)


def test_order_length_and_out(dataset):
    out = np.empty((3, 8000), np.float32)
    assert load_clips(dataset, np.array([2, 0, 2]), seconds=0.5, out=out) is out
    np.testing.assert_array_equal(out[0], out[2])
    np.testing.assert_array_equal(out[0], dataset.clip(2, seconds=0.5))
    assert load_clips(dataset, [], seconds=2).shape == (0, 32000)
    with pytest.raises(ShapeError, match=r"\(1, 16000\).*\(3, 8000\)"):
        load_clips(dataset, [1], out=out)


def test_parts(dataset):
    part = dataset.take(dataset.speakers == "x")
    assert len(part) == 2 and part.words.tolist() == ["a", "b"] and part.class_names == ("a", "b")
    assert len(dataset.take([])) == 0 and dataset.take([-1]).speakers.tolist() == [""]
    only = dataset.only(["b"])
    assert only.labels.tolist() == [0, 0] and only.class_names == ("b",) and only.speakers.tolist() == ["x", ""]
    assert dataset.only(["b", "a"]).words.tolist() == dataset.words.tolist()
    with pytest.raises(DataError, match=r"'c'.* a, b"):
        dataset.only(["c"])


def test_a_clip_that_cannot_be_read_is_named(dataset, tmp_path):
    bad = ClipDataset("bad", "folder", "Bad.", ("a",), [0], [""], [tmp_path / "gone.wav"])
    with pytest.raises(DataError, match=r"gone\.wav"):
        load_clips(bad)


def test_what_does_not_fit_is_refused():
    make = partial(ClipDataset, "n", "folder", "N.", ("a",))
    for labels, speakers, message in (
        ([0, 0], [""], "labels"),
        ([0], [], "speakers"),
        ([1], [""], "1 to 1"),
    ):
        with pytest.raises(DataError, match=message):
            make(labels, speakers, [b""])
