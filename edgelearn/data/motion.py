"""Windows of motion sensors, by person: recordings of phones and watches, and drawn ones.

`load_motion` reads the data set of Matey-Sanz, Casteleyn and Granell 2023 ("Dataset of inertial measurements of
smartphones and smartwatches for human activity recognition", Data in Brief 109809; CC BY 4.0): 23 people sit, stand up,
walk, turn and sit down, up to ten times each. `drawn_motion` draws people who differ in how they move and in how they
wear the sensor.
"""

from __future__ import annotations

import io
import lzma
import os
import re
import tarfile
from dataclasses import dataclass
from functools import lru_cache
from math import pi
from pathlib import Path

import numpy as np

from edgelearn.errors import DataError

from .tfds import data_folder

FILE = "sequences/sp-sw-har.tar.xz"  # in the folder that EDGELEARN_DATA names
ACTIVITIES = ("SEATED", "STANDING_UP", "WALKING", "TURNING", "SITTING_DOWN")
SENSORS = ("phone", "watch", "both")
STEPS = 50  # of a window, of which the next one shares half
AXES = 6  # of a device: acceleration and rotation about x, y and z
# Largest acceleration (m/s²) and rotation (rad/s) that a device reports: they become 1.
_RANGES = {"sp": (78.45317840576172, 17.45274543762207), "sw": (78.4532, 34.906586)}
_NAME = re.compile(r"(s\d+)_(\d+)_(sp|sw)\.csv$")
_PERSON, _RUN = 41, 42  # separate these random streams from others of the same seed


@dataclass(frozen=True, eq=False)
class MotionDataset:
    """Windows of motion sensors.

    Arguments:
    - `windows`: float32 (n, steps, channels), from -1 to 1.
    - `labels`: number of each window's activity, int32 (n,).
    - `people`: name of the person, (n,). `runs`: number of the person's recording, int32 (n,).
    - `class_names`: the activities.
    - `origin`: "drawn", or where the data is from.
    - `description`: the same in words.
    """

    windows: np.ndarray
    labels: np.ndarray
    people: np.ndarray
    runs: np.ndarray
    class_names: tuple[str, ...]
    origin: str
    description: str

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def names(self) -> list[str]:
        """Names of the people, sorted."""
        return sorted(set(self.people.tolist()))

    def first_run(self, person: str) -> np.ndarray:
        """bool (n,): windows of a person's first recording."""
        own = self.people == person
        return own & (self.runs == self.runs[own].min())


def find_motion(data: str | os.PathLike | None = None) -> Path | None:
    """The file of the recordings in the folder `data`, else in EDGELEARN_DATA; None if neither has it."""
    named = data_folder(data)
    path = Path(named) / FILE if named else None
    return path if path is not None and path.is_file() else None


def load_motion(sensors: str = "phone", data: str | os.PathLike | None = None, drawn: bool = False) -> MotionDataset:
    """Load the recordings, or draw some where there are none.

    Windows of 50 steps, at about 100 Hz, share half of their steps with the next one, as those of Matey-Sanz et al.'s
    study (github.com/GeoTecINIT/har-performance-study); a window has the label that most of its steps have.

    Arguments:
    - `sensors`: "phone" (default), "watch" or "both"; of these, steps are paired from the later beginning on.
    - `data`: folder with the data (default: EDGELEARN_DATA).
    - `drawn`: draw them in any case (default False).

    Raises DataError for a folder `data` that lacks the file, or a file that can't be read.
    """
    if sensors not in SENSORS:
        raise DataError(f"Motion is measured by {', '.join(SENSORS)}, not '{sensors}'.")
    path = None if drawn else find_motion(data)
    if path is not None:
        return _load(str(path), sensors)
    if data and not drawn:
        raise DataError(f"{data} has no {FILE}: give another folder, or leave it out to train on drawn motion.")
    return drawn_motion(devices=2 if sensors == "both" else 1)


@lru_cache(maxsize=3)
def _load(path: str, sensors: str) -> MotionDataset:
    recordings = _read(path)
    parts: list[tuple[np.ndarray, np.ndarray, str, int]] = []
    for person, run in sorted({key[:2] for key in recordings}):
        found = {kind: recordings[person, run, kind] for kind in _RANGES if (person, run, kind) in recordings}
        if sensors == "both":
            if len(found) < len(_RANGES):
                continue
            values, labels = _paired(found["sp"], found["sw"])
        else:
            kind = "sp" if sensors == "phone" else "sw"
            if kind not in found:
                continue
            _, values, labels = found[kind]
        windows, classes = cut(values, labels)
        parts.append((windows, classes, person, run))
    what = {"phone": "a phone", "watch": "a watch", "both": "a phone and a watch"}[sensors]
    return _joined(
        parts, ACTIVITIES, "sp-sw-har",
        "{n:,} windows of {people} people with " + what + " (Matey-Sanz et al. 2023, CC BY 4.0).",
    )  # fmt: skip


