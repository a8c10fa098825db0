import pytest

from edgelearn.bench.report import Report
from edgelearn.bench.results import Block, Lane


def make(*lanes):
    machine = {"processor": "Slide rule", "cores": 2}
    return Report("2026-01-01", machine, {"foreign_limit": 0.08}, {"torch": "9"}, {}, list(lanes), "edgelearn")


def lane(contender, *milliseconds, noisy=False, attempts=1):
    blocks = [Block(value / 1e3, 3, 0.01, attempts, noisy) for value in milliseconds]
    return Lane("train:4", contender, "v", "", 1.5, 2.5, [7.0], 100 * 2**20, 164 * 2**20, blocks)


def test_a_ratio_comes_with_its_quartiles():
    text = make(lane("edgelearn", 10, 11, 9), lane("torch", 20, 22, 18)).table()
    row = next(line for line in text.splitlines() if line.strip().startswith("edgelearn"))
    assert "0.50 (0.50 – 0.50)" in row and "10.00" in row and "64" in row and "1.50" in row and "2.50" in row


def test_a_refused_ratio_is_nowhere_and_both_medians_are_there():
    report = make(lane("edgelearn", 10, 10, 10, 10), lane("torch", 8, 9, 12, 14))
    text = report.table(width=160)
    assert "spread too large: 10.00 and 10.50 ms" in text
    kept = report.to_dict()["lanes"][0]["comparison"]
    assert kept["refusal"] == "spread too large" and kept["peer_median"] == pytest.approx(0.0105)
    assert not {"ratio", "low", "high"} & set(kept)


def test_the_subject_comes_first_then_the_fast_then_what_failed():
    failed = Lane("train:4", "keras", "v", error="Traceback: boom")
    report = make(failed, lane("torch", 3, 3, 3), lane("tinygrad", 2, 2, 2), lane("edgelearn", 5, 5, 5))
    assert [found.contender for found in report.of("train:4")] == ["edgelearn", "tinygrad", "torch", "keras"]
    assert report.table().count("Traceback: boom") == 1


def test_without_the_subject_peers_are_compared_with_the_fastest():
    report = make(lane("torch", 30, 30, 30), lane("tinygrad", 20, 20, 20))
    assert report.fastest_peer("train:4").contender == "tinygrad"
    assert "1.50 (1.50 – 1.50)" in report.table()


def test_alone_the_subject_has_no_ratio():
    report = make(lane("edgelearn", 5, 5, 5))
    assert report.comparison(report.lanes[0]) is None and "edgelearn v" in report.table()


def test_noisy_and_repeated_blocks_are_counted():
    report = make(lane("edgelearn", 5, 5, 5, noisy=True, attempts=4), lane("torch", 5, 5, 5))
    assert report.noise == (6, 3, 9)
    assert "6 blocks; 3 of them noisy" in report.table() and "9 attempts thrown away" in report.table()
    assert report.table().count("3 of 3") == 1 and report.table().count("0 of 3") == 1


def test_square_brackets_are_text_and_no_markup():
    assert "[red]" in make(Lane("train:4", "torch", "[red]", error="[bold]x")).table()
