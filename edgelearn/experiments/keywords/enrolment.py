"""What an enrolment costs: seconds and memory of a process of its own that learns a word from a few clips.

python -m edgelearn.experiments.keywords.enrolment CLIP …      does it here, and prints both
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from edgelearn.errors import EdgelearnError

CORES = 2


@dataclass(frozen=True)
class EnrolmentCost:
    """seconds: from clips in files to words that are known: decoding, features, the network, learning. nbytes: what
    the process held at its peak over what it held after the imports."""

    seconds: float
    nbytes: int


def measure(clips: Sequence[str | Path], network: str | None = None, learner: str = "nearest-mean") -> EnrolmentCost:
    """Of enrolling one word from these files by `learner`, on CORES cores (as many as there are, if fewer): the second
    of two processes, once compiled programs are kept. `network` is as networks.find_embedder takes it. Needs Linux.

    Raises EdgelearnError when the enrolment fails."""
    command = [sys.executable, "-m", __spec__.name, "--learner", learner, *map(str, clips)]
    command += ["--network", network] if network else []
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = done.stderr.strip().splitlines()[-1:] or ["no message"]
            raise EdgelearnError(f"The enrolment that was to be measured failed: {reason[0]}. Try it with `enrol`.")
    return EnrolmentCost(**json.loads(done.stdout.splitlines()[-1]))


def _main() -> None:
    parser = argparse.ArgumentParser(f"python -m {__spec__.name}", description=__doc__.splitlines()[0])
    parser.add_argument("clips", nargs="+")
    parser.add_argument("--network")
    parser.add_argument("--learner", default="nearest-mean")
    options = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])

    import pyopencl  # noqa: F401  these are imports too
    import soundfile  # noqa: F401
    import soxr  # noqa: F401

    from edgelearn.keywords.learners import Learner
    from edgelearn.keywords.vocabulary import Vocabulary, file_features
    from edgelearn.lab.bench.machine import peak_resident_bytes, resident_bytes

    from .networks import find_embedder

    imported, start = resident_bytes(), time.perf_counter()
    embedder, _ = find_embedder(options.network)
    vocabulary = Vocabulary.empty(embedder).add("word", file_features(options.clips, embedder))
    vocabulary.enrol(embedder, Learner.named(options.learner)())
    print(json.dumps(asdict(EnrolmentCost(time.perf_counter() - start, peak_resident_bytes() - imported))))


if __name__ == "__main__":
    _main()
