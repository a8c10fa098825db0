"""Claims on keywords, held against measurements: data, trained networks and this machine decide.

python -m edgelearn.experiments.keywords.check CLIP …      prints seconds and memory of an enrolment, as JSON
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn import child
from edgelearn.child import Worker, WorkerError
from edgelearn.data.audio import ClipDataset
from edgelearn.data.features import BC_RESNET, load_features
from edgelearn.data.speech_commands import CLASSES, load_named
from edgelearn.data.tfds import data_folder
from edgelearn.display import MB
from edgelearn.errors import EdgelearnError
from edgelearn.experiments.claims import Claim
from edgelearn.keywords.learners import Embedder, Head, Learner
from edgelearn.keywords.vocabulary import Vocabulary, file_features
from edgelearn.lab.measure import PeakMemory, usable_cores
from edgelearn.lab.runs import Run

from .embedding import ARABIC, ENGLISH, IN_DATA, find_embedder
from .episodes import accuracy
from .personalisation import PersonalisationReport, english_users, load_english, personalise_english, personalise_run

# Claims on episodes: text, speakers, shots, measure, and the least mean over splits.
EPISODES = (
    ("1 clip by the speaker: accuracy", "same", 1, "accuracy", 0.92),
    ("5 clips by the speaker: accuracy", "same", 5, "accuracy", 0.96),
    ("5 clips by the speaker: AUROC", "same", 5, "auroc", 0.96),
    ("5 clips by other speakers: accuracy", "other", 5, "accuracy", 0.86),
)
SPLITS = 3
IMPORTED_ACCURACY, LOGITS, COMPARED = 0.955, 1e-5, 100
REDUCTION, WORST_REDUCTION, INCREASE = 0.3, 0.4, 0.01
SECONDS, MEGABYTES, SHOTS, CORES = 2.0, 67, 5, 2
PLAIN, DUMMIES = "nearest-mean", "dummy-prototypes"


@dataclass(frozen=True)
class EnrolmentCost:
    """Cost of an enrolment.

    - `seconds`: from clips in files to known words: decoding, features, the network, learning.
    - `nbytes`: peak memory of the process minus its memory after the imports.
    """

    seconds: float
    nbytes: int


def measure(clips: Sequence[str | Path], network: str | None = None, learner: str = "nearest-mean") -> EnrolmentCost:
    """Measure the enrolment of one word, on CORES cores (all, if there are fewer), in the second of two processes, when
    compiled programs are stored.

    Arguments:
    - `clips`: sound files of the word.
    - `network`: as `embedding.find_embedder` takes it (default: its own).
    - `learner`: a name of `Learner.named`.

    Raises EdgelearnError if the enrolment fails.
    """
    cost: dict[str, Any] = {}
    for _ in range(2):
        try:
            with Worker("edgelearn.experiments.keywords.check:Enroller", cores=usable_cores()[:CORES]) as worker:
                cost = worker.call("enrol", [str(clip) for clip in clips], network, learner)
        except WorkerError as error:
            reason = error.reason or str(error).splitlines()[-1]
            raise EdgelearnError(f"The enrolment to be measured failed: {reason}. Try it with `enrol`.") from None
    return EnrolmentCost(**cost)


class Enroller:
    """Runs in the worker process; the memory of imports made here doesn't count."""

    def __init__(self) -> None:
        import pyopencl  # noqa: F401
        import soundfile  # noqa: F401
        import soxr  # noqa: F401

        self.memory = PeakMemory()

    def enrol(self, clips: list[str], network: str | None, learner: str) -> dict[str, Any]:
        start = time.perf_counter()
        embedder, _ = find_embedder(network)
        vocabulary = Vocabulary.empty(embedder).add("word", file_features(clips, embedder))
        vocabulary.enrol(embedder, Learner.named(learner)())
        return asdict(EnrolmentCost(time.perf_counter() - start, self.memory.over_imports))


def check(runs: Sequence[Run], data: str | None = None, device: str | None = None) -> Iterator[Claim]:
    """Check all claims, one after the other.

    Arguments:
    - `runs`: finished runs of the task "arabic", by classification and with dummy prototypes, for SPLITS splits.
    - `data`: folder with data sets and weights (default: EDGELEARN_DATA).
    - `device`: part of a device's name (default: chosen).
    """
    by_method = {method: [run for run in runs if run.config["method"] == method] for method in ("classify", DUMMIES)}
    yield from _with_data(data, "12-class English", lambda: _imported(data, device))
    yield from _episodes(by_method["classify"])
    yield from _dummies(by_method[DUMMIES])
    yield from _with_data(
        data, "English", lambda: _personal("English", personalise_english(english_users(data, device), [SHOTS]))
    )
    for run in by_method["classify"]:
        name = f"Arabic, split {run.config['seed']}"
        yield from _with_data(data, name, partial(_arabic, name, run, data, device))
    yield from _with_data(data, "An enrolment", lambda: _enrolment(data))


def _with_data(data: str | None, claim: str, measure: Callable[[], list[Claim]]) -> list[Claim]:
    """Claims that need data; without it, one that wasn't measured."""
    if not data_folder(data):
        return [Claim(claim, "needs data: set EDGELEARN_DATA", None)]
    return measure()


