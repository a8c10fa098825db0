"""Recordings: decoding, labelled clips, folders with a subfolder for each word, and streams from files or a microphone.

A clip is mono float32 samples in -1..1, at RATE samples per second unless another rate is given. soundfile (libsndfile)
decodes. soxr resamples: its "HQ" filter keeps aliasing below -100 dB for any ratio of rates, and unlike
scipy.signal.resample_poly it can resample a stream block by block.
"""

import io
import os
import queue
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.errors import DataError

from . import RATE
from .files import Labelled, decoding, each, files_below, filled, printable, read_labelled, subfolders

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
    return read(source, name, rate)[0]


def read(source: bytes | Path, name: str, rate: int | None = None) -> tuple[np.ndarray, int]:
    """Like `decode`, at the file's own rate unless another `rate` is given; returns (samples, rate)."""
    with _opened(source, name) as sound:
        announced, new_rate = sound.frames, rate or sound.samplerate
        if announced * sound.channels > MAX_SAMPLES:
            raise DataError(
                f"{name} has more than {MAX_SAMPLES / 1e6:.0f} million samples, which can exhaust the memory. "
                f"Cut it into pieces, or remove it."
            )
        with decoding.hold(_bytes_to_decode(announced, sound.channels, sound.samplerate, new_rate), name):
            samples = sound.read(announced, dtype="float32", always_2d=True)
            if len(samples) < announced or _shortened(sound.extra_info):
                raise DataError(f"{name} is truncated: shorter than its header says. Remove it or replace it.")
            if not len(samples):
                raise DataError(f"{name} holds no sound. Remove it or record it again.")
            if not np.isfinite(samples).all():
                raise DataError(f"{name} holds NaN or infinity. Remove it or replace it.")
            mono = np.ascontiguousarray(samples.mean(1, dtype=np.float32))
            return resample(mono, sound.samplerate, new_rate), new_rate


@contextmanager
def _opened(source: bytes | Path, name: str) -> Iterator[Any]:
    """Open a soundfile.SoundFile; errors, also those in the block, become a DataError."""
    soundfile = package("soundfile")
    if isinstance(source, Path) and not source.is_file():
        raise DataError(f"There is no recording {name}. Give the path of a WAV, FLAC or OGG file.")
    if isinstance(source, bytes):
        file: Any = io.BytesIO(source)
    else:  # soundfile encodes strictly, and names of files may be of any bytes
        file = str(source) if os.name == "nt" else os.fsencode(source)
    try:
        with soundfile.SoundFile(file) as sound:
            if sound.format not in FORMATS:
                raise DataError(f"{name} is {sound.format}, not WAV, FLAC or OGG. Convert it, or remove it.")
            if not MIN_RATE <= sound.samplerate <= MAX_RATE:
                raise DataError(
                    f"{name} has {sound.samplerate:,} samples per second, not {MIN_RATE:,} to {MAX_RATE:,}. Remove it "
                    f"or convert it."
                )
            yield sound
    except (soundfile.SoundFileError, TypeError) as error:  # TypeError: a file called .raw
        reason = str(error).split(": ")[-1].rstrip(". ")
        raise DataError(f"{name} cannot be read as sound: {reason}. Remove it or replace it.") from error
    except OSError as error:
        raise DataError(f"{name} cannot be read: {error.strerror or error}. Check it, or remove it.") from error


def _bytes_to_decode(frames: int, channels: int, rate: int, new_rate: int) -> int:
    """Memory that decoding takes: all channels, their mean, and that at the new rate, twice while soxr joins it."""
    resampled = 0 if new_rate == rate else 8 * frames * new_rate // rate
    return 4 * frames * (channels + 1) + resampled


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


def _shortened(log: str) -> bool:
    """True if libsndfile's `log` reports that a file is shorter than its header announces."""
    return any(int(found) < int(announced) < _UNKNOWN_LENGTH for announced, found in _SHORTENED.findall(log))


def package(name: str):
    """Import soundfile or soxr. Raises DataError if it is missing."""
    from importlib import import_module

    try:
        return import_module(name)
    except (ImportError, OSError) as error:  # OSError: soundfile without its libsndfile
        raise DataError(f"Sound cannot be read without {name} ({error}): pip install 'edgelearn[audio]'") from error


# Encoded bytes, a file, samples at RATE (int16 or float32), or a function that synthesises the clip: rate -> (n,).
Item = bytes | Path | np.ndarray | Callable[[int], np.ndarray]

_PART = re.compile(r"^[\d,]+ of: ")  # a part of a part is described as a part of the whole

SILENCE, UNKNOWN = "_silence_", "_unknown_"  # class names of Speech Commands: no speech, other words


