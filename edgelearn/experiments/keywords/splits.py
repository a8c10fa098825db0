"""Splits: words and speakers to train with, and other ones to test with."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgelearn.data.audio.clips import ClipDataset
from edgelearn.errors import DataError

_WORDS, _SPEAKERS = 30, 31  # keep these random streams of a seed apart from others


class LeakError(DataError):
    """A tested word or speaker is in the training set, too."""


@dataclass(frozen=True)
class Split:
    """Clips to `train` with, and clips of other words, other speakers, or both, to `test` with."""

    train: ClipDataset
    test: ClipDataset


def hold_out(
    dataset: ClipDataset,
    words: int | Sequence[str] = 0,
    speakers: int | Sequence[str] = 0,
    seed: int = 0,
) -> Split:
    """Test with held-out words by held-out speakers, train without both.

    Clips of a held-out word by another speaker, or the other way round, are not used.

    Arguments:
    - `dataset`: the clips.
    - `words`: names, or a number to be drawn; 0 leaves every word in both parts (default).
    - `speakers`: names, or a number to be drawn; 0 leaves every speaker in both parts (default).
    - `seed`: of the draws.

    Raises DataError for a missing word or speaker, a number that leaves nothing to train or to test with, or clips
    without a speaker.
    """
    train, test = np.ones(len(dataset), bool), np.ones(len(dataset), bool)
    for chosen, values, what, stream in (
        (words, dataset.words, "words", _WORDS),
        (speakers, dataset.speakers, "speakers", _SPEAKERS),
    ):
        if not chosen:
            continue
        if what == "speakers":
            require_speakers(dataset)
        held = np.isin(values, _choose(chosen, np.unique(values), what, dataset.name, [seed, stream]))
        train, test = train & ~held, test & held
    if not train.any() or not test.any():
        left = "test" if train.any() else "train"
        raise DataError(f"{dataset.name} has no clips left to {left} with. Hold out other words or speakers.")
    split = Split(_with_own_words(dataset.take(train)), _with_own_words(dataset.take(test)))
    check_disjoint(split.train, split.test, words=bool(words), speakers=bool(speakers))
    return split


def check_disjoint(train: ClipDataset, test: ClipDataset, words: bool = True, speakers: bool = True) -> None:
    """Raise LeakError if a word (unless `words` is False) or a speaker (unless `speakers` is False) is in both parts,
    and DataError if clips have no speaker."""
    if words and (both := np.intersect1d(train.words, test.words)).size:
        raise LeakError(f"Tested words were trained on: {_some(both)}. Split the words again.")
    if speakers:
        require_speakers(train)
        require_speakers(test)
        if (both := np.intersect1d(train.speakers, test.speakers)).size:
            raise LeakError(f"Tested speakers were trained on: {_some(both)}. Split the speakers again.")


@dataclass(frozen=True)
class WordSplit:
    """Words to `train`, to `test` and for `validation`, and words that are always `unknown`. Raises LeakError if these
    overlap."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    validation: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def __post_init__(self):
        words = [*self.train, *self.validation, *self.test, *self.unknown]
        if twice := sorted({word for word in words if words.count(word) > 1}):
            raise LeakError(f"Words are in more than one part of the split: {_some(twice)}. Leave each in one.")


_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_COMMANDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
_OTHERS = ("cat", "tree", "house", "bird", "visual", "backward", "follow", "forward", "learn", "sheila")
_UNKNOWN = ("bed", "dog", "happy", "marvin", "wow")

# Published splits of Speech Commands' 35 words: Chen et al. 2020, "An Investigation of Few-Shot Learning in Spoken Term
# Classification", arXiv:1812.10233; and the tasks for meta-training, -validation and -testing in the code of Rusci and
# Tuytelaars 2023, "Few-Shot Open-Set Learning for On-Device Customization of KeyWord Spotting Systems",
# arXiv:2306.02161 (github.com/mrusci/ondevice-learning-kws, KWSFSL/data/GSCSpeechData.py: GSC10, GSC5, GSC12). Theirs
# have the sizes of splitGSC (Kim et al. 2022), whose own lists could not be obtained.
WORD_SPLITS = {
    "chen2020-commands": WordSplit(train=(*_DIGITS, *_OTHERS), test=_COMMANDS, unknown=_UNKNOWN),
    "chen2020-digits": WordSplit(train=(*_COMMANDS, *_OTHERS), test=_DIGITS, unknown=_UNKNOWN),
    "rusci2023": WordSplit(
        train=(*_DIGITS, "bed", "bird", "cat", "dog", "tree"),
        validation=("happy", "house", "marvin", "sheila", "wow"),
        test=_COMMANDS,
        unknown=("backward", "follow", "forward", "learn", "visual"),
    ),
}


def _choose(chosen: int | Sequence[str], available: np.ndarray, what: str, name: str, seed: list[int]) -> np.ndarray:
    if not isinstance(chosen, int):
        if missing := sorted(set(chosen) - set(available.tolist())):
            raise DataError(f"{name} doesn't have the {what} {_some(missing)}. It has {_some(available, 40)}.")
        return np.asarray(list(chosen))
    if not 0 < chosen < len(available):
        raise DataError(f"{name} has {len(available)} {what}: 1 to {len(available) - 1} can be held out, not {chosen}.")
    return np.random.default_rng(seed).permutation(available)[:chosen]


def require_speakers(dataset: ClipDataset) -> None:
    """Raise DataError if clips have no speaker."""
    unknown = np.count_nonzero(dataset.speakers == "")
    if unknown:
        raise DataError(
            f"{unknown:,} clips of {dataset.name} have no speaker, so speakers can't be kept apart. Name files "
            f"<speaker>_nohash_<n>, or leave those clips out."
        )


def _with_own_words(dataset: ClipDataset) -> ClipDataset:
    words = set(dataset.words.tolist())
    return dataset.only([word for word in dataset.class_names if word in words])


def _some(values, limit: int = 5) -> str:
    values = list(values)
    return ", ".join(values[:limit]) + (f" and {len(values) - limit} more" if len(values) > limit else "")
