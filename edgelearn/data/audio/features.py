"""Log-mel energies and MFCC, the input features of keyword networks.

The two common front ends are one formula with different settings. `tf.signal`: frames begin at the first sample, mel
triangles are linear in mel. torchaudio and librosa (`htk=True, norm=None`): the clip is reflected at its ends and
triangles are linear in hertz. The mel scale is always HTK's: m = 2595 log10(1 + f / 700).
"""

import json
from dataclasses import asdict, dataclass, replace
from functools import lru_cache

import numpy as np

from edgelearn import records
from edgelearn.data.threads import each
from edgelearn.errors import DataError, FormatError, ShapeError

from . import RATE

_CHUNK = 8  # clips at once: their spectra fit in the CPU's cache


@dataclass(frozen=True)
class LogMel:
    """log(mel energies + offset) of clips.

    Arguments:
    - `window`: samples of a frame, with a periodic Hann window (default 480).
    - `hop`: samples between frames (default 160).
    - `fft`: samples of the transform (default 512).
    - `bands`: number of mel bands (default 40).
    - `low`, `high`: range of their frequencies in hertz (default 0 and half the rate).
    - `power`: 2 for energies (default), 1 for magnitudes.
    - `offset`: added before the logarithm (default 1e-6).
    - `triangles`: filters are linear in "hertz" (default) or in "mel".
    - `centred`: frame i is centred on sample i * hop, and the clip is reflected at its ends (default); otherwise it
      begins there, and an incomplete last frame is dropped.
    - `rate`: samples per second (default 16,000).

    Raises DataError for invalid settings.
    """

    window: int = 480
    hop: int = 160
    fft: int = 512
    bands: int = 40
    low: float = 0.0
    high: float = RATE / 2
    power: int = 2
    offset: float = 1e-6
    triangles: str = "hertz"
    centred: bool = True
    rate: int = RATE

    def __post_init__(self):
        if not (self.hop > 0 and 1 < self.window <= self.fft):
            raise DataError(f"A frame needs hop > 0 and 1 < window <= fft, got {self.hop}, {self.window}, {self.fft}.")
        if not 0 <= self.low < self.high <= self.rate / 2:
            raise DataError(
                f"Mel bands lie between 0 and {self.rate / 2:g} hertz, half the rate: {self.low:g} to {self.high:g}."
            )
        if self.bands < 1 or self.power not in (1, 2) or self.offset <= 0 or self.triangles not in ("hertz", "mel"):
            raise DataError(f'Expected bands and offset above 0, power 1 or 2, triangles "hertz" or "mel", got {self}.')

    def shape(self, samples: int) -> tuple[int, int]:
        """(frames, bands) of a clip of `samples` samples. Raises ShapeError if it is shorter than a frame."""
        margin = self.window // 2 if self.centred else 0
        if samples <= margin or samples + 2 * margin < self.window:
            raise ShapeError(f"A clip of {samples} samples is too short for a frame of {self.window}. Pad it.")
        return 1 + (samples + 2 * margin - self.window) // self.hop, self.bands

    def __call__(self, clips: np.ndarray) -> np.ndarray:
        """Compute features of `clips`, float (n, samples): float32 (n, frames, bands). Raises ShapeError for another
        shape."""
        clips = _check(clips)
        out = np.empty((len(clips), *self.shape(clips.shape[1])), np.float32)

        def work(start: int):
            out[start : start + _CHUNK] = self._log_mel(clips[start : start + _CHUNK])

        each(work, range(0, len(clips), _CHUNK))
        return out

    def _log_mel(self, clips: np.ndarray) -> np.ndarray:
        if self.centred:
            clips = np.pad(clips, ((0, 0), (self.window // 2,) * 2), mode="reflect")
        frames = np.lib.stride_tricks.sliding_window_view(clips, self.window, axis=1)[:, :: self.hop]
        # In float64: next to a loud tone, rounding errors of a float32 transform mask quiet bands.
        spectrum = np.fft.rfft(frames * _hann(self.window), self.fft)
        energy = spectrum.real**2 + spectrum.imag**2
        if self.power == 1:
            energy = np.sqrt(energy)
        flat = energy.astype(np.float32).reshape(-1, energy.shape[-1])
        mel = (flat @ mel_matrix(self)).reshape(*energy.shape[:2], self.bands)
        return np.log(mel + np.float32(self.offset))


@dataclass(frozen=True)
class MFCC:
    """Mel-frequency cepstral coefficients: the DCT of log-mel energies, scaled as HTK and tf.signal do.

    Arguments:
    - `coefficients`: number of the first ones that are used, at most the number of bands.
    - `log_mel`: the energies.

    Raises DataError for another number of coefficients.
    """

    coefficients: int
    log_mel: LogMel

    def __post_init__(self):
        if not 1 <= self.coefficients <= self.log_mel.bands:
            raise DataError(f"MFCC has 1 to {self.log_mel.bands} coefficients, one a band, not {self.coefficients}.")

    @property
    def rate(self) -> int:
        return self.log_mel.rate

    def shape(self, samples: int) -> tuple[int, int]:
        """(frames, coefficients), see LogMel.shape."""
        return self.log_mel.shape(samples)[0], self.coefficients

    def __call__(self, clips: np.ndarray) -> np.ndarray:
        """Compute MFCC of `clips`, float (n, samples): float32 (n, frames, coefficients)."""
        return self.log_mel(clips) @ _dct(self.log_mel.bands, self.coefficients)


FrontEnd = LogMel | MFCC

# Features of BC-ResNet (Kim et al. 2021): torchaudio's MelSpectrogram, then log(x + 1e-6).
BC_RESNET = LogMel()
# Features of DS-CNN, 49 frames of 10 coefficients: in MLPerf Tiny by tf.signal, and in ARM's ML-KWS-for-MCU by the ops
# AudioSpectrogram and Mfcc of TensorFlow 1, whose energies have a floor of 1e-12 instead of the offset.
DS_CNN_MLPERF = MFCC(10, LogMel(hop=320, low=20, high=4000, power=1, triangles="mel", centred=False))
DS_CNN_ARM = MFCC(10, replace(DS_CNN_MLPERF.log_mel, window=640, fft=1024, offset=1e-12))


def to_json(front_end: FrontEnd) -> str:
    """Serialize the settings: equal front ends give equal text."""
    return json.dumps(asdict(front_end), sort_keys=True)


def from_json(text: str) -> FrontEnd:
    """Read what `to_json` wrote. Raises FormatError for other text, DataError for invalid settings."""
    try:
        settings = records.parse(text, dict)
        return records.convert(settings, MFCC if "log_mel" in settings else LogMel)
    except records.RecordError as error:
        raise FormatError(f"Not the settings of a front end written by edgelearn: {error}.") from None


@lru_cache(maxsize=8)
def mel_matrix(settings: LogMel) -> np.ndarray:
    """Mel filter bank: float32 (fft / 2 + 1, bands). Triangles of height 1 at a band's centre end at the centres of its
    neighbours; centres are evenly spaced in mel."""
    low, high = _mel(np.array([settings.low, settings.high]))
    edges = np.linspace(low, high, settings.bands + 2)
    bins = np.linspace(0, settings.rate / 2, settings.fft // 2 + 1)
    if settings.triangles == "mel":
        bins = _mel(bins)
    else:
        edges = 700 * (10 ** (edges / 2595) - 1)
    rising = (bins[:, None] - edges[:-2]) / np.diff(edges)[:-1]
    falling = (edges[2:] - bins[:, None]) / np.diff(edges)[1:]
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)


def _mel(hertz: np.ndarray) -> np.ndarray:
    return 2595 * np.log10(1 + hertz / 700)


@lru_cache(maxsize=8)
def _hann(window: int) -> np.ndarray:
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)


@lru_cache(maxsize=8)
def _dct(bands: int, coefficients: int) -> np.ndarray:
    """DCT-II times sqrt(2 / bands): (bands, coefficients)."""
    angles = np.pi / bands * (np.arange(bands)[:, None] + 0.5) * np.arange(coefficients)
    return (np.sqrt(2 / bands) * np.cos(angles)).astype(np.float32)


def _check(clips: np.ndarray) -> np.ndarray:
    clips = np.asarray(clips)
    if clips.ndim != 2 or clips.dtype.kind != "f":
        raise ShapeError(f"Clips must be floats of shape (n, samples), got {clips.dtype} of shape {clips.shape}.")
    return clips.astype(np.float32, copy=False)
