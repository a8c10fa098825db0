"""The embedded sample: synthetic speech of made-up words, without any human voice.

A word is a string of sounds (see SOUNDS): voiced ones are harmonics of a pitch, filtered by the resonances of a vocal
tract, the others are noise. Speakers differ in pitch, length of the tract (which scales all resonances), speed, breath
and vowels; takes of a speaker vary slightly in all of these.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import pi
from pathlib import Path

import numpy as np

from edgelearn.display import plural
from edgelearn.errors import DataError

from .audio import ClipDataset

_SPEAKER, _TAKE, _MADE_UP = 23, 24, 35  # separate these random streams from others of the same seed
_CONTROL = 200  # updates of pitch and resonances per second
_BANDWIDTHS = np.array([70.0, 100.0, 140.0, 250.0])  # hertz, of the four resonances
_FOURTH = 3500.0  # hertz: the resonance that all sounds share


@dataclass(frozen=True)
class Sound:
    """One speech sound.

    Arguments:
    - `seconds`: duration.
    - `voice`: amplitude of the harmonics (default 0).
    - `resonances`: the first three, in hertz.
    - `noise`, `centre`: amplitude of the noise (default 0) and its centre frequency in hertz.
    - `burst`: the noise is a burst at the end of a pause (default False).
    """

    seconds: float
    voice: float = 0.0
    resonances: tuple[float, float, float] = (500.0, 1500.0, 2500.0)
    noise: float = 0.0
    centre: float = 0.0
    burst: bool = False


SOUNDS = {
    # Vowels: averages of men in Peterson and Barney 1952, "Control methods used in a study of the vowels", table II.
    "a": Sound(0.15, 1.0, (730, 1090, 2440)),
    "e": Sound(0.14, 1.0, (530, 1840, 2480)),
    "i": Sound(0.13, 0.8, (270, 2290, 3010)),
    "o": Sound(0.15, 1.0, (570, 840, 2410)),
    "u": Sound(0.14, 0.8, (300, 870, 2240)),
    "m": Sound(0.07, 0.35, (250, 1000, 2200)),
    "n": Sound(0.07, 0.35, (250, 1700, 2600)),
    "l": Sound(0.06, 0.5, (360, 1300, 2700)),
    "r": Sound(0.06, 0.5, (310, 1060, 1380)),
    "s": Sound(0.11, noise=0.20, centre=6000),
    "x": Sound(0.11, noise=0.25, centre=3200),  # as in ship
    "f": Sound(0.09, noise=0.06, centre=4500),
    "p": Sound(0.08, noise=0.15, centre=800, burst=True),
    "t": Sound(0.08, noise=0.30, centre=4200, burst=True),
    "k": Sound(0.08, noise=0.25, centre=1900, burst=True),
}
WORDS = (
    "sola", "mitu", "kena", "paro", "lifu", "nexo", "tami", "rusa", "fole", "simu", "kalo", "pite",
    "muna", "xari", "leso", "naku", "teri", "romi", "fasu", "xelo", "puni", "kiso", "lamu", "reta",
)  # fmt: skip


def embedded_words(words: int = len(WORDS), speakers: int = 12, takes: int = 10, seed: int = 0) -> ClipDataset:
    """Synthesise one-second clips. A clip depends only on (seed, word, speaker, take) and the requested rate.

    Arguments:
    - `words`: number of words, the first ones of WORDS (default all).
    - `speakers`: number of synthetic speakers (default 12).
    - `takes`: clips of each word by each speaker (default 10).
    - `seed`: of all random numbers (default 0).

    Raises DataError if one of them is below 1 or `words` is too large.
    """
    if not (1 <= words <= len(WORDS) and speakers >= 1 and takes >= 1):
        raise DataError(
            f"The embedded sample has 1 to {len(WORDS)} words and at least 1 speaker and take, got {words}, {speakers} "
            f"and {takes}."
        )
    spoken = spoken_words(WORDS[:words], range(speakers), takes, seed)
    return replace(
        spoken, name="embedded_words",
        description=f"The embedded sample: {plural(len(spoken), 'clip')} of {plural(words, 'made-up word')} by "
        f"{plural(speakers, 'speaker')}, "
        f"synthesised by the program: no human voice.",
    )  # fmt: skip


_VOWELS, _CONSONANTS = "aeiou", "mnlrsxfptk"
_PATTERNS = ("CVCV", "CVCV", "CVC", "VCV", "CVCVC")


def made_up_words(count: int, seed: int) -> list[str]:
    """`count` other words of three to five sounds, none of them in the embedded sample, sorted."""
    rng = np.random.default_rng([seed, _MADE_UP])
    words: list[str] = []
    while len(words) < count:
        pattern = _PATTERNS[rng.integers(len(_PATTERNS))]
        word = "".join(rng.choice(list(_CONSONANTS if sound == "C" else _VOWELS)) for sound in pattern)
        if word not in (*WORDS, *words):
            words.append(word)
    return sorted(words)


def spoken_words(words: Sequence[str], speakers: range, takes: int, seed: int) -> ClipDataset:
    """One-second clips of each of `words`, strings of sounds, by each of `speakers`, `takes` times. `seed`: of the
    speakers and takes."""
    every = list(product(range(len(words)), speakers, range(takes)))
    return ClipDataset(
        name="synthesised_words",
        origin="embedded sample",
        description=f"{plural(len(every), 'clip')} of {plural(len(words), 'synthesised word')} by "
        f"{plural(len(speakers), 'synthesised speaker')}.",
        class_names=tuple(words),
        labels=np.array([w for w, _, _ in every], np.int32),
        speakers=np.array([f"synthesised{s:02d}" for _, s, _ in every], np.str_),
        items=[Spoken(words[w], s, t, seed) for w, s, t in every],
    )


@dataclass(frozen=True)
class Spoken:
    """A clip that is synthesised when it is called with a rate. Arguments: see `speak`."""

    word: str
    speaker: int
    take: int
    seed: int

    def __call__(self, rate: int) -> np.ndarray:
        return speak(self.word, self.speaker, self.take, self.seed, rate)

    @property
    def identity(self) -> str:
        """Text that determines the samples at each rate, so that a cache finds them without synthesis."""
        return f"{_program()} {self!r}"


@cache
def _program() -> str:
    """Names what else changes samples: this module's text, NumPy, and the instructions that it uses."""
    text = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    return f"{text} {np.__version__} {np.show_config(mode='dicts').get('SIMD Extensions')}"


