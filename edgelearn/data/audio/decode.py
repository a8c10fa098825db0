"""Decode a WAV, FLAC or OGG (Vorbis or Opus) file to one channel at a given rate.

soundfile (libsndfile) decodes. soxr resamples: its "HQ" filter keeps aliasing below -100 dB for any ratio of rates, and
unlike scipy.signal.resample_poly it can resample a stream block by block.
"""

import io
import os
import re
from pathlib import Path

import numpy as np

from edgelearn.data.decoding_limit import decoding
from edgelearn.errors import DataError

from . import RATE

FORMATS = ("WAV", "WAVEX", "FLAC", "OGG")

# A small FLAC of silence can decompress to gigabytes. Recordings of words stay below this limit.
MAX_SAMPLES = 80_000_000
MIN_RATE, MAX_RATE = 4_000, 768_000  # other rates mean a damaged header

# libsndfile's log if the header of a WAV announces more bytes than there are; it doesn't raise an error.
_SHORTENED = re.compile(r"^\s*data : (\d+) \(should be (\d+)\)", re.MULTILINE)
_UNKNOWN_LENGTH = 0x7FFFF000  # announced, or more, in the header of a WAV written to a pipe


def decode(source: bytes | Path, name: str, rate: int = RATE) -> np.ndarray:
    """Decode a recording and average its channels: float32 of shape (samples,) at `rate`.

    Arguments:
    - `source`: encoded bytes or a file.
    - `name`: name of the recording in errors.

    Raises DataError for a file that has another format, is damaged, truncated or empty, holds NaN or infinity, has more
    than MAX_SAMPLES samples or a rate outside MIN_RATE to MAX_RATE, or if soundfile or soxr is missing.
    """
    return _decoded(source, name, rate)[0]


def read(source: bytes | Path, name: str) -> tuple[np.ndarray, int]:
    """Like `decode`, at the file's own rate; returns (samples, rate)."""
    return _decoded(source, name, None)


def _decoded(source: bytes | Path, name: str, new_rate: int | None) -> tuple[np.ndarray, int]:
    """(samples, rate), at `new_rate` if that isn't None."""
    soundfile = package("soundfile")
    if isinstance(source, Path) and not source.is_file():
        raise DataError(f"There is no recording {name}. Give the path of a WAV, FLAC or OGG file.")
    try:
        with soundfile.SoundFile(io.BytesIO(source) if isinstance(source, bytes) else file_name(source)) as sound:
            if sound.format not in FORMATS:
                raise DataError(f"{name} is {sound.format}, not WAV, FLAC or OGG. Convert it, or remove it.")
            rate, announced = sound.samplerate, sound.frames
            if announced * sound.channels > MAX_SAMPLES:
                raise DataError(
                    f"{name} has more than {MAX_SAMPLES / 1e6:.0f} million samples, which can exhaust the memory. "
                    f"Cut it into pieces, or remove it."
                )
            check_rate(rate, name)
            with decoding.hold(_bytes_to_decode(announced, sound.channels, rate, new_rate or rate), name):
                samples = sound.read(announced, dtype="float32", always_2d=True)
                truncated = len(samples) < announced or shortened(sound.extra_info)
                _check(samples, truncated, name)
                mono = np.ascontiguousarray(samples.mean(1, dtype=np.float32))
                return resample(mono, rate, new_rate or rate), new_rate or rate
    except (soundfile.SoundFileError, TypeError) as error:  # TypeError: a file called .raw
        raise DataError(f"{name} cannot be read as sound: {why(error)}. Remove it or replace it.") from error
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror or error}. Check it, or remove it.") from error


def _bytes_to_decode(frames: int, channels: int, rate: int, new_rate: int) -> int:
    """Memory that decoding takes: all channels, their mean, and that at the new rate, twice while soxr joins it."""
    resampled = 0 if new_rate == rate else 8 * frames * new_rate // rate
    return 4 * frames * (channels + 1) + resampled


def _check(samples: np.ndarray, truncated: bool, name: str) -> None:
    """Raise DataError for samples that can't be used."""
    if truncated:
        raise DataError(f"{name} is truncated: shorter than its header says. Remove it or replace it.")
    if not len(samples):
        raise DataError(f"{name} holds no sound. Remove it or record it again.")
    if not np.isfinite(samples).all():
        raise DataError(f"{name} holds NaN or infinity. Remove it or replace it.")


def file_name(path: Path) -> str | bytes:
    """A path for libsndfile: soundfile encodes strictly, and names of files may be of any bytes."""
    return str(path) if os.name == "nt" else os.fsencode(path)


def why(error: Exception) -> str:
    """Reason in soundfile's error message."""
    return str(error).split(": ")[-1].rstrip(". ")


def check_rate(rate: int, name: str) -> None:
    """Raise DataError for a rate outside MIN_RATE to MAX_RATE."""
    if not MIN_RATE <= rate <= MAX_RATE:
        raise DataError(
            f"{name} has {rate:,} samples per second, not {MIN_RATE:,} to {MAX_RATE:,}. Remove it or convert it."
        )


def resample(samples: np.ndarray, old: int, new: int) -> np.ndarray:
    """Resample (n,) `samples` from rate `old` to `new`: float32, about n · new / old samples, at least one."""
    if old == new:
        return samples
    changed = package("soxr").resample(samples, old, new)
    return changed if len(changed) else samples[:1]


def fit(samples: np.ndarray, length: int) -> np.ndarray:
    """Pad `samples` with zeros at the end, or cut the part with the most energy, to shape (length,), as Speech Commands
    was cut (Warden 2018, "Speech Commands", section 5.7)."""
    surplus = len(samples) - length
    if surplus <= 0:
        return np.pad(samples, (0, -surplus))
    energy = np.concatenate([[0.0], np.cumsum(np.square(samples, dtype=np.float64))])
    start = int(np.argmax(energy[length:] - energy[:-length]))
    return samples[start : start + length]


def describe(source: bytes | Path, position: int) -> str:
    """Name of a clip in errors."""
    return f"Clip {position}" if isinstance(source, bytes) else os.fspath(source)


def shortened(log: str) -> bool:
    """True if libsndfile's `log` reports that a file is shorter than its header announces."""
    return any(int(found) < int(announced) < _UNKNOWN_LENGTH for announced, found in _SHORTENED.findall(log))


def package(name: str):
    """Import soundfile or soxr. Raises DataError if it is missing."""
    from importlib import import_module

    try:
        return import_module(name)
    except (ImportError, OSError) as error:  # OSError: soundfile without its libsndfile
        raise DataError(f"Sound cannot be read without {name} ({error}): pip install 'edgelearn[audio]'") from error
