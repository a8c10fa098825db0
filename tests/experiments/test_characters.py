"""A small GPT on characters: it learns, within a budget to the bit, and is saved; bad texts are refused."""

from dataclasses import replace

import numpy as np
import pytest

import edgelearn as el
from edgelearn.errors import DataError
from edgelearn.experiments.characters import (
    CharactersConfig,
    draw_windows,
    drawn_sums,
    read_text,
    train_characters,
    write_text,
)

TINY = CharactersConfig(
    layers=1, heads=2, channels=32, context=16, batch_size=8, steps=60, learning_rate=0.01, tests=20, sample=12
)


def test_it_learns_and_a_budget_changes_no_bit(monkeypatch, tmp_path):
    monkeypatch.delenv("EDGELEARN_DATA", raising=False)
    path = tmp_path / "sums.safetensors"
    found = train_characters(TINY, model=path)
    assert found.text == "drawn sums" and found.characters == 13
    assert found.loss < 2.2 < found.losses[0]  # ln 13 is 2.56
    assert len(found.written) == 12
    small = train_characters(replace(TINY, budget=f"{found.stored * 2 // 3} B stored"))
    assert small.stored <= found.stored * 2 // 3
    assert (small.loss, small.written) == (found.loss, found.written)
    model = el.Model(*_parts(path))
    assert write_text(model, sorted(set(drawn_sums())), 12, TINY.temperature, TINY.seed) == found.written


def _parts(path):
    file = el.load(path)
    return file.network, file.weights


def test_texts(tmp_path):
    for line in drawn_sums(3, seed=1).splitlines():
        terms, _, total = line.partition("=")
        assert sum(map(int, terms.split("+"))) == int(total)
    (short := tmp_path / "short.txt").write_text("to be")
    with pytest.raises(DataError, match=r"short.txt.*--context"):
        train_characters(replace(TINY, text=str(short)))
    (bad := tmp_path / "bad.txt").write_bytes(b"\xff\xfe\x00")
    for path in (bad, tmp_path / "none.txt"):
        with pytest.raises(DataError, match="--text"):
            read_text(str(path))


def test_windows_are_followed_by_the_next_character():
    x, y = draw_windows(np.arange(100), 7, 5, np.random.default_rng(0))
    assert x.shape == y.shape == (7, 5) and (x + 1 == y).all()
