"""Features of streamed audio, in constant memory."""

from dataclasses import replace

import numpy as np

from edgelearn.errors import ShapeError

from .features import MFCC, FrontEnd

_FRAMES = 1024  # computed at once at most


class FeatureStream:
    """The frames that `front_end` makes of a whole recording, from pieces of it as they come: up to rounding the same,
    wherever it was cut, also at both ends, where a centred front end reflects it.

    Of the samples, those that a later frame can see are held.
    """

    def __init__(self, front_end: FrontEnd) -> None:
        self.front_end = front_end
        mfcc = isinstance(front_end, MFCC)
        log_mel = front_end.log_mel if mfcc else front_end
        self._margin = log_mel.window // 2 if log_mel.centred else 0
        self._window, self._hop = log_mel.window, log_mel.hop
        inner = replace(log_mel, centred=False)
        self._inner = replace(front_end, log_mel=inner) if mfcc else inner
        self._held = np.empty(0, np.float32)
        self._next = 0  # start of the next frame in `_held`
        self._begun = not self._margin

    def push(self, samples: np.ndarray) -> np.ndarray:
        """Append `samples`, float (n,), and return the frames that they complete: float32 (k, bands), k >= 0. Raises
        ShapeError for another shape or type."""
        samples = np.asarray(samples)
        if samples.ndim != 1 or samples.dtype.kind != "f":
            raise ShapeError(f"A stream takes floats of shape (n,), got {samples.dtype} of shape {samples.shape}.")
        self._held = np.concatenate([self._held, samples.astype(np.float32, copy=False)])
        if not self._begun and len(self._held) > self._margin:
            self._held = np.pad(self._held, (self._margin, 0), mode="reflect")
            self._begun = True
        return self._frames() if self._begun else self._none()

    def finish(self) -> np.ndarray:
        """Return the last frames, float32 (k, bands). Raises ShapeError if the whole recording was shorter than a
        frame."""
        if not self._begun:
            return self.front_end(self._held[None])[0]
        self._held = np.pad(self._held, (0, self._margin), mode="reflect")
        return self._frames()

    def _frames(self) -> np.ndarray:
        found = [self._none()]
        while (count := (len(self._held) - self._next - self._window) // self._hop + 1) > 0:
            count = min(count, _FRAMES)
            end = self._next + (count - 1) * self._hop + self._window
            found.append(self._inner(self._held[None, self._next : end])[0])
            self._next += count * self._hop
        unneeded = max(0, min(self._next, len(self._held) - self._margin - 1))
        self._held, self._next = self._held[unneeded:], self._next - unneeded
        return np.concatenate(found)

    def _none(self) -> np.ndarray:
        return np.empty((0, self._inner.shape(self._window)[1]), np.float32)
