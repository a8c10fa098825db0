"""Which speakers train, validate and test, as everybody divides Speech Commands.

A hash of the speaker's name decides (Warden 2018, section 7; TensorFlow's examples/speech_commands/input_data.py), so
that the division stays when recordings are added. It works for any set that says who speaks.
"""

from collections.abc import Sequence
from hashlib import sha1

import numpy as np

from edgelearn.data.audio.clips import ClipDataset
from edgelearn.errors import DataError

from .splits import require_speakers

PARTS = ("training", "validation", "testing")
_HASHES = 2**27 - 1


def which_set(speaker: str, validation: float = 10, testing: float = 10) -> str:
    """Which of PARTS a speaker is in, given the percentages of two of them."""
    percentage = int(sha1(speaker.encode()).hexdigest(), 16) % (_HASHES + 1) * (100 / _HASHES)
    if percentage < validation:
        return "validation"
    return "testing" if percentage < validation + testing else "training"


def part_of(dataset: ClipDataset, part: str, words: Sequence[str] | None = None) -> ClipDataset:
    """The clips by the speakers of `part`, one of PARTS, of `words` (default: all). Raises DataError for another part,
    a word that isn't there, or clips that don't say who speaks."""
    if part not in PARTS:
        raise DataError(f"There is no part {part!r}. Parts are {', '.join(PARTS)}.")
    require_speakers(dataset)
    names, which = np.unique(dataset.speakers, return_inverse=True)
    inside = np.array([which_set(name) == part for name in names.tolist()])
    some = dataset.take(inside[which])
    return some if words is None else some.only(words)