def _imported(data: str | None, device: str | None) -> list[Claim]:
    clips, embedder = load_named(ENGLISH, data).only(CLASSES), load_english(data, device)
    head = embedder.head
    assert head is not None
    share = accuracy(head.scores(embedder.embed(load_features(clips, BC_RESNET))).argmax(1), clips.labels)
    claim = f"12-class English, the imported BC-ResNet-1: accuracy ≥ {IMPORTED_ACCURACY}"
    return [
        Claim(claim, f"{share:.4f} of {len(clips):,} clips", share >= IMPORTED_ACCURACY),
        _logits(clips, embedder, head, data),
    ]


def _logits(clips: ClipDataset, embedder: Embedder, head: Head, data: str | None) -> Claim:
    claim = f"The imported BC-ResNet-1: logits within {LOGITS:g} of PyTorch's in float64, relative to the largest"
    if find_spec("torch") is None:
        return Claim(claim, "needs PyTorch: pip install torch", None)
    features = load_features(clips.take(np.linspace(0, len(clips) - 1, COMPARED).astype(int)), BC_RESNET)
    logits = embedder.embed(features) @ head.kernel + head.bias
    with tempfile.TemporaryDirectory() as folder:
        inputs, outputs = Path(folder) / "features.npy", Path(folder) / "logits.npy"
        np.save(inputs, embedder.examples(features))
        twin, weights = f"{__package__}.torch_bcresnet", Path(data_folder(data) or "") / IN_DATA
        if failure := child.run("-m", twin, weights, inputs, outputs):
            return Claim(claim, f"PyTorch failed: {failure}", None)
        expected = np.load(outputs)
    difference = np.abs(logits - expected).max() / np.abs(expected).max()
    return Claim(claim, f"{difference:.1e}, {COMPARED} clips", bool(difference <= LOGITS))


def _episodes(runs: Sequence[Run]) -> Iterator[Claim]:
    for claim, speakers, shots, name, least in EPISODES:
        means = [_mean(run, PLAIN, speakers, shots, name, "cosine") for run in runs]
        mean = float(np.mean(means)) if means else float("nan")
        shown = " / ".join(f"{value:.3f}" for value in means)
        text = f"{mean:.3f} ({shown})" if means else "no run"
        passed = mean >= least if len(means) >= SPLITS else None
        yield Claim(f"Arabic, {claim} ≥ {least}, mean of {SPLITS} splits", text, passed)


def _dummies(runs: Sequence[Run]) -> Iterator[Claim]:
    for run in runs:
        distance = run.config["distance"]
        pairs = [
            [_mean(run, learner, "same", shots, "auroc", distance) for learner in (DUMMIES, PLAIN)] for shots in (1, 5)
        ]
        shown = ", ".join(f"{dummies:.4f} against {plain:.4f}" for dummies, plain in pairs)
        claim = f"Arabic, split {run.config['seed']}: AUROC with dummy prototypes no worse than without, 1 and 5 clips"
        yield Claim(claim, shown, all(dummies >= plain for dummies, plain in pairs))
    if not runs:
        yield Claim("Arabic: AUROC with dummy prototypes no worse than without", "no run with dummy prototypes", None)


def _mean(run: Run, learner: str, speakers: str, shots: int, name: str, distance: str) -> float:
    """Mean of the measure `name` over a run's episodes; learners without a distance use that of training."""
    return next(
        report["measures"][name]["mean"]
        for report in run.record["results"]["reports"]
        if (report["learner"], report["speakers"], report["shots"]) == (learner, speakers, shots)
        and report.get("distance", distance) == distance
    )


def _arabic(name: str, run: Run, data: str | None, device: str | None) -> list[Claim]:
    return _personal(name, personalise_run(run.folder, [SHOTS], data, device))


def _personal(name: str, reports: Sequence[PersonalisationReport]) -> list[Claim]:
    (p,) = reports
    low, high = p.reduction_interval
    before, after = (100 * p.mean(f"false_accepts_{when}") for when in ("before", "after"))
    return [
        Claim(
            f"{name}: {SHOTS} clips a word reduce the mean error over users by ≥ {REDUCTION:.0%}",
            f"{p.reduction:.0%} ({low:.0%} to {high:.0%}), {len(p.users)} users", p.reduction >= REDUCTION,
        ),
        Claim(
            f"{name}: the worst tenth's by ≥ {WORST_REDUCTION:.0%}", f"{p.worst_reduction:.0%}",
            p.worst_reduction >= WORST_REDUCTION,
        ),
        Claim(
            f"{name}: false accepts of other people's speech at most {100 * INCREASE:.0f} point more",
            f"{before:.2f} → {after:.2f} %", p.increase("false_accepts") <= INCREASE,
        ),
    ]  # fmt: skip


def _enrolment(data: str | None) -> list[Claim]:
    clips = [item for item in load_named(ARABIC, data).items if isinstance(item, Path)][:SHOTS]
    cost = measure(clips, str(Path(data_folder(data) or "") / IN_DATA))
    seconds, used = f"{cost.seconds:.2f} s", cost.nbytes / MB
    return [
        Claim(f"An enrolment of {SHOTS} clips on two cores < {SECONDS:g} s", seconds, cost.seconds < SECONDS),
        Claim(
            f"An enrolment of {SHOTS} clips < {MEGABYTES} MB more than after the imports",
            f"{used:.1f} MB",
            used < MEGABYTES,
        ),
    ]


def _main() -> None:
    parser = argparse.ArgumentParser("python -m edgelearn.experiments.keywords.check")
    parser.add_argument("clips", nargs="+")
    parser.add_argument("--network")
    parser.add_argument("--learner", default="nearest-mean")
    options = parser.parse_args()
    print(json.dumps(asdict(measure(options.clips, options.network, options.learner))))


if __name__ == "__main__":
    _main()
