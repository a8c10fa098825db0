"""The figures that the lab is to reach, held against what is there: data, trained networks, this machine."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from edgelearn.data.audio.cache import load_features
from edgelearn.data.audio.features import BC_RESNET
from edgelearn.data.audio.speech_commands import CLASSES, load_named
from edgelearn.data.tfds import data_folder
from edgelearn.experiments.claim import Claim
from edgelearn.lab.runs import Run

from .embedding.data import ARABIC
from .embedding.personal import personalise_run
from .english import CLIPS, WEIGHTS, load_twelve, personalise_english
from .enrolment import measure
from .metrics import accuracy
from .personal import Personalisation

# What is measured in episodes: a claim, speakers, shots, the measure, and what its mean over splits has to reach.
EPISODES = (
    ("1 clip by the speaker: accuracy", "same", 1, "accuracy", 0.92),
    ("5 clips by the speaker: accuracy", "same", 5, "accuracy", 0.96),
    ("5 clips by the speaker: AUROC", "same", 5, "auroc", 0.96),
    ("5 clips by other speakers: accuracy", "other", 5, "accuracy", 0.86),
)
SPLITS = 3
IMPORTED_ACCURACY, LOGITS, COMPARED = 0.955, 1e-5, 100
CUT, WORST_CUT, RISE = 0.3, 0.4, 0.01
SECONDS, MIB, SHOTS = 2.0, 64, 5
PLAIN, DUMMIES = "nearest-mean", "dummies"


def check(runs: Sequence[Run], data: str | None = None, device: str | None = None) -> Iterator[Claim]:
    """All of it, one by one. `runs` are finished KeywordsJobs of the task "arabic", by classification and with dummies,
    for SPLITS splits."""
    trained = {method: [run for run in runs if run.config["method"] == method] for method in ("classify", DUMMIES)}
    yield from _where(data, "12-class English", lambda: _twelve(data, device))
    yield from _where(data, "PyTorch's logits", lambda: _logits(data, device))
    yield from _episodes(trained["classify"])
    yield from _dummies(trained[DUMMIES])
    yield from _where(data, "English", lambda: _personal("English", personalise_english([SHOTS], data, device)))
    for run in trained["classify"]:
        name = f"Arabic, split {run.config['seed']}"
        yield from _where(data, name, partial(_arabic, name, run, data, device))
    yield from _where(data, "An enrolment", lambda: _enrolment(data))


def _where(data: str | None, claim: str, measured: Callable[[], list[Claim]]) -> list[Claim]:
    """Open, where there is no data to measure with."""
    if not data_folder(data):
        return [Claim(claim, "needs data: set EDGELEARN_DATA", None)]
    return measured()


def _twelve(data: str | None, device: str | None) -> list[Claim]:
    clips, embedder = load_named(CLIPS, data).only(CLASSES), load_twelve(data, device)
    scores = embedder.head.scores(embedder.embed(load_features(clips, BC_RESNET)))
    right = accuracy(scores.argmax(1), clips.labels)
    claim = f"12-class English, the imported BC-ResNet-1: accuracy ≥ {IMPORTED_ACCURACY}"
    return [Claim(claim, f"{right:.4f} of {len(clips):,} clips", right >= IMPORTED_ACCURACY)]


def _logits(data: str | None, device: str | None) -> list[Claim]:
    claim = f"The imported BC-ResNet-1: logits at most {LOGITS:g} of the largest off PyTorch's in float64"
    if find_spec("torch") is None:
        return [Claim(claim, "needs PyTorch: pip install torch", None)]
    clips, embedder = load_named(CLIPS, data).only(CLASSES), load_twelve(data, device)
    some = clips.take(np.linspace(0, len(clips) - 1, COMPARED).astype(int))
    features = load_features(some, BC_RESNET)
    logits = embedder.embed(features) @ embedder.head.kernel + embedder.head.bias
    with tempfile.TemporaryDirectory() as folder:
        heard, found = Path(folder) / "features.npy", Path(folder) / "logits.npy"
        np.save(heard, embedder.examples(features))
        twin, weights = f"{__package__}.torch_bcresnet", Path(data_folder(data)) / WEIGHTS
        command = [sys.executable, "-m", twin, weights, heard, found]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = done.stderr.strip().splitlines()[-1:] or ["no message"]
            return [Claim(claim, f"PyTorch failed: {reason[0]}", None)]
        expected = np.load(found)
    off = np.abs(logits - expected).max() / np.abs(expected).max()
    return [Claim(claim, f"{off:.1e}, {COMPARED} clips", bool(off <= LOGITS))]


def _episodes(runs: Sequence[Run]) -> Iterator[Claim]:
    for claim, speakers, shots, name, least in EPISODES:
        found = [_mean(run, PLAIN, speakers, shots, name, "cosine") for run in runs]
        mean = float(np.mean(found)) if found else float("nan")
        shown = " / ".join(f"{value:.3f}" for value in found)
        told = mean >= least if len(found) >= SPLITS else None
        text = f"{mean:.3f} ({shown})" if found else "no run"
        yield Claim(f"Arabic, {claim} ≥ {least}, mean of {SPLITS} splits", text, told)


def _dummies(runs: Sequence[Run]) -> Iterator[Claim]:
    for run in runs:
        distance = run.config["distance"]
        pairs = [
            [_mean(run, learner, "same", shots, "auroc", distance) for learner in (DUMMIES, PLAIN)] for shots in (1, 5)
        ]
        shown = ", ".join(f"{dummies:.4f} beside {plain:.4f}" for dummies, plain in pairs)
        claim = f"Arabic, split {run.config['seed']}: AUROC of dummies no worse than of prototypes, 1 and 5 clips"
        yield Claim(claim, shown, all(dummies >= plain for dummies, plain in pairs))
    if not runs:
        yield Claim("Arabic: AUROC of dummies no worse than of prototypes", "no run with dummies", None)


def _mean(run: Run, learner: str, speakers: str, shots: int, name: str, distance: str) -> float:
    """The mean of the measure `name` over a run's episodes; learners without a distance have the one they trained
    with."""
    return next(
        report["measures"][name]["mean"]
        for report in run.record["results"]["reports"]
        if (report["learner"], report["speakers"], report["shots"]) == (learner, speakers, shots)
        and report.get("distance", distance) == distance
    )


def _arabic(name: str, run: Run, data: str | None, device: str | None) -> list[Claim]:
    return _personal(name, personalise_run(run.folder, [SHOTS], data, device))


def _personal(name: str, found: Sequence[Personalisation]) -> list[Claim]:
    (p,) = found
    low, high = p.cut_range
    before, after = (100 * p.column(f"accepts_{when}").mean() for when in ("before", "after"))
    return [
        Claim(
            f"{name}: {SHOTS} clips a word cut the mean error over users by ≥ {CUT:.0%}",
            f"{p.cut:.0%} ({low:.0%} to {high:.0%}), {len(p.users)} users", p.cut >= CUT,
        ),
        Claim(f"{name}: the worst tenth's by ≥ {WORST_CUT:.0%}", f"{p.worst_cut:.0%}", p.worst_cut >= WORST_CUT),
        Claim(
            f"{name}: false accepts of other people's speech at most {100 * RISE:.0f} point more",
            f"{before:.2f} → {after:.2f} %", p.rise("accepts") <= RISE,
        ),
    ]  # fmt: skip


def _enrolment(data: str | None) -> list[Claim]:
    clips = [item for item in load_named(ARABIC, data).items if isinstance(item, Path)][:SHOTS]
    cost = measure(clips, str(Path(data_folder(data)) / WEIGHTS))
    seconds, mib = f"{cost.seconds:.2f} s", cost.nbytes / 2**20
    return [
        Claim(f"An enrolment of {SHOTS} clips on two cores < {SECONDS:g} s", seconds, cost.seconds < SECONDS),
        Claim(f"An enrolment of {SHOTS} clips < {MIB} MiB over imports", f"{mib:.1f} MiB", mib < MIB),
    ]