_Recording = tuple[np.ndarray, np.ndarray, np.ndarray]  # milliseconds, values (steps, axes), labels


@lru_cache(maxsize=1)
def _read(path: str) -> dict[tuple[str, int, str], _Recording]:
    """The recordings by person, number and kind of device. Raises DataError."""
    found = {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if match := _NAME.search(member.name):
                    person, run, kind = match.groups()
                    file = archive.extractfile(member)
                    found[person, int(run), kind] = _parse(file.read() if file else b"", kind, member.name)
    except (OSError, tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise DataError(f"{path} can't be read ({error}): download it again.") from None
    if not found:
        raise DataError(f"{path} has no recordings such as DATA/s01/s01_01_sp.csv.")
    return found


def _parse(text: bytes, kind: str, name: str) -> _Recording:
    acceleration, rotation = _RANGES[kind]
    try:
        table = np.loadtxt(io.StringIO(text.decode()), str, delimiter=",", skiprows=1, ndmin=2)
        values = table[:, :AXES].astype(np.float64) / np.repeat([acceleration, rotation], 3)
        labels = np.array([ACTIVITIES.index(label) for label in table[:, -1].tolist()], np.int32)
        return table[:, AXES].astype(np.int64), values, labels
    except (ValueError, IndexError) as error:
        raise DataError(f"{name} is no recording of six axes, a time and an activity ({error}).") from None


def _paired(phone: _Recording, watch: _Recording) -> tuple[np.ndarray, np.ndarray]:
    """(values of both, labels): step by step from the later beginning on, where both have the same label."""
    begin = max(phone[0][0], watch[0][0])
    (_, a, of_a), (_, b, of_b) = ([part[np.argmax(side[0] >= begin) :] for part in side] for side in (phone, watch))
    count = min(len(a), len(b))
    same = of_a[:count] == of_b[:count]
    return np.concatenate([a[:count], b[:count]], 1)[same], of_a[:count][same]


def cut(values: np.ndarray, labels: np.ndarray, steps: int = STEPS) -> tuple[np.ndarray, np.ndarray]:
    """Cut a recording, (steps, axes) with a label for each step, into windows that overlap by half: (windows, float32
    (n, steps, axes); the label that most of their steps have, int32 (n,))."""
    starts = range(0, len(values) - steps + 1, steps // 2)
    windows = np.stack([values[s : s + steps] for s in starts]) if starts else np.empty((0, steps, values.shape[1]))
    return windows.astype(np.float32), np.array([_most(labels[s : s + steps]) for s in starts], np.int32)


def _most(labels: np.ndarray) -> int:
    """The most frequent label, of equals the first one to occur."""
    known, first, counts = np.unique(labels, return_index=True, return_counts=True)
    return int(known[np.lexsort((first, -counts))[0]])


def _joined(
    parts: list[tuple[np.ndarray, np.ndarray, str, int]], class_names: tuple[str, ...], origin: str, description: str
) -> MotionDataset:
    windows, labels, people, runs = zip(*parts, strict=True)
    counts = [len(each) for each in labels]
    text = description.format(n=sum(counts), people=len(set(people)))
    return MotionDataset(
        np.concatenate(windows), np.concatenate(labels), np.repeat(people, counts),
        np.repeat(np.array(runs, np.int32), counts), class_names, origin, text,
    )  # fmt: skip


# -- features ---------------------------------------------------------------------------------------------------------


def motion_features(windows: np.ndarray) -> np.ndarray:
    """Features of windows, float32 (n, 47) for each device: of each axis mean, median, maximum, minimum, standard
    deviation, range and root mean square, then pitch and roll in degrees and the three angles that the rotations add
    up to, as in the study that `load_motion` names. `windows`: (n, steps, 6), or 12 of two devices."""
    return np.concatenate(
        [_features(windows[..., at : at + AXES].astype(np.float64)) for at in range(0, windows.shape[-1], AXES)], 1
    ).astype(np.float32)


def _features(x: np.ndarray) -> np.ndarray:
    top, bottom = x.max(1), x.min(1)
    statistics = [x.mean(1), np.median(x, 1), top, bottom, x.std(1), top - bottom, np.sqrt((x**2).mean(1))]
    tilts = np.arctan2(x[..., 1], x[..., 2]), np.arctan2(-x[..., 0], np.hypot(x[..., 1], x[..., 2]))
    turned = x[..., 3:].sum(1) - (x[:, 0, 3:] + x[:, -1, 3:]) / 2  # the trapezoidal rule
    return np.concatenate([*statistics, np.degrees(tilts).mean(-1).T, turned], 1)


# -- drawn ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Activity:
    """A drawn activity.

    Arguments:
    - `rate`: movements in a second.
    - `sway`: of the body to each side, forwards and upwards, in g.
    - `turn`: of the body about each axis, in radians a second.
    - `tilt`: of the body forwards, in radians.
    """

    rate: float
    sway: tuple[float, float, float]
    turn: tuple[float, float, float]
    tilt: float = 0.0


DRAWN = {
    "sitting": _Activity(0.3, (0.01, 0.01, 0.02), (0.05, 0.05, 0.05), 0.5),
    "standing": _Activity(0.4, (0.03, 0.02, 0.02), (0.1, 0.1, 0.1)),
    "walking": _Activity(1.8, (0.15, 0.2, 0.35), (0.5, 0.3, 0.6), 0.05),
    "stairs": _Activity(1.5, (0.2, 0.25, 0.4), (0.7, 0.5, 0.5), 0.15),
    "running": _Activity(2.6, (0.35, 0.5, 1.0), (1.2, 0.8, 1.0), 0.15),
}
DRAWN_HZ = 50  # steps in a second
_GRAVITY, _G_RANGE, _TURN_RANGE = 1.0, 8.0, 17.0  # g, and what becomes 1: g and radians a second


@lru_cache(maxsize=4)
def drawn_motion(
    people: int = 12, runs: int = 4, seconds: float = 6.0, devices: int = 1, seed: int = 0
) -> MotionDataset:
    """Draw people who sit, stand, walk, climb stairs and run. They differ in pace, force and in how they wear the
    device, so that a network that knows others errs more on a new person than one that knows this person, too.

    Arguments:
    - `people`, `runs`: their number, and recordings of each (default 12 and 4).
    - `seconds`: of an activity in a recording (default 6), of 50 steps each.
    - `devices`: worn by each, 6 channels each (default 1).
    - `seed`: of all draws (default 0).

    A recording depends on (seed, person, run) alone. Raises DataError for less than one of anything, or a window.
    """
    if min(people, runs, devices) < 1 or seconds * DRAWN_HZ < STEPS:
        raise DataError(f"Drawn motion has 1 person, run and device or more, and {STEPS / DRAWN_HZ:g} s or more.")
    parts = []
    for person in range(people):
        style = _Style.draw(np.random.default_rng([seed, _PERSON, person]), devices)
        for run in range(1, runs + 1):
            rng = np.random.default_rng([seed, _RUN, person, run])
            values = [style.move(activity, round(seconds * DRAWN_HZ), rng) for activity in DRAWN.values()]
            labels = np.repeat(np.arange(len(DRAWN)), [len(each) for each in values])
            parts.append((*cut(np.concatenate(values), labels), f"p{person + 1:02}", run))
    return _joined(parts, tuple(DRAWN), "drawn", "{n:,} drawn windows of {people} people.")


@dataclass(frozen=True)
class _Style:
    """How a drawn person moves.

    Arguments:
    - `pace`, `force`: factors of rate and of amplitudes.
    - `second`: share of the second harmonic in a movement.
    - `worn`: how each device is turned, (devices, 3, 3).
    """

    pace: float
    force: float
    second: float
    worn: np.ndarray

    @classmethod
    def draw(cls, rng: np.random.Generator, devices: int) -> _Style:
        pace, force = np.exp(rng.normal(0, (0.12, 0.3)))
        worn = np.stack([_turned(rng.normal(0, (0.35, 0.35, 0.6))) for _ in range(devices)])
        return cls(float(pace), float(force), float(rng.uniform(0.1, 0.7)), worn)

    def move(self, activity: _Activity, steps: int, rng: np.random.Generator) -> np.ndarray:
        """Values of a recording of an activity, (steps, 6 a device)."""
        pace, force = np.exp(rng.normal(0, 0.05, 2))
        time = np.arange(steps) / DRAWN_HZ
        angle = 2 * pi * (activity.rate * self.pace * pace * time + 0.15 * np.sin(time + rng.uniform(0, 2 * pi)))
        phases = rng.uniform(0, 2 * pi, 6)
        waves = np.sin(angle[:, None] + phases) + self.second * np.sin(2 * angle[:, None] + 2 * phases)
        scale = self.force * force
        acceleration = scale * np.array(activity.sway) * waves[:, :3]
        tilt = activity.tilt + rng.normal(0, 0.08)
        acceleration += _GRAVITY * np.array([0, np.sin(tilt), np.cos(tilt)])
        rotation = scale * np.array(activity.turn) * waves[:, 3:]
        worn = [np.concatenate([acceleration @ m, rotation @ m], 1) for m in self.worn]
        noise = rng.normal(0, 1, (steps, AXES * len(worn))) * np.tile(np.repeat([0.04, 0.12], 3), len(worn))
        scales = np.tile(np.repeat([_G_RANGE, _TURN_RANGE], 3), len(worn))
        return np.clip((np.concatenate(worn, 1) + noise) / scales, -1, 1)


def _turned(angles: np.ndarray) -> np.ndarray:
    """Rotation matrix of angles about x, y and z."""
    found = np.eye(3)
    for axis, angle in enumerate(angles):
        a, b = (other for other in range(3) if other != axis)
        turn = np.eye(3)
        turn[a, a] = turn[b, b] = np.cos(angle)
        turn[a, b], turn[b, a] = -np.sin(angle), np.sin(angle)
        found = found @ turn
    return found
