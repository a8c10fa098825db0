"""Long sound in blocks: a file that needn't fit in memory, the microphone, or samples that are there."""

import os
import queue
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from edgelearn.data.audio import RATE
from edgelearn.data.audio.decode import FORMATS, check_rate, package
from edgelearn.errors import DataError

Blocks = Iterator[np.ndarray]  # float32 (n,) each, one after the other
_SECONDS = 0.1  # of a block


def file_blocks(path: str | os.PathLike, rate: int = RATE) -> Blocks:
    """A WAV, FLAC or OGG file of any length, its channels averaged, at `rate`: blocks of a tenth of a second.

    Raises DataError for a file that isn't one, or is damaged, when its first bad block is reached.
    """
    soundfile, soxr = package("soundfile"), package("soxr")
    path = Path(path)
    if not path.is_file():
        raise DataError(f"There is no recording {path}. Give the path of a WAV, FLAC or OGG file.")
    try:
        with soundfile.SoundFile(path) as sound:
            if sound.format not in FORMATS:
                raise DataError(f"{path} is {sound.format}, not WAV, FLAC or OGG. Convert it.")
            check_rate(sound.samplerate, str(path))
            change = None
            if sound.samplerate != rate:
                change = soxr.ResampleStream(sound.samplerate, rate, 1, dtype="float32")
            for block in sound.blocks(max(1, round(_SECONDS * sound.samplerate)), dtype="float32", always_2d=True):
                samples = block.mean(1, dtype=np.float32)
                if not np.isfinite(samples).all():
                    raise DataError(f"{path} holds samples that are not numbers. Replace it.")
                yield samples if change is None else change.resample_chunk(samples)
            if change is not None:
                yield change.resample_chunk(np.empty(0, np.float32), last=True)
    except (soundfile.SoundFileError, TypeError) as error:  # TypeError: a file called .raw
        reason = str(error).split(": ")[-1].rstrip(". ")
        raise DataError(f"{path} cannot be read as sound: {reason}. Replace it.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}. Check it.") from error


def microphone_blocks(rate: int = RATE, device: str | None = None) -> Blocks:
    """What the microphone hears, until the caller stops asking: blocks of a tenth of a second.

    device: part of a sound device's name; the system's choice if None.

    Raises DataError where the package sounddevice or a microphone is missing, or blocks weren't taken for ten seconds.
    """
    try:
        import sounddevice
    except (ImportError, OSError) as error:  # OSError: without the library PortAudio
        raise DataError(
            f"The microphone needs the package sounddevice ({error}): pip install sounddevice, on Linux with "
            f"apt install libportaudio2. Or give a file."
        ) from error
    heard: queue.Queue[np.ndarray] = queue.Queue(round(10 / _SECONDS))

    def take(block: np.ndarray, frames: int, time, status) -> None:
        if not heard.full():
            heard.put_nowait(block[:, 0].copy())

    try:
        with sounddevice.InputStream(rate, round(rate * _SECONDS), device, channels=1, dtype="float32", callback=take):
            while not heard.full():
                yield heard.get()
    except (sounddevice.PortAudioError, ValueError) as error:
        raise DataError(
            f"The microphone cannot be used: {error}. Plug one in and allow its use, name another one, or give a file."
        ) from error
    raise DataError(
        "What the microphone hears comes faster than it is worked on. Use a smaller network or larger hops."
    )
