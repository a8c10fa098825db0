"""The standard division of Speech Commands' speakers into training, validation and testing.

A hash of the speaker's name decides (Warden 2018, section 7; TensorFlow's examples/speech_commands/input_data.py), so
that the division stays when recordings are added. It works for any data set with speakers' names.
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
    """The part of a speaker, one of PARTS. `validation`, `testing`: percentages (default 10 each)."""
    percentage = int(sha1(speaker.encode()).hexdigest(), 16) % (_HASHES + 1) * (100 / _HASHES)
    if percentage < validation:
        return "validation"
    return "testing" if percentage < validation + testing else "training"


def part_of(dataset: ClipDataset, part: str, words: Sequence[str] | None = None) -> ClipDataset:
    """The clips by the speakers of a part.

    Arguments:
    - `dataset`: the clips.
    - `part`: one of PARTS.
    - `words`: names of the words to keep (default: all).

    Raises DataError for another part, a missing word, or clips without a speaker.
    """
    if part not in PARTS:
        raise DataError(f"There is no part {part!r}. Parts are {', '.join(PARTS)}.")
    require_speakers(dataset)
    names, which = np.unique(dataset.speakers, return_inverse=True)
    inside = np.array([which_set(name) == part for name in names.tolist()])
    some = dataset.take(inside[which])
    return some if words is None else some.only(words)
