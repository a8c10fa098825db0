"""The protocol of twelve classes: ten commands, any other word, and silence (Warden 2018, section 7).

Speakers are divided by a hash of their name, as TensorFlow's example speech_commands does (input_data.py), so that the
division is everybody's. Which clips stand for unknown words and for silence is drawn here with a seed: the canonical
test set comes as an archive of its own and has other ones.
"""

from dataclasses import replace
from hashlib import sha1
from math import ceil

import numpy as np

from edgelearn.data.audio import RATE
from edgelearn.data.audio.augment import stretch
from edgelearn.data.audio.clips import ClipDataset
from edgelearn.data.audio.speech_commands import CLASSES, COMMANDS
from edgelearn.errors import DataError

from .splits import check_disjoint, require_speakers

PARTS = ("training", "validation", "testing")
_STREAM = 33  # keeps this random stream of a seed apart from others
_HASHES = 2**27 - 1


def which_set(speaker: str, validation: float = 10, testing: float = 10) -> str:
    """Which of PARTS a speaker is in, given the percentages of two of them."""
    percentage = int(sha1(speaker.encode()).hexdigest(), 16) % (_HASHES + 1) * (100 / _HASHES)
    if percentage < validation:
        return "validation"
    return "testing" if percentage < validation + testing else "training"


def twelve_classes(
    dataset: ClipDataset, noises: list[np.ndarray], seed: int = 0, unknown: float = 10, silence: float = 10
) -> dict[str, ClipDataset]:
    """The three PARTS of `dataset`, a folder of all words, with the labels of CLASSES. `unknown` and `silence` are how
    many percent of the commands' clips there are of the two in each part.

    noises: background recordings (load_noises); the parts' silences are seconds of different stretches of them, at
    random volume.

    Raises DataError when a command or the other words are missing, there are no noises, or clips don't say who speaks.
    """
    if missing := sorted(set(COMMANDS) - set(dataset.class_names)):
        raise DataError(f"{dataset.name} lacks the command {missing[0]!r}. The protocol needs {', '.join(COMMANDS)}.")
    if not noises:
        raise DataError("The protocol needs recordings of background noise for silence. See load_noises.")
    require_speakers(dataset)
    part_of = {speaker: which_set(speaker) for speaker in np.unique(dataset.speakers).tolist()}
    parts = np.array([part_of[speaker] for speaker in dataset.speakers.tolist()])
    is_command = np.isin(dataset.words, COMMANDS)
    found = {}
    for number, (part, first, last) in enumerate(zip(PARTS, (0.0, 0.8, 0.9), (0.8, 0.9, 1.0), strict=True)):
        rng = np.random.default_rng([seed, _STREAM, number])
        commands = np.flatnonzero(is_command & (parts == part))
        others = rng.permutation(np.flatnonzero(~is_command & (parts == part)))
        wanted = ceil(len(commands) * unknown / 100)
        if len(others) < wanted:
            raise DataError(
                f"{dataset.name} has {len(others)} clips of other words for {part}, of {wanted} that the protocol "
                f"needs. Use all 35 words."
            )
        chosen = np.concatenate([commands, others[:wanted]])
        pieces = [noise[int(first * len(noise)) : max(int(last * len(noise)), 1)] for noise in noises]
        silences = [_silence(pieces, rng) for _ in range(ceil(len(commands) * silence / 100))]
        found[part] = _labelled(dataset.take(chosen), silences, part)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        check_disjoint(*(_spoken(found[PARTS[k]]) for k in (one, other)), words=False)
    return found


def _silence(pieces: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    noise = pieces[rng.integers(len(pieces))]
    return np.float32(rng.random()) * stretch(noise, RATE, rng.random())


def _labelled(dataset: ClipDataset, silences: list[np.ndarray], part: str) -> ClipDataset:
    number = {word: CLASSES.index(word) if word in COMMANDS else 1 for word in dataset.class_names}
    labels = [number[word] for word in dataset.words.tolist()] + [0] * len(silences)
    return replace(
        dataset,
        name=f"{dataset.name}, 12 classes, {part}",
        description=f"{len(labels):,} clips of the 12 classes for {part}, from: {dataset.description}",
        class_names=CLASSES,
        labels=labels,
        speakers=[*dataset.speakers.tolist(), *[""] * len(silences)],
        items=[*dataset.items, *silences],
    )


def _spoken(dataset: ClipDataset) -> ClipDataset:
    return dataset.take(dataset.labels > 0)
