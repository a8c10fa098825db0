"""A small GPT on characters: it learns, within a budget to the bit, and is saved; bad texts are refused."""

import json
from dataclasses import replace

import numpy as np
import pytest

import edgelearn as el
from edgelearn.cli import main
from edgelearn.errors import DataError, UsageError
from edgelearn.experiments.characters import (
    CharactersConfig,
    CharactersExperiment,
    draw_windows,
    drawn_sums,
    read_roles,
    read_text,
    stream_text,
    train_characters,
    write_text,
)
from edgelearn.experiments.experiment import silent
from edgelearn.experiments.federated import FederatedConfig, FederatedExperiment
from edgelearn.lab.runs import RunStore
from edgelearn.train import Callback

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


def test_the_streamed_text_is_the_same(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("EDGELEARN_DATA", raising=False)
    path = tmp_path / "sums.safetensors"
    found = train_characters(replace(TINY, dropout=0.1), model=path)
    model = el.load(path)
    assert "".join(stream_text(model, "", 12, TINY.temperature, TINY.seed)) == found.written
    long = "".join(stream_text(model, "1+1=", 40, 0, 0))
    for place, character in enumerate(long[:12]):  # the context of 16 isn't full
        seen = [model.class_names.index(each) for each in "1+1=" + long[:place]]
        x = np.zeros((1, 16), np.float32)
        x[0, : len(seen)] = seen
        assert character == model.class_names[model.predict(x)[0, len(seen) - 1].argmax()]
    assert main(["write", str(path), "--begin", "1+1=", "--count", "40", "--temperature", "0", "--json"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["written"] == long and f"1+1={long}" in output.err
    with pytest.raises(DataError, match="'é'"):
        next(stream_text(model, "é"))
    with pytest.raises(DataError, match="writes no characters"):
        next(stream_text(el.Model(el.models.lenet5())))


class StopAfter(Callback):
    def __init__(self, updates):
        self.left = updates

    def on_train_batch_end(self, batch, logs):
        self.left -= 1
        self.model.stop_training = self.left <= 0


@pytest.mark.parametrize("updates", [12, 21])  # at the end of a tenth, and within one
def test_resumed_equals_uninterrupted(updates, tmp_path, monkeypatch):
    monkeypatch.delenv("EDGELEARN_DATA", raising=False)
    config = replace(TINY, dropout=0.1)
    store, expected = RunStore(tmp_path), train_characters(config, model=tmp_path / "whole.safetensors")
    assert CharactersExperiment.start(config, store, [StopAfter(updates)], silent) is None
    results = CharactersExperiment.resume(store.list()[0].id, store, [], silent) or {}
    run = store.open(store.list()[0].id)
    assert (results["loss"], results["written"]) == (expected.loss, expected.written)
    assert results["losses"] == list(expected.losses)
    first, second = (
        el.load(each).weights for each in (run.folder / "model.safetensors", tmp_path / "whole.safetensors")
    )
    assert all((first[name] == second[name]).all() for name in first)


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


def test_roles_of_a_text_are_clients_of_a_federation(tmp_path, monkeypatch):
    path = tmp_path / "sequences" / "tinyshakespeare.txt"
    path.parent.mkdir()
    path.write_text("A:\nto be\nor not\n\nB:\n" + 300 * "ab\n" + "\nA:\n" + 400 * "xyz\n" + "\n")
    roles, source = read_roles(str(tmp_path))
    assert source == "tinyshakespeare.txt" and [*roles] == ["A", "B"]
    assert roles["A"].startswith("to be\nor not\nxyz\n") and set(roles["B"]) == set("ab\n")
    monkeypatch.delenv("EDGELEARN_DATA", raising=False)
    config = FederatedConfig("characters", rounds=3, clients=4, learning_rate=0.01)
    store = RunStore(tmp_path / "runs")
    results = FederatedExperiment.start(config, store, [], silent)
    assert results is not None and results["accuracy"] > 0.3
    with pytest.raises(UsageError, match=r"clients: .*100 roles"):
        FederatedExperiment.load(replace(config, clients=101))
