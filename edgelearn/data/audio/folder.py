"""A folder of recordings with a subfolder for each word, such as Speech Commands or a user's own recordings."""

import os
import re
from pathlib import Path

import numpy as np

from edgelearn.data.subfolders import files_below, printable, subfolders, usable_files
from edgelearn.data.threads import each
from edgelearn.errors import DataError

from . import RATE
from .clips import UNKNOWN, ClipDataset
from .decode import decode, read

NOISE_FOLDER = "_background_noise_"  # long recordings to mix in, not a word
_LAYOUT = "Expected a folder with a subfolder of WAV, FLAC or OGG recordings for each word, such as yes/ and no/."
_SUFFIXES = (".wav", ".flac", ".ogg")  # Speech Commands' noise folder also has a README
_SPEAKER = re.compile(r"(.+)_nohash_.*")


def load_folder(path: str | os.PathLike, speaker: str = "") -> ClipDataset:
    """Load a folder whose subfolders, except `_background_noise_`, are the words, numbered in sorted order.

    Recordings may have any rate, length and number of channels and lie in nested folders; hidden files are ignored.
    Every file is decoded once, so that none can fail during training; unusable files are listed in `skipped`.

    Arguments:
    - `speaker`: speaker of files whose name has none; names have the form `<speaker>_nohash_<n>`, in `_unknown_`
      `<word>_<speaker>_nohash_<n>` (default "", unknown).

    Raises DataError if there is no such folder, it has no words, or a word has no usable recording.
    """
    root, words = subfolders(path, "sound folder", _LAYOUT)
    words = [word for word in words if word != NOISE_FOLDER]
    if not words:
        raise DataError(f"The sound folder {root} has no words, only {NOISE_FOLDER}. {_LAYOUT}")
    found = usable_files(root, words, read)
    found.require(
        1, lambda word, _: f"The word {word!r} in {root} has no usable recording.", "WAV, FLAC or OGG recordings"
    )
    return ClipDataset(
        name=printable(root.resolve().name),
        origin="folder",
        description=f"{len(found.files):,} clips of {len(words)} words from the folder {root}"
        + (f"; {len(found.skipped)} file(s) skipped." if found.skipped else "."),
        class_names=tuple(map(printable, words)),
        labels=found.labels,
        speakers=np.array(
            [
                speaker_of(printable(file.name), printable(words[label])) or speaker
                for label, file in zip(found.labels, found.files, strict=True)
            ],
            np.str_,
        ),
        items=found.files,
        skipped=found.skipped,
    )


def load_noises(path: str | os.PathLike, rate: int = RATE) -> list[np.ndarray]:
    """Load whole recordings from `path`, or from its `_background_noise_`: float32 (samples,) at `rate`.

    Raises DataError if there are none, or one can't be read.
    """
    folder = Path(path).expanduser()
    if (folder / NOISE_FOLDER).is_dir():
        folder = folder / NOISE_FOLDER
    files = [file for file in files_below(folder) if file.suffix.lower() in _SUFFIXES]
    if not files:
        raise DataError(f"There are no WAV, FLAC or OGG recordings of noise in {folder}. Give another folder.")
    return each(lambda file: decode(file, str(file), rate), files)


def speaker_of(file_name: str, word: str) -> str:
    """Speaker in the name of a file in the folder of `word`, or ""."""
    match = _SPEAKER.fullmatch(file_name)
    if not match:
        return ""
    return match[1].partition("_")[2] if word == UNKNOWN else match[1]
