"""Claims on keywords, held against measurements: data, trained networks and this machine decide.

python -m edgelearn.experiments.keywords.check CLIP …      prints seconds and memory of an enrolment, as JSON
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn import child
from edgelearn.child import Worker, WorkerError
from edgelearn.data.features import BC_RESNET, load_features
from edgelearn.data.speech_commands import CLASSES, load_named
from edgelearn.data.tfds import data_folder
from edgelearn.display import MB, plural
from edgelearn.errors import EdgelearnError
from edgelearn.experiments.claims import Claim, NotMeasured, Verdict, Verdicts, check_claims
from edgelearn.keywords.learners import Head, Learner
from edgelearn.keywords.vocabulary import Vocabulary, file_features
from edgelearn.lab.measure import PeakMemory, usable_cores
from edgelearn.lab.runs import Run

from .embedding import ARABIC, ENGLISH, IN_DATA, find_embedder
from .episodes import accuracy
from .personalisation import PersonalisationReport, english_users, load_english, personalise_english, personalise_run

SPLITS, SHOTS, CORES, COMPARED = 3, 5, 2, 100
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


def _data(data: str | None) -> Path:
    """The folder with data sets. Raises NotMeasured if there is none."""
    folder = data_folder(data)
    if not folder:
        raise NotMeasured("needs data: set EDGELEARN_DATA")
    return Path(folder)


class Imported:
    """The BC-ResNet-1 that was imported, on the clips of 12 classes. Raises NotMeasured without data."""

    def __init__(self, data: str | None, device: str | None) -> None:
        self.weights = _data(data) / IN_DATA
        self.clips, self.embedder = load_named(ENGLISH, data).only(CLASSES), load_english(data, device)

    @property
    def head(self) -> Head:
        assert self.embedder.head is not None
        return self.embedder.head

    def accuracy(self) -> tuple[float, str]:
        predicted = self.head.scores(self.embedder.embed(load_features(self.clips, BC_RESNET))).argmax(1)
        share = accuracy(predicted, self.clips.labels)
        return share, f"{share:.4f} of {plural(len(self.clips), 'clip')}"

    def logits(self) -> tuple[float, str]:
        """Largest difference from PyTorch's logits, relative to the largest of these."""
        if find_spec("torch") is None:
            raise NotMeasured("needs PyTorch: pip install torch")
        some = np.linspace(0, len(self.clips) - 1, COMPARED).astype(int)
        features = load_features(self.clips.take(some), BC_RESNET)
        logits = self.embedder.embed(features) @ self.head.kernel + self.head.bias
        with tempfile.TemporaryDirectory() as folder:
            inputs, outputs = Path(folder) / "features.npy", Path(folder) / "logits.npy"
            np.save(inputs, self.embedder.examples(features))
            if failure := child.run("-m", f"{__package__}.torch_bcresnet", self.weights, inputs, outputs):
                raise NotMeasured(f"PyTorch failed: {failure}")
            expected = np.load(outputs)
        difference = np.abs(logits - expected).max() / np.abs(expected).max()
        return difference, f"{difference:.1e}, {COMPARED} clips"


IMPORTED: tuple[Claim[Imported], ...] = (
    Claim("12-class English, the imported BC-ResNet-1: accuracy ≥ {target}", Imported.accuracy, "≥", 0.955),
    Claim(
        "The imported BC-ResNet-1: logits within {target:g} of PyTorch's in float64, relative to the largest",
        Imported.logits, "≤", 1e-5,
    ),
)  # fmt: skip


def _episodes(speakers: str, shots: int, name: str, runs: Sequence[Run]) -> tuple[float, str]:
    """Mean over runs of a measure. `runs`: one for each split."""
    if not runs:
        raise NotMeasured("no run")
    means = [_mean(run, PLAIN, speakers, shots, name, "cosine") for run in runs]
    mean, shown = float(np.mean(means)), " / ".join(f"{value:.3f}" for value in means)
    if len(means) < SPLITS:
        raise NotMeasured(f"{mean:.3f} ({shown})")
    return mean, f"{mean:.3f} ({shown})"


def _mean(run: Run, learner: str, speakers: str, shots: int, name: str, distance: str) -> float:
    """Mean of the measure `name` over a run's episodes; learners without a distance use that of training."""
    return next(
        report["measures"][name]["mean"]
        for report in run.record["results"]["reports"]
        if (report["learner"], report["speakers"], report["shots"]) == (learner, speakers, shots)
        and report.get("distance", distance) == distance
    )


# Runs by classification.
EPISODES: tuple[Claim[Sequence[Run]], ...] = tuple(
    Claim(f"Arabic, {words} ≥ {{target}}, mean of {SPLITS} splits", partial(_episodes, *measure), "≥", least)
    for words, measure, least in (
        ("1 clip by the speaker: accuracy", ("same", 1, "accuracy"), 0.92),
        ("5 clips by the speaker: accuracy", ("same", 5, "accuracy"), 0.96),
        ("5 clips by the speaker: AUROC", ("same", 5, "auroc"), 0.96),
        ("5 clips by other speakers: accuracy", ("other", 5, "accuracy"), 0.86),
    )
)