@dataclass(frozen=True)
class _Voice:
    pitch: float
    tract: float
    speed: float
    breath: float
    tilt: float
    accent: dict[str, np.ndarray]


def _voice(speaker: int, seed: int) -> _Voice:
    rng = np.random.default_rng([seed, _SPEAKER, speaker])
    tract = rng.uniform(0.95, 1.25)
    return _Voice(
        pitch=110 * tract**3 * rng.uniform(0.85, 1.2),  # short tracts have high voices
        tract=tract,
        speed=rng.uniform(0.8, 1.2),
        breath=rng.uniform(0.0, 0.03),
        tilt=rng.uniform(0.3, 0.7),
        accent={name: rng.normal(1, 0.05, 3) for name in SOUNDS},
    )


def speak(word: str, speaker: int, take: int, seed: int, rate: int) -> np.ndarray:
    """Synthesise one second of `word` by speaker number `speaker`: float32 (rate,) in -1..1."""
    voice = _voice(speaker, seed)
    rng = np.random.default_rng([seed, _TAKE, *word.encode(), speaker, take])
    sounds = [SOUNDS[letter] for letter in word]
    seconds = np.array([sound.seconds for sound in sounds]) * rng.normal(1, 0.1, len(word)).clip(0.7, 1.3) / voice.speed
    ends = np.cumsum(seconds)
    frames = min(int(ends[-1] * _CONTROL), _CONTROL - 4)
    which = np.searchsorted(ends, np.arange(frames) / _CONTROL).clip(max=len(word) - 1)

    tracks = np.array([[sound.voice, *sound.resonances] for sound in sounds])
    tracks[:, 1:] *= np.array([voice.accent[letter] for letter in word]) * rng.normal(1, 0.02, (len(word), 3))
    tracks = _smooth(tracks[which])
    tracks[:, 0] *= np.minimum(1, np.minimum(np.arange(frames), np.arange(frames)[::-1]) / 8)  # no clicks at the ends
    rise, fall = rng.normal(0.08, 0.05), rng.normal(0.1, 0.05)
    pitch = voice.pitch * rng.normal(1, 0.06) * np.linspace(1 + rise, 1 - fall, frames)
    sound = _harmonics(pitch, tracks, voice, rate)
    loudness = np.interp(*_times(len(sound), frames, rate), tracks[:, 0])
    sound += voice.breath * loudness * rng.standard_normal(len(sound))
    for consonant, end, length in zip(sounds, ends, seconds, strict=True):
        if consonant.noise:
            _add_noise(sound, consonant, end, length, voice, rng, rate)

    clip = 10 ** rng.uniform(-2.8, -1.8) * 0.1 * rng.standard_normal(rate)  # the room
    start = rng.integers(0, rate - len(sound) + 1)
    clip[start : start + len(sound)] += rng.uniform(0.3, 0.8) * sound / np.abs(sound).max()
    return clip.clip(-1, 1).astype(np.float32)


