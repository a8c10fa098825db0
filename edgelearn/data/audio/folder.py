"""A folder of recordings with a subfolder for each word, as Speech Commands has it and as one records one's own."""

import os
import re
from pathlib import Path

import numpy as np

from edgelearn.data.audio import RATE
from edgelearn.data.audio.clips import UNKNOWN, ClipDataset
from edgelearn.data.audio.decode import decode, read
from edgelearn.data.subfolders import files_below, not_a_file, subfolders
from edgelearn.data.threads import each
from edgelearn.errors import DataError

NOISE_FOLDER = "_background_noise_"  # long recordings to mix in: no word
_LAYOUT = "Expected a folder with a subfolder of WAV, FLAC or OGG recordings for each word, such as yes/ and no/."
_SUFFIXES = (".wav", ".flac", ".ogg")  # Speech Commands' noises have a README beside them
_SPEAKER = re.compile(r"(.+)_nohash_.*")


def load_folder(path: str | os.PathLike, speaker: str = "") -> ClipDataset:
    """Read `path`, whose subfolders are the words, named and numbered in sorted order; `_background_noise_` is none.

    Recordings may have any rate, length and number of channels and lie in nested folders; hidden files are ignored.
    A file called `<speaker>_nohash_<n>` says who speaks (in `_unknown_`, `<word>_<speaker>_nohash_<n>`); elsewhere it
    is `speaker`, "" for not known. Every file is decoded once, so that none can fail during training: those that can't
    be used are listed in `skipped`.

    Raises DataError when there is no such folder, it has no words, or a word has no usable recording.
    """
    root, words = subfolders(path, "sound folder", _LAYOUT)
    words = [word for word in words if word != NOISE_FOLDER]
    if not words:
        raise DataError(f"The sound folder {root} has no words, only {NOISE_FOLDER}. {_LAYOUT}")
    found = [(label, file) for label, word in enumerate(words) for file in files_below(root / word)]
    problems = each(_problem, [file for _, file in found])
    usable = [entry for entry, problem in zip(found, problems, strict=True) if not problem]
    skipped = [(str(file), problem) for (_, file), problem in zip(found, problems, strict=True) if problem]
    labels = np.array([label for label, _ in usable], np.int32)
    for word, count in zip(words, np.bincount(labels, minlength=len(words)), strict=True):
        if not count:
            lost = [reason for file, reason in skipped if (root / word) in Path(file).parents]
            raise DataError(
                f"The word {word!r} in {root} has no usable recording."
                + (f" {len(lost)} file(s) could not be used, the first because: {lost[0]}" if lost else "")
                + f" Add WAV, FLAC or OGG recordings to {root / word}, or remove that folder."
            )
    return ClipDataset(
        name=root.resolve().name,
        origin="folder",
        description=f"{len(usable):,} clips of {len(words)} words from the folder {root}"
        + (f"; {len(skipped)} file(s) skipped." if skipped else "."),
        class_names=tuple(words),
        labels=labels,
        speakers=[speaker_of(file.name, words[label]) or speaker for label, file in usable],
        items=[file for _, file in usable],
        skipped=skipped,
    )


def load_noises(path: str | os.PathLike, rate: int = RATE) -> list[np.ndarray]:
    """The recordings in `path` (or in its `_background_noise_`, if it has one), whole: float32 (samples,) at `rate`.

    Raises DataError when there are none, or one can't be read.
    """
    folder = Path(path).expanduser()
    if (folder / NOISE_FOLDER).is_dir():
        folder = folder / NOISE_FOLDER
    files = [file for file in files_below(folder) if file.suffix.lower() in _SUFFIXES]
    if not files:
        raise DataError(f"There are no WAV, FLAC or OGG recordings of noise in {folder}. Give another folder.")
    return each(lambda file: decode(file, str(file), rate), files)


def speaker_of(file_name: str, word: str) -> str:
    """Who speaks in a file of that name in the folder of `word`, "" if the name doesn't say."""
    match = _SPEAKER.fullmatch(file_name)
    if not match:
        return ""
    return match[1].partition("_")[2] if word == UNKNOWN else match[1]


def _problem(file: Path) -> str | None:
    """Why this file can't be used, or None."""
    if problem := not_a_file(file):
        return problem
    try:
        read(file, str(file))
    except DataError as error:
        return str(error)
    return None
