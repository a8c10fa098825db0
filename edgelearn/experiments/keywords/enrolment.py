"""The cost of an enrolment: seconds and memory of a process of its own that learns a word from a few clips.

python -m edgelearn.experiments.keywords.enrolment CLIP …      prints both as JSON
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgelearn.child import Worker, WorkerError
from edgelearn.errors import EdgelearnError
from edgelearn.lab.measure import PeakMemory, usable_cores

CORES = 2


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
    - `network`: as `networks.find_embedder` takes it (default: its own).
    - `learner`: a name of `Learner.named`.

    Raises EdgelearnError if the enrolment fails.
    """
    cost: dict[str, Any] = {}
    for _ in range(2):
        try:
            with Worker("edgelearn.experiments.keywords.enrolment:Enroller", cores=usable_cores()[:CORES]) as worker:
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

        from . import embedding  # noqa: F401

        self.memory = PeakMemory()

    def enrol(self, clips: list[str], network: str | None, learner: str) -> dict[str, Any]:
        from edgelearn.keywords.learners import Learner
        from edgelearn.keywords.vocabulary import Vocabulary, file_features

        from .embedding import find_embedder

        start = time.perf_counter()
        embedder, _ = find_embedder(network)
        vocabulary = Vocabulary.empty(embedder).add("word", file_features(clips, embedder))
        vocabulary.enrol(embedder, Learner.named(learner)())
        return asdict(EnrolmentCost(time.perf_counter() - start, self.memory.over_imports))


def _main() -> None:
    parser = argparse.ArgumentParser("python -m edgelearn.experiments.keywords.enrolment")
    parser.add_argument("clips", nargs="+")
    parser.add_argument("--network")
    parser.add_argument("--learner", default="nearest-mean")
    options = parser.parse_args()
    print(json.dumps(asdict(measure(options.clips, options.network, options.learner))))


if __name__ == "__main__":
    _main()
