"""The package's network, its training, and embedders in files."""

import os

import numpy as np
import pytest

from edgelearn.data.audio import load_clips
from edgelearn.data.features import BC_RESNET, DS_CNN_ARM, from_json, to_json
from edgelearn.data.synthetic_words import WORDS, embedded_words
from edgelearn.errors import FormatError
from edgelearn.experiments.keywords import auroc
from edgelearn.experiments.keywords.embedding import find_embedder
from edgelearn.experiments.keywords.people import measure_people
from edgelearn.interop import safetensors
from edgelearn.interop.safetensors import ModelFile
from edgelearn.keywords import Embedder, load_embedder, save_embedder
from edgelearn.keywords.files import PEOPLE, SAMPLE, other_words, people_embedder, sample_embedder
from edgelearn.keywords.learners import DummyGenerator, Head, NearestMean


@pytest.fixture(scope="module")
def embedder():
    return sample_embedder()


def test_the_sample_tells_its_words_apart_and_others_from_them(embedder):
    known = embedded_words(6, speakers=2, takes=4)
    features, others = (embedder.features(load_clips(clips)) for clips in (known, other_words().only(WORDS[6:])))
    enrolled = np.arange(len(known)) % 4 == 0
    spotter = NearestMean().enrol(embedder, features[enrolled], known.labels[enrolled])
    assert (spotter.scores(features[~enrolled]).argmax(1) == known.labels[~enrolled]).mean() > 0.95
    assert auroc(spotter.known_score(features[~enrolled]), spotter.known_score(others)) > 0.97


@pytest.mark.parametrize(
    "file, limit, command, made_of",
    [
        (SAMPLE, 300_000, "python tools/pretrain_keywords.py --epochs", "synthesised words; no human voice"),
        (PEOPLE, 1_000_000, "edgelearn keywords train people --speed", "recordings of 18 speakers of Arabic"),
    ],
)
def test_the_file_is_small_and_says_what_it_is(file, limit, command, made_of):
    assert file.stat().st_size < limit
    notes = safetensors.read_model_file(file).metadata["notes"]
    assert notes["command"].startswith(command) and notes["made of"].startswith(made_of)


def test_words_and_speakers_that_the_network_never_heard():
    if not os.environ.get("EDGELEARN_DATA"):
        pytest.skip("EDGELEARN_DATA isn't set")
    found = {
        (report.language, report.shots, report.speakers): report.accuracy.mean
        for report in measure_people(people_embedder(), episodes=30)
    }
    assert found["Arabic", 5, "same"] > 0.97 and found["Arabic", 5, "other"] > 0.9 and found["English", 5, "any"] > 0.95


def test_an_embedder_there_and_back(embedder, tmp_path):
    rng, d, path = np.random.default_rng(0), embedder.size, tmp_path / "network.safetensors"
    shapes = (d, d), (d,), (d, 2 * d), (2 * d,)
    dummies = DummyGenerator(*(rng.normal(size=s).astype(np.float32) for s in shapes), "euclidean", 0.1, 28.0)
    head = Head(rng.normal(size=(d, 3)).astype(np.float32), np.zeros(3, np.float32))
    save_embedder(path, Embedder(embedder.network, embedder.weights, head=head, dummies=dummies), {"seed": "0"})
    loaded = load_embedder(path)
    features = embedder.features(load_clips(other_words().take([0, 1])))
    x = loaded.embed(features)
    assert np.array_equal(x, embedder.embed(features)) and np.array_equal(loaded.head.scores(x), head.scores(x))
    assert np.array_equal(loaded.dummies(x), dummies(x)) and loaded.dummies.dummy_temperature == 28
    assert embedder.head is embedder.dummies is None


def test_a_file_that_is_no_embedder(embedder, tmp_path):
    path = tmp_path / "network.safetensors"
    path.write_bytes(safetensors.to_bytes({"a": np.zeros(3, np.float32)}))
    with pytest.raises(FormatError, match=r"network\.safetensors"):
        load_embedder(path)
    safetensors.write_model_file(path, ModelFile(embedder.network, embedder.weights))
    with pytest.raises(FormatError, match="front_end"):
        load_embedder(path)


@pytest.mark.parametrize("front_end", [BC_RESNET, DS_CNN_ARM])
def test_settings_of_features_as_text(front_end):
    assert from_json(to_json(front_end)) == front_end
    with pytest.raises(FormatError, match="speed"):
        from_json('{"speed": 3}')


def test_which_network(monkeypatch, tmp_path):
    monkeypatch.delenv("EDGELEARN_DATA", raising=False)
    found, where = find_embedder()
    assert found.size == 128 and "trained on recordings of people" in where
    assert "never heard a human voice" in find_embedder("sample")[1]
    assert find_embedder(str(SAMPLE))[1] == f"Network: {SAMPLE}."
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "bcresnet1_speech_commands.npz").write_bytes(b"nothing")
    with pytest.raises(FormatError, match=r"\.npz"):
        find_embedder(data=str(tmp_path))
    assert find_embedder("sample", data=str(tmp_path))[0].size == 64