@dataclass(frozen=True, eq=False)
class ClipDataset(Labelled):
    """Labelled clips. It holds what was given: encoded bytes, paths, samples or functions.

    Arguments:
    - `name`: short name, such as "speech_commands_v0.02".
    - `origin`: where the clips come from: "EDGELEARN_DATA" (data in a folder the user named), "tfds" (TensorFlow
      Datasets' own folder), "folder" or "embedded sample".
    - `description`: the origin as one sentence for a reader.
    - `class_names`: names in the order of the labels: the words.
    - `labels`: int32 (n,), each from 0 to len(class_names) - 1.
    - `speakers`: n names of speakers; "" if unknown or none.
    - `items`: n clips.
    - `skipped`: (path, reason) of each file that was left out (default none).

    Raises DataError if the numbers of clips, labels and speakers differ, or a label has no name.
    """

    name: str
    origin: str
    description: str
    class_names: tuple[str, ...]
    labels: np.ndarray = field(repr=False)
    speakers: np.ndarray = field(repr=False)
    items: Sequence[Item] = field(repr=False)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    nouns = "clips"

    def __post_init__(self):
        self.column("speakers", np.str_)
        super().__post_init__()

    @property
    def words(self) -> np.ndarray:
        """The class name of every clip: str of shape (n,)."""
        return np.asarray(self.class_names, np.str_)[self.labels]

    def recording(self, i: int, rate: int = RATE) -> np.ndarray:
        """All of clip `i`: float32 (samples,) at `rate`. Raises DataError if it can't be read."""
        item = self.items[i]
        if callable(item):
            return item(rate)
        if isinstance(item, np.ndarray):
            samples = item.astype(np.float32) / 32768 if item.dtype == np.int16 else item
            return resample(samples, RATE, rate)
        return decode(item, describe(item, i), rate)

    def clip(self, i: int, rate: int = RATE, seconds: float = 1.0) -> np.ndarray:
        """Clip `i`, padded or cut to `seconds` (see decode.fit): float32 of shape (rate · seconds,)."""
        return fit(self.recording(i, rate), round(rate * seconds))

    def take(self, indices: Sequence[int] | np.ndarray) -> "ClipDataset":
        """The subset at `indices` (integers or a bool mask), with the same class names."""
        chosen = np.arange(len(self))[np.asarray(indices)] if len(indices) else np.empty(0, int)
        return replace(
            self,
            description=f"{len(chosen):,} of: {_PART.sub('', self.description)}",
            labels=self.labels[chosen],
            speakers=self.speakers[chosen],
            items=[self.items[i] for i in chosen],
        )

    def only(self, words: Sequence[str]) -> "ClipDataset":
        """The subset with these `words`, which become the class names. Raises DataError for an unknown word."""
        if missing := [word for word in words if word not in self.class_names]:
            raise DataError(f"{self.name} has no word {missing[0]!r}. It has {', '.join(self.class_names)}.")
        number = {word: label for label, word in enumerate(words)}
        subset = self.take(np.isin(self.words, words))
        return replace(subset, class_names=tuple(words), labels=[number[word] for word in subset.words])


def load_clips(
    dataset: ClipDataset,
    indices: Sequence[int] | np.ndarray | None = None,
    rate: int = RATE,
    seconds: float = 1.0,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Decode clips on several threads to float32 (n, rate · seconds).

    Arguments:
    - `indices`: of the clips (default: all).
    - `rate`: samples per second (default RATE).
    - `seconds`: length to which clips are padded or cut (default 1).
    - `out`: array for the result (default: a new one).

    Raises DataError for a clip that cannot be read, ShapeError if `out` has another shape or type.
    """
    chosen = np.arange(len(dataset)) if indices is None else np.asarray(indices)
    shape = (len(chosen), round(rate * seconds))
    return filled(shape, np.float32, out, lambda row: dataset.clip(int(chosen[row]), rate, seconds))


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
    found = read_labelled(
        root, words, read, "{:,} clips of {} words", "WAV, FLAC or OGG recordings", 1,
        lambda word, _: f"The word {word!r} in {root} has no usable recording.",
    )  # fmt: skip
    named = (
        speaker_of(printable(file.name), found["class_names"][label]) or speaker
        for label, file in zip(found["labels"], found["items"], strict=True)
    )
    return ClipDataset(**found, speakers=np.array(list(named), np.str_))


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


Blocks = Generator[np.ndarray, None, None]  # consecutive blocks, float32 (n,)
_SECONDS = 0.1  # of a block
_SILENT = 5  # seconds without a block before the microphone counts as disconnected


def file_blocks(path: str | os.PathLike, rate: int = RATE) -> Blocks:
    """Stream a WAV, FLAC or OGG file in blocks of a tenth of a second, its channels averaged, at `rate`.

    Raises DataError immediately if the file can't be opened, at the first damaged block, and after the last block if
    the file is truncated or empty.
    """
    path = Path(path)
    with _opened(path, str(path)):
        return _file_blocks(path, rate)


def _file_blocks(path: Path, rate: int) -> Blocks:
    with _opened(path, str(path)) as sound:
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
        if heard < sound.frames or _shortened(sound.extra_info):
            raise DataError(
                f"{path} is truncated: it ends after {heard / sound.samplerate:.2f} s, earlier than its header says. "
                f"The part before was processed; for the rest, replace it."
            )
        if not heard:
            raise DataError(f"{path} holds no sound. Record it again.")


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
