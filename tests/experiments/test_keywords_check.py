import os
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from edgelearn.data.audio import package
from edgelearn.data.synthetic_words import WORDS, speak
from edgelearn.errors import EdgelearnError
from edgelearn.experiments.claims import check_claims
from edgelearn.experiments.keywords.check import IMPORTED, Imported, check, measure


def trained(method: str, seed: int, accuracy: float, auroc: float):
    """A run with the same results in all episodes, but an AUROC 0.01 higher with dummy prototypes."""
    learners = [("nearest-mean", distance, auroc) for distance in ("cosine", "euclidean")]
    reports = [
        {
            "learner": learner, "speakers": speakers, "shots": shots,
            "measures": {"accuracy": {"mean": accuracy}, "auroc": {"mean": reached}},
        } | ({"distance": distance} if distance else {})
        for learner, distance, reached in [*learners, ("dummy-prototypes", "", auroc + 0.01)]
        for speakers in ("same", "other") for shots in (1, 5)
    ]  # fmt: skip
    config = {"method": method, "seed": seed, "distance": "euclidean"}
    return SimpleNamespace(config=config, record={"results": {"reports": reports}}, folder="")


def test_claims_are_passed_failed_or_not_measured(monkeypatch):
    monkeypatch.delenv("EDGELEARN_DATA", raising=False)
    assert {verdict.passed for verdict in check([]).verdicts} == {None}
    runs = [trained("classify", seed, 0.93, 0.97) for seed in range(3)] + [trained("dummy-prototypes", 0, 0.9, 0.9)]
    claims = {claim.claim.removeprefix("Arabic, ").partition(" ≥")[0]: claim for claim in check(runs).verdicts}
    assert claims["1 clip by the speaker: accuracy"].passed is True
    assert claims["5 clips by the speaker: accuracy"].passed is False
    assert claims["5 clips by other speakers: accuracy"].passed is True
    dummies = next(claim for text, claim in claims.items() if "dummy" in text)
    assert dummies.passed and "0.9100" in dummies.measured and "0.9000" in dummies.measured
    assert [c.passed for c in check(runs[:2]).verdicts if "1 clip by" in c.claim] == [None]  # two splits of three


def test_the_imported_network_is_that_of_pytorch():
    if not os.environ.get("EDGELEARN_DATA") or find_spec("torch") is None:
        pytest.skip("EDGELEARN_DATA isn't set, or PyTorch is not installed: nothing to compare with")
    found = check_claims(IMPORTED, lambda: Imported(None, None))
    assert all(verdict.passed for verdict in found.verdicts), str(found)


def test_an_enrolment_takes_little_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGELEARN_PROGRAMS", str(tmp_path))  # the first of two processes keeps what it compiles
    clips = [tmp_path / f"{take}.wav" for take in range(5)]
    for take, clip in enumerate(clips):
        package("soundfile").write(clip, speak(WORDS[0], 1, take, 0, 16_000), 16_000)
    cost = measure(clips, "sample")
    assert cost.nbytes < 64 * 2**20 and cost.seconds > 0
    clips[0].write_bytes(b"no sound")
    with pytest.raises(EdgelearnError, match=r"0.wav"):
        measure(clips, "sample")
