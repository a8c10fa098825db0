import os
from importlib.util import find_spec
from itertools import islice
from types import SimpleNamespace

import pytest

from edgelearn.data.audio.decode import package
from edgelearn.data.audio.synthetic import WORDS, speak
from edgelearn.errors import EdgelearnError
from edgelearn.experiments.keywords.check import check
from edgelearn.experiments.keywords.enrolment import measure


def trained(method: str, seed: int, accuracy: float, auroc: float):
    """A run whose learners all came to this in episodes, dummies to an AUROC 0.01 above."""
    learners = [("nearest-mean", distance, auroc) for distance in ("cosine", "euclidean")]
    reports = [
        {
            "learner": learner, "speakers": speakers, "shots": shots,
            "measures": {"accuracy": {"mean": accuracy}, "auroc": {"mean": reached}},
        } | ({"distance": distance} if distance else {})
        for learner, distance, reached in [*learners, ("dummies", "", auroc + 0.01)]
        for speakers in ("same", "other") for shots in (1, 5)
    ]  # fmt: skip
    config = {"method": method, "seed": seed, "distance": "euclidean"}
    return SimpleNamespace(config=config, record={"results": {"reports": reports}}, folder="")


def test_what_cannot_be_told_is_open_and_what_is_short_fails(monkeypatch):
    monkeypatch.delenv("EDGELEARN_DATA", raising=False)
    assert {verdict.word for verdict in check([])} == {"not measured"}
    runs = [trained("classify", seed, 0.93, 0.97) for seed in range(3)] + [trained("dummies", 0, 0.9, 0.9)]
    told = {verdict.claim: verdict for verdict in check(runs)}
    words = {claim.removeprefix("Arabic, ").partition(" ≥")[0]: verdict.word for claim, verdict in told.items()}
    assert words["1 clip by the speaker: accuracy"] == "passed"
    assert words["5 clips by the speaker: accuracy"] == "failed"
    assert words["5 clips by other speakers: accuracy"] == "passed"
    dummies = next(verdict for claim, verdict in told.items() if "dummies" in claim)
    assert dummies.passed and "0.9100 beside 0.9000" in dummies.measured
    assert [v.word for v in check(runs[:2]) if "1 clip by" in v.claim] == ["not measured"]  # two splits of three


def test_the_imported_network_is_that_of_pytorch():
    if not os.environ.get("EDGELEARN_DATA") or find_spec("torch") is None:
        pytest.skip("EDGELEARN_DATA isn't set, or PyTorch is not installed: nothing to compare with")
    imported = list(islice(check([]), 2))
    assert all(verdict.passed for verdict in imported), imported


def test_an_enrolment_takes_little_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGELEARN_PROGRAMS", str(tmp_path))  # the first of two processes keeps what it compiles
    clips = [tmp_path / f"{take}.wav" for take in range(5)]
    for take, clip in enumerate(clips):
        package("soundfile").write(clip, speak(WORDS[0], 1, take, 0, 16_000), 16_000)
    cost = measure(clips, "sample")
    assert cost.nbytes < 64 * 2**20 and cost.seconds > 0
    clips[0].write_bytes(b"no sound")
    with pytest.raises(EdgelearnError, match="cannot be read as sound"):
        measure(clips, "sample")
