"""Reports of benches, made of given times."""

import json

import numpy as np
import pytest

from edgelearn.display import MB
from edgelearn.errors import DataError, FormatError
from edgelearn.lab.bench.report import (
    BenchReport,
    Variant,
    as_markdown,
    as_text,
    disagreeing,
    draw_chart,
    milliseconds,
    save_chart,
)
from edgelearn.lab.measure import Block


def make(*variants):
    device = {"platform": "Abacus", "name": "beads", "driver": "1"}
    machine = {"processor": "Slide rule", "cores": 2, "device": device}
    config, versions = {"foreign_limit": 0.08}, {"torch": "9"}
    return BenchReport("2026-01-01", machine, config, versions, {}, list(variants), "edgelearn", "edgelearn bench")


def variant(contender, *milliseconds, noisy=False, attempts=1, probe=(7.0,), **more):
    blocks = [Block(value / 1e3, 3, 0.01, attempts, noisy) for value in milliseconds]
    memory = {"memory_after_imports": 100 * MB, "memory_start": 180 * MB, "memory_peak": 164 * MB}
    return Variant("train:4", contender, "v", "", 1.5, 2.5, list(probe), blocks=blocks, **memory, **more)


FAILED = Variant("train:4", "keras", "v", error="Traceback: [bold]boom")


def test_a_ratio_comes_with_its_quartiles():
    text = as_text(make(variant("edgelearn", 10, 11, 9), variant("torch", 20, 22, 18)), 120)
    row = next(line for line in text.splitlines() if line.strip().startswith("edgelearn"))
    assert all(word in row for word in ("0.50 (0.50 – 0.50)", "10.0", "64", "180", "1.50", "2.50"))


def test_a_refused_ratio_is_nowhere_and_both_medians_are_there():
    report = make(variant("edgelearn", 10, 10, 10, 10), variant("torch", 8, 9, 12, 14))
    text = as_text(report, width=160)
    own, peer = (next(line for line in text.splitlines() if f"{name} v" in line) for name in ("edgelearn", "torch"))
    assert "10.0" in own and "spread too large" in own and "10.5" in peer and "0.95" not in text
    assert "Close other programs" in text and "--rounds" in text and "medians of 4 blocks" in text
    kept = report.to_dict()["variants"][0]["comparison"]
    assert kept["refusal"] == "spread too large" and kept["peer_median"] == pytest.approx(0.0105)
    assert not {"ratio", "low", "high"} & set(kept)


def test_the_subject_comes_first_then_the_fast_then_what_failed():
    report = make(FAILED, variant("torch", 3, 3, 3), variant("tinygrad", 2, 2, 2), variant("edgelearn", 5, 5, 5))
    assert [found.contender for found in report.of("train:4")] == ["edgelearn", "tinygrad", "torch", "keras"]
    assert as_text(report, 120).count("Traceback: [bold]boom") == 1, "square brackets are text and no markup"


@pytest.mark.parametrize(
    ("variants", "peer", "compared"),
    [
        ((variant("torch", 30, 30, 30), variant("tinygrad", 20, 20, 20)), "tinygrad", "1.50 (1.50 – 1.50)"),
        ((variant("edgelearn", 5, 5, 5),), None, "edgelearn v"),
        ((variant("edgelearn", 1, 1, 1), FAILED, Variant("train:4", "torch", "v")), None, "no blocks"),
    ],
)
def test_the_fastest_peer_is_another_contender_that_was_measured(variants, peer, compared):
    report = make(*variants)
    found = report.fastest_peer("train:4")
    assert (found and found.contender) == peer and compared in as_text(report, 120)
    assert (report.comparison(variants[0]) is None) == (peer is None)


HONEST = [variant("a", 1, probe=(7.0, 6.5)), variant("b", 1, probe=(7.0001, 6.5001))]
ODD = [variant("c", 1, probe=(7.0, 7.0)) for _ in range(5)]
HALVES, FAR = variant("b", 1, probe=(7.1, 6.6), compute="bf16"), variant("c", 1, probe=(7.0, 8.0), compute="int8")


