"""Audio as a stream of blocks: from a file of any length, or from the microphone."""

import os
import queue
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from edgelearn.errors import DataError

from . import RATE
from .decode import FORMATS, check_rate, file_name, package, shortened, why

Blocks = Generator[np.ndarray, None, None]  # consecutive blocks, float32 (n,)
_SECONDS = 0.1  # of a block
_SILENT = 5  # seconds without a block before the microphone counts as disconnected


def file_blocks(path: str | os.PathLike, rate: int = RATE) -> Blocks:
    """Stream a WAV, FLAC or OGG file in blocks of a tenth of a second, its channels averaged, at `rate`.

    Raises DataError immediately if the file can't be opened, at the first damaged block, and after the last block if
    the file is truncated or empty.
    """
    path = Path(path)
    with _opened(path):
        return _file_blocks(path, rate)


def _file_blocks(path: Path, rate: int) -> Blocks:
    with _opened(path) as sound:
        change = None
        if sound.samplerate != rate:
            change = package("soxr").ResampleStream(sound.samplerate, rate, 1, dtype="float32")
        heard = 0
        for block in sound.blocks(max(1, round(_SECONDS * sound.samplerate)), dtype="float32", always_2d=True):
            samples = block.mean(1, dtype=np.float32)
            if not np.isfinite(samples).all():
                raise DataError(f"{path} holds NaN or infinity. Replace it.")
            heard += len(samples)
            yield samples if change is None else change.resample_chunk(samples)
        if change is not None:
            yield change.resample_chunk(np.empty(0, np.float32), last=True)
        if heard < sound.frames or shortened(sound.extra_info):
            raise DataError(
                f"{path} is truncated: it ends after {heard / sound.samplerate:.2f} s, earlier than its header says. "
                f"The part before was processed; for the rest, replace it."
            )
        if not heard:
            raise DataError(f"{path} holds no sound. Record it again.")


@contextmanager
def _opened(path: Path) -> Iterator:
    """Open a soundfile.SoundFile; errors, also those in the block, become a DataError."""
    soundfile = package("soundfile")
    if not path.is_file():
        raise DataError(f"There is no recording {path}. Give the path of a WAV, FLAC or OGG file.")
    try:
        with soundfile.SoundFile(file_name(path)) as sound:
            if sound.format not in FORMATS:
                raise DataError(f"{path} is {sound.format}, not WAV, FLAC or OGG. Convert it.")
            check_rate(sound.samplerate, str(path))
            yield sound
    except (soundfile.SoundFileError, TypeError) as error:  # TypeError: a file called .raw
        raise DataError(f"{path} cannot be read as sound: {why(error)}. Replace it.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}. Check it.") from error


def microphone_blocks(rate: int = RATE, device: str | None = None) -> Blocks:
    """Stream the microphone in blocks of a tenth of a second, until the caller stops iterating.

    Arguments:
    - `rate`: samples per second (default RATE).
    - `device`: part of a sound device's name (default: the system's choice).

    Raises DataError immediately if the package sounddevice or a microphone is missing, and later if the microphone
    fails or delivers nothing for five seconds, or the caller falls ten seconds behind.
    """
    try:
        import sounddevice
    except (ImportError, OSError) as error:  # OSError: without the library PortAudio
        raise DataError(
            f"The microphone needs the package sounddevice ({error}): pip install sounddevice, on Linux with "
            f"apt install libportaudio2. Or give a file."
        ) from error
    with _explained(sounddevice):
        sounddevice.check_input_settings(device, 1, "float32", samplerate=rate)
    return _microphone_blocks(sounddevice, rate, device)


def _microphone_blocks(sounddevice, rate: int, device: str | None) -> Blocks:
    heard: queue.Queue[np.ndarray] = queue.Queue(round(10 / _SECONDS))

    def take(block: np.ndarray, frames: int, time, status) -> None:
        if not heard.full():
            heard.put_nowait(block[:, 0].copy())

    size = round(rate * _SECONDS)
    with (
        _explained(sounddevice),
        sounddevice.InputStream(rate, size, device, channels=1, dtype="float32", callback=take),
    ):
        while not heard.full():
            try:
                block = heard.get(timeout=_SILENT)
            except queue.Empty:
                raise DataError(
                    f"The microphone has delivered nothing for {_SILENT} seconds. Check that it is plugged in, or name "
                    f"another one."
                ) from None
            yield block
    raise DataError("Processing is slower than the microphone: 10 s behind. Use a smaller network or larger hops.")


@contextmanager
def _explained(sounddevice) -> Iterator[None]:
    try:
        yield
    except (sounddevice.PortAudioError, ValueError) as error:
        raise DataError(
            f"The microphone cannot be used: {error}. Plug one in and allow its use, name another one, or give a file."
        ) from error
