"""Words and speakers that are trained on, and other ones that are tested."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgelearn.data.audio.clips import ClipDataset
from edgelearn.errors import DataError

_WORDS, _SPEAKERS, _CORE = 30, 31, 32  # keep these random streams of a seed apart from others
_CORE_SPEAKERS = 1000


class LeakError(DataError):
    """A word or a speaker that is tested was trained on."""


@dataclass(frozen=True)
class Split:
    """Clips to train with, and clips to test with that have other words, other speakers or both."""

    train: ClipDataset
    test: ClipDataset


def hold_out(
    dataset: ClipDataset,
    words: int | Sequence[str] = 0,
    speakers: int | Sequence[str] = 0,
    seed: int = 0,
) -> Split:
    """Test clips are those of held-out `words` by held-out `speakers`, each named or a number to be drawn with `seed`;
    with 0 of them, every word or every speaker is in both. Training clips have neither; those that have one of the two
    are used for nothing.

    Raises DataError for a word or speaker that isn't there, a number that leaves nothing to train or to test with, or
    speakers that aren't known.
    """
    train, test = np.ones(len(dataset), bool), np.ones(len(dataset), bool)
    present = dataset.words
    for chosen, values, what, stream in (
        (words, present, "words", _WORDS),
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
    """Raises LeakError when a word (if `words`) or a speaker (if `speakers`) is in both, DataError when it can't be
    told, because clips don't say who speaks."""
    if words and (both := np.intersect1d(train.words, test.words)).size:
        raise LeakError(f"Tested words were trained on: {_some(both)}. Split the words again.")
    if speakers:
        require_speakers(train)
        require_speakers(test)
        if (both := np.intersect1d(train.speakers, test.speakers)).size:
            raise LeakError(f"Tested speakers were trained on: {_some(both)}. Split the speakers again.")


@dataclass(frozen=True)
class WordSplit:
    """Words to train, validate and test with, and words that are always unknown. Raises LeakError if they overlap."""

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
# have the sizes of splitGSC (Kim et al. 2022), whose own lists are published nowhere that could be read here.
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


def core_words(dataset: ClipDataset, validation: int = 3, test: int = 3, seed: int = 0) -> WordSplit:
    """Parnami and Lee 2020, "Few-Shot Keyword Spotting With Prototypical Networks", arXiv:2007.14463: words with at
    least 1,000 speakers (30 of Speech Commands') are divided at random, the others are unknown. Raises DataError when
    too few words have so many speakers, or they aren't known."""
    require_speakers(dataset)
    words = dataset.words
    count = {word: len(np.unique(dataset.speakers[words == word])) for word in dataset.class_names}
    core = [word for word, speakers in count.items() if speakers >= _CORE_SPEAKERS]
    if len(core) <= validation + test:
        raise DataError(
            f"{len(core)} words of {dataset.name} have {_CORE_SPEAKERS} speakers or more: too few to validate with "
            f"{validation} and test with {test}. Use all of Speech Commands, or hold_out."
        )
    order = np.random.default_rng([seed, _CORE]).permutation(sorted(core)).tolist()
    first, last = order[:validation], order[validation : validation + test]
    return WordSplit(
        train=tuple(sorted(order[validation + test :])),
        validation=tuple(sorted(first)),
        test=tuple(sorted(last)),
        unknown=tuple(sorted(set(count) - set(core))),
    )


def _choose(chosen: int | Sequence[str], there: np.ndarray, what: str, name: str, seed: list[int]) -> np.ndarray:
    if not isinstance(chosen, int):
        if missing := sorted(set(chosen) - set(there.tolist())):
            raise DataError(f"{name} doesn't have the {what} {_some(missing)}. It has {_some(there, 40)}.")
        return np.asarray(list(chosen))
    if not 0 < chosen < len(there):
        raise DataError(f"{name} has {len(there)} {what}: 1 to {len(there) - 1} can be held out, not {chosen}.")
    return np.random.default_rng(seed).permutation(there)[:chosen]


def require_speakers(dataset: ClipDataset) -> None:
    """Raises DataError when clips don't say who speaks."""
    unknown = np.count_nonzero(dataset.speakers == "")
    if unknown:
        raise DataError(
            f"{unknown:,} clips of {dataset.name} don't say who speaks, so speakers can't be kept apart. Name files "
            f"<speaker>_nohash_<n>, or leave those clips out."
        )


def _with_own_words(dataset: ClipDataset) -> ClipDataset:
    words = set(dataset.words.tolist())
    return dataset.only([word for word in dataset.class_names if word in words])


def _some(values, limit: int = 5) -> str:
    values = list(values)
    return ", ".join(values[:limit]) + (f" and {len(values) - limit} more" if len(values) > limit else "")