@pytest.mark.parametrize(
    ("variants", "found"),
    [
        (HONEST, []), (HONEST + ODD, ODD),  # however many variants it has
        ([HONEST[0], HALVES, FAR], [FAR]),  # halves may differ by their rounding
        ([HONEST[0], ODD[0]], [HONEST[0], ODD[0]]),  # of two that differ both are named
    ],
)  # fmt: skip
def test_one_that_computes_something_else_is_found(variants, found):
    assert disagreeing(variants) == found


def test_noisy_and_repeated_blocks_are_counted():
    report = make(variant("edgelearn", 5, 5, 5, noisy=True, attempts=4), variant("torch", 5, 5, 5))
    assert report.noise == {"blocks": 6, "noisy": 3, "repeated": 9}
    assert "6 blocks; 3 of them noisy" in as_text(report, 120) and "9 attempts thrown" in as_text(report, 200)
    assert as_text(report, 120).count("3 of 3") == 1 and as_text(report, 120).count("0 of 3") == 1


def test_three_digits():
    found = [milliseconds(x / 1e3) for x in (0.0123, 0.95, 1, 9.99, 56.78, 123.4)]
    assert found == ["0.0123", "0.950", "1.00", "9.99", "56.8", "123"]


def test_markdown_has_every_contender_at_its_best_and_no_ratio_that_is_refused():
    slow, noisy = variant("torch", 40, 40, 40), variant("tinygrad", 8, 10, 13, 9)
    text = as_markdown(make(variant("edgelearn", 10, 10, 10, 10), slow, variant("torch", 20, 20, 20, 20), noisy))
    head, row = text.splitlines()[0], text.splitlines()[-1]
    assert "`edgelearn bench`" in head and "beads" in head and "2026-01-01" in head
    assert row.startswith("| `train:4`: ") and row.count("|") == 5
    assert "20.0 ms, 64 MB (v)<br>0.50 (0.50 – 0.50)" in row and "40.0" not in row
    assert "| 9.50 ms, 64 MB (v)<br>spread too large |" in row


def test_a_report_is_read_back(tmp_path):
    unmeasured = Variant("train:4", "keras", "v")
    report = make(variant("edgelearn", 10, 10, 11), variant("torch", 20, 20, 20, noisy=True), unmeasured)
    report.write(tmp_path / "bench.json")
    again = BenchReport.read(tmp_path / "bench.json")
    assert again == report and again.to_dict() == report.to_dict()


GOOD = make(variant("torch", 1)).to_dict()
TYPED = {**GOOD, "variants": [GOOD["variants"][0] | {"compute": "int3"}]}
BAD = ["", "[]", "{}", '{"variants": [{}]}', json.dumps(GOOD | {"variants": [{"blocks": 3}]}), json.dumps(TYPED)]


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_report_is_refused(tmp_path, text):
    (tmp_path / "bench.json").write_text(text)
    with pytest.raises(FormatError, match="int3" if "int3" in text else r"bench\.json"):
        BenchReport.read(tmp_path / "bench.json")
    with pytest.raises(DataError, match=r"nowhere\.json"):
        BenchReport.read(tmp_path / "nowhere.json")


def test_the_chart_has_a_dot_where_a_ratio_may_be_shown(tmp_path):
    own, peer = variant("edgelearn", 10, 10, 10, 10), variant("torch", 20, 20, 21, 20)
    report = make(own, peer, variant("keras", 8, 9, 12, 14), Variant("train:4", "tinygrad", "v", error="died"))
    (axes,) = draw_chart(report).axes
    dots = [float(np.squeeze(line.get_xdata())) for line in axes.lines if line.get_marker() in ("o", "D")]
    assert dots == pytest.approx([1, 2])
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["edgelearn v: 10.0 ms", "keras v: 10.5 ms", "torch v: 20.0 ms"]
    save_chart(report, tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert len(draw_chart(make(variant("edgelearn", 3, 3, 3))).axes) == 1
    with pytest.raises(DataError):
        draw_chart(make(FAILED))
