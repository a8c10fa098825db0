"""Decode a WAV, FLAC or OGG (Vorbis or Opus) file to one channel at the rate asked for.

soundfile (libsndfile) decodes. soxr resamples: its "HQ" filter keeps what aliases below -100 dB at any ratio of rates,
and it resamples sound that goes on block by block, which scipy.signal.resample_poly doesn't.
"""

import io
import os
import re
from pathlib import Path

import numpy as np

from edgelearn.errors import DataError

from . import RATE

FORMATS = ("WAV", "WAVEX", "FLAC", "OGG")

# A small FLAC of silence can unfold to gigabytes. Longer than any recording of words, far below what hurts.
MAX_SAMPLES = 80_000_000
MIN_RATE, MAX_RATE = 4_000, 768_000  # from telephones to the fastest recorders; others are damaged headers

# libsndfile says so in its log when the header of a WAV announces more bytes than there are, and reads on.
_SHORTENED = re.compile(r"^\s*data : (\d+) \(should be (\d+)\)", re.MULTILINE)
_UNKNOWN_LENGTH = 0x7FFFF000  # what writes to a pipe announces this much or more, not knowing better


def decode(source: bytes | Path, name: str, rate: int = RATE) -> np.ndarray:
    """The whole recording, its channels averaged: float32 of shape (samples,) at `rate`. `name` is what an error calls
    it.

    Raises DataError for a file of another format, one that is damaged, truncated or empty, holds a sample that isn't
    a number, or has more than MAX_SAMPLES or a rate beyond MIN_RATE to MAX_RATE, and where soundfile or soxr is
    missing.
    """
    samples, found = read(source, name)
    return resample(samples, found, rate)


def read(source: bytes | Path, name: str) -> tuple[np.ndarray, int]:
    """As `decode`, at the file's own rate, which comes second."""
    soundfile = package("soundfile")
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    if isinstance(file, Path) and not file.is_file():
        raise DataError(f"There is no recording {name}. Give the path of a WAV, FLAC or OGG file.")
    try:
        with soundfile.SoundFile(file) as sound:
            if sound.format not in FORMATS:
                raise DataError(f"{name} is {sound.format}, not WAV, FLAC or OGG. Convert it, or remove it.")
            rate, announced = sound.samplerate, sound.frames
            if announced * sound.channels > MAX_SAMPLES:
                raise DataError(
                    f"{name} has more than {MAX_SAMPLES / 1e6:.0f} million samples, which can exhaust the memory. "
                    f"Cut it into pieces, or remove it."
                )
            samples = sound.read(announced, dtype="float32", always_2d=True)
            truncated = len(samples) < announced or shortened(sound.extra_info)
    except (soundfile.SoundFileError, TypeError) as error:  # TypeError: a file called .raw
        raise DataError(f"{name} cannot be read as sound: {why(error)}. Remove it or replace it.") from error
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror or error}. Check it, or remove it.") from error
    check_rate(rate, name)
    if truncated:
        raise DataError(f"{name} is truncated: it ends before its header says. Remove it or replace it.")
    if not len(samples):
        raise DataError(f"{name} holds no sound. Remove it or record it again.")
    if not np.isfinite(samples).all():
        raise DataError(f"{name} holds samples that are not numbers. Remove it or replace it.")
    return np.ascontiguousarray(samples.mean(1, dtype=np.float32)), rate


def why(error: Exception) -> str:
    """The reason in soundfile's words."""
    return str(error).split(": ")[-1].rstrip(". ")


def check_rate(rate: int, name: str) -> None:
    """Raises DataError for a rate beyond MIN_RATE to MAX_RATE."""
    if not MIN_RATE <= rate <= MAX_RATE:
        raise DataError(
            f"{name} has {rate:,} samples a second, not {MIN_RATE:,} to {MAX_RATE:,}. Remove it or convert it."
        )


def resample(samples: np.ndarray, old: int, new: int) -> np.ndarray:
    """`samples` (n,) at `old` samples a second, at `new`: float32 of about n · new / old samples, at least one."""
    if old == new:
        return samples
    changed = package("soxr").resample(samples, old, new)
    return changed if len(changed) else samples[:1]


def fit(samples: np.ndarray, length: int) -> np.ndarray:
    """`samples` (n,) as (length,): zeros behind a shorter recording, and of a longer one the stretch with the most
    energy, as Speech Commands was cut (Warden 2018, "Speech Commands", section 5.7)."""
    surplus = len(samples) - length
    if surplus <= 0:
        return np.pad(samples, (0, -surplus))
    energy = np.concatenate([[0.0], np.cumsum(np.square(samples, dtype=np.float64))])
    start = int(np.argmax(energy[length:] - energy[:-length]))
    return samples[start : start + length]


def describe(source: bytes | Path, position: int) -> str:
    """What to call a clip in an error."""
    return f"Clip {position}" if isinstance(source, bytes) else os.fspath(source)


def shortened(log: str) -> bool:
    """Whether libsndfile's `log` of a file says that it ends before its header says."""
    return any(int(there) < int(said) < _UNKNOWN_LENGTH for said, there in _SHORTENED.findall(log))


def package(name: str):
    """soundfile or soxr, imported when sound is read."""
    from importlib import import_module

    try:
        return import_module(name)
    except (ImportError, OSError) as error:  # OSError: soundfile without its libsndfile
        raise DataError(f"Sound cannot be read without {name} ({error}): pip install 'edgelearn[audio]'") from error