def _dummies(run: Run) -> tuple[bool, str]:
    distance = run.config["distance"]
    pairs = [
        [_mean(run, learner, "same", shots, "auroc", distance) for learner in (DUMMIES, PLAIN)] for shots in (1, 5)
    ]
    shown = ", ".join(f"{dummies:.4f} against {plain:.4f}" for dummies, plain in pairs)
    return all(dummies >= plain for dummies, plain in pairs), shown


def dummies_claim(who: str) -> Claim[Run]:
    """The claim on a run with dummy prototypes."""
    return Claim(f"{who}: AUROC with dummy prototypes no worse than without, 1 and 5 clips", _dummies)


def _reduction(p: PersonalisationReport) -> tuple[float, str]:
    low, high = p.reduction_interval
    return p.reduction, f"{p.reduction:.0%} ({low:.0%} to {high:.0%}), {plural(len(p.users), 'user')}"


def _false_accepts(p: PersonalisationReport) -> tuple[float, str]:
    before, after = (100 * p.mean(f"false_accepts_{when}") for when in ("before", "after"))
    return p.increase("false_accepts"), f"{before:.2f} → {after:.2f} %"


def personal_claims(who: str) -> tuple[Claim[PersonalisationReport], ...]:
    """Claims on enrolments of SHOTS clips."""
    return (
        Claim(
            f"{who}: {SHOTS} clips a word reduce the mean error over users by ≥ {{target:.0%}}", _reduction, "≥", 0.3
        ),
        Claim(
            f"{who}: the worst tenth's by ≥ {{target:.0%}}",
            lambda p: (p.worst_reduction, f"{p.worst_reduction:.0%}"), "≥", 0.4,
        ),
        Claim(
            f"{who}: false accepts of other people's speech at most 1 point more", _false_accepts, "≤", 0.01
        ),
    )  # fmt: skip


def _enrolment(data: str | None) -> EnrolmentCost:
    weights = _data(data) / IN_DATA
    return measure([item for item in load_named(ARABIC, data).items if isinstance(item, Path)][:SHOTS], str(weights))


ENROLMENT: tuple[Claim[EnrolmentCost], ...] = (
    Claim(
        f"An enrolment of {SHOTS} clips on two cores < {{target:g}} s",
        lambda cost: (cost.seconds, f"{cost.seconds:.2f} s"), "<", 2.0,
    ),
    Claim(
        f"An enrolment of {SHOTS} clips < {{target}} MB more than after the imports",
        lambda cost: (cost.nbytes / MB, f"{cost.nbytes / MB:.1f} MB"), "<", 67,
    ),
)  # fmt: skip


def check(
    runs: Sequence[Run], data: str | None = None, device: str | None = None,
    each: Callable[[Verdict], object] = lambda verdict: None,
) -> Verdicts:  # fmt: skip
    """Check all claims, one after the other.

    Arguments:
    - `runs`: finished runs of the task "arabic", by classification and with dummy prototypes, for SPLITS splits.
    - `data`: folder with data sets and weights (default: EDGELEARN_DATA).
    - `device`: part of a device's name (default: chosen).
    - `each`: called with each verdict, as soon as there is one.
    """
    classified, dummies = ([run for run in runs if run.config["method"] == name] for name in ("classify", DUMMIES))

    def english() -> PersonalisationReport:
        _data(data)
        return personalise_english(english_users(data, device), [SHOTS])[0]

    def arabic(run: Run) -> PersonalisationReport:
        _data(data)
        return personalise_run(run.folder, [SHOTS], data, device)[0]

    def no_run() -> Run:
        raise NotMeasured("no run with dummy prototypes")

    found = check_claims(IMPORTED, partial(Imported, data, device), each)
    found += check_claims(EPISODES, lambda: classified, each)
    for run in dummies:
        found += check_claims([dummies_claim(_split(run))], lambda run=run: run, each)
    if not dummies:
        found += check_claims([dummies_claim("Arabic")], no_run, each)
    found += check_claims(personal_claims("English"), english, each)
    for run in classified:
        found += check_claims(personal_claims(_split(run)), partial(arabic, run), each)
    return found + check_claims(ENROLMENT, partial(_enrolment, data), each)


def _split(run: Run) -> str:
    return f"Arabic, split {run.config['seed']}"


def _main() -> None:
    parser = argparse.ArgumentParser("python -m edgelearn.experiments.keywords.check")
    parser.add_argument("clips", nargs="+")
    parser.add_argument("--network")
    parser.add_argument("--learner", default="nearest-mean")
    options = parser.parse_args()
    print(json.dumps(asdict(measure(options.clips, options.network, options.learner))))


if __name__ == "__main__":
    _main()