def _harmonics(pitch: np.ndarray, tracks: np.ndarray, voice: _Voice, rate: int) -> np.ndarray:
    """The voiced part, from pitch (frames,) in hertz and tracks (frames, 4): loudness and three resonances."""
    frames = len(pitch)
    samples = frames * rate // _CONTROL
    order = np.arange(1, int(min(5000.0, rate / 2 - 200) / pitch.max()) + 1)
    frequency = pitch[:, None] * order
    amplitude = tracks[:, :1] / order**voice.tilt
    resonances = np.column_stack([tracks[:, 1:], np.full(frames, _FOURTH)]) * voice.tract
    for centre, width in zip(resonances.T[:, :, None], _BANDWIDTHS, strict=True):
        amplitude = amplitude * centre**2 / np.hypot(centre**2 - frequency**2, width * frequency)

    now, then = _times(samples, frames, rate)
    phase = np.cumsum(np.interp(now, then, pitch)) * (2 * pi / rate)
    turn = np.exp(1j * phase).astype(np.complex64)
    step, part = np.divmod(now * _CONTROL, 1)
    step, following = step.astype(int), np.minimum(step.astype(int) + 1, frames - 1)
    total = np.zeros(samples, np.complex64)
    for level in amplitude.astype(np.float32).T[::-1]:  # Horner's scheme: harmonic k is the k-th power of the first
        total = (total + level[step] + part.astype(np.float32) * (level[following] - level[step])) * turn
    return total.imag.astype(np.float64) / 10


def _add_noise(sound: np.ndarray, consonant: Sound, end: float, length: float, voice: _Voice, rng, rate: int) -> None:
    """Add a consonant's noise to `sound`, over its whole length or as a burst at its end."""
    duration = 0.025 if consonant.burst else length
    first, last = int((end - duration) * rate), min(int(end * rate), len(sound))
    count = last - first
    if count < 2:
        return
    frequency = np.fft.rfftfreq(count, 1 / rate)
    centre = min(consonant.centre * voice.tract, 0.4 * rate)
    shape = np.exp(-0.5 * ((frequency - centre) / (0.3 * centre)) ** 2)
    noise = np.fft.irfft(np.fft.rfft(rng.standard_normal(count)) * shape, count)
    noise *= consonant.noise * np.hanning(count) / (np.sqrt(np.mean(noise**2)) + 1e-9)
    sound[first:last] += noise


def _times(samples: int, frames: int, rate: int) -> tuple[np.ndarray, np.ndarray]:
    """Times of samples and of control frames, in seconds."""
    return np.arange(samples) / rate, np.arange(frames) / _CONTROL


def _smooth(tracks: np.ndarray, width: int = 9) -> np.ndarray:
    """Moving average over 45 ms, the inertia of the tongue."""
    padded = np.pad(tracks, ((width // 2, width // 2), (0, 0)), mode="edge")
    return np.lib.stride_tricks.sliding_window_view(padded, width, axis=0).mean(-1)
