"""The protocol of twelve classes: ten commands, any other word, and silence (Warden 2018, section 7).

Speakers are divided as everybody divides them. Which clips stand for unknown words and for silence is drawn here with
a seed: the canonical test set comes as an archive of its own and has other ones.
"""

from dataclasses import replace
from math import ceil

import numpy as np

from edgelearn.data.audio import RATE
from edgelearn.data.audio.augment import stretch
from edgelearn.data.audio.clips import ClipDataset
from edgelearn.data.audio.speech_commands import CLASSES, COMMANDS
from edgelearn.errors import DataError

from .speakers import PARTS, part_of

_STREAM = 33  # keeps this random stream of a seed apart from others
_NOISE_SECONDS = 10


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
    if not noises or min(map(len, noises)) < _NOISE_SECONDS * RATE:
        raise DataError(
            f"The protocol needs recordings of background noise for silence, at least {_NOISE_SECONDS} seconds long, "
            f"since its parts hear different stretches of them. See load_noises."
        )
    found = {}
    for number, (part, first, last) in enumerate(zip(PARTS, (0.0, 0.8, 0.9), (0.8, 0.9, 1.0), strict=True)):
        rng = np.random.default_rng([seed, _STREAM, number])
        clips = part_of(dataset, part)
        is_command = np.isin(clips.words, COMMANDS)
        commands, others = np.flatnonzero(is_command), rng.permutation(np.flatnonzero(~is_command))
        wanted = ceil(len(commands) * unknown / 100)
        if len(others) < wanted:
            raise DataError(
                f"{dataset.name} has {len(others)} clips of other words for {part}, of {wanted} that the protocol "
                f"needs. Use all 35 words."
            )
        chosen = np.concatenate([commands, others[:wanted]])
        pieces = [noise[int(first * len(noise)) : int(last * len(noise))] for noise in noises]
        silences = [_silence(pieces, rng) for _ in range(ceil(len(commands) * silence / 100))]
        found[part] = _labelled(clips.take(chosen), silences, part)
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
