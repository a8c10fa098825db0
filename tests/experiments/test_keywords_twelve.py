import numpy as np
import pytest

from edgelearn.data.audio.augment import synthetic_noises
from edgelearn.data.audio.clips import ClipDataset
from edgelearn.data.audio.speech_commands import CLASSES, COMMANDS
from edgelearn.errors import DataError
from edgelearn.experiments.keywords import twelve_classes, which_set
from edgelearn.experiments.keywords.speakers import PARTS


def words(*names, takes=2, speakers=300):
    every = [
        (label, f"{number:08x}") for label in range(len(names)) for number in range(speakers) for _ in range(takes)
    ]
    labels, who = zip(*every, strict=True)
    return ClipDataset("words", "folder", "Words.", names, labels, who, [np.zeros(1, np.float32)] * len(every))


def test_twelve_classes():
    dataset = words(*COMMANDS, "bed", "cat", "dog")
    noises = synthetic_noises(0, 20)
    found = twelve_classes(dataset, noises, seed=1)
    assert tuple(found) == PARTS
    for part, clips in found.items():
        assert clips.class_names == CLASSES and part in clips.name
        counts = np.bincount(clips.labels)
        commands = counts[2:].sum()
        assert counts[0] == counts[1] == -(-commands // 10) and len(set(counts[2:])) == 1
        assert {which_set(speaker) for speaker in clips.speakers[clips.labels > 0]} == {part}
        silences = np.stack([clips.items[i] for i in np.flatnonzero(clips.labels == 0)])
        assert silences.shape[1] == 16000 and silences.std(1).max() > 2 * silences.std(1).min()
    again, other = (twelve_classes(dataset, noises, seed=seed)["testing"] for seed in (1, 2))
    np.testing.assert_array_equal(again.items[-1], found["testing"].items[-1])
    assert (other.items[-1] != again.items[-1]).any()


def test_what_is_missing_is_named():
    noises = synthetic_noises(0, 10)
    with pytest.raises(DataError, match="lacks the command 'yes'"):
        twelve_classes(words(*COMMANDS[:-1], "bed"), noises)
    with pytest.raises(DataError, match="recordings of background noise"):
        twelve_classes(words(*COMMANDS, "bed"), [])
    with pytest.raises(DataError, match="at least 10 seconds"):
        twelve_classes(words(*COMMANDS, "bed"), [*noises, noises[0][:-1]])
    with pytest.raises(DataError, match="has 0 clips of other words for training, of 458"):
        twelve_classes(words(*COMMANDS), noises)


def test_parts_hear_silences_of_different_stretches():
    noise = np.ones(320_000, np.float32)
    noise[256_000:288_000] = -1
    noise[288_000::2] = -1
    found = twelve_classes(words(*COMMANDS, "bed"), [noise])
    for part, signs in (("training", {1}), ("validation", {-1}), ("testing", {-1, 1})):
        silences = [found[part].items[i] for i in np.flatnonzero(found[part].labels == 0)]
        assert all(set(np.sign(silence)) == signs for silence in silences)
