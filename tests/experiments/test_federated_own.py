"""Federations of one's own data and network, by the command line."""

import numpy as np
import pytest
import soundfile

import edgelearn as el
from edgelearn.cli import main
from edgelearn.data.audio import load_clips
from edgelearn.data.synthetic_words import embedded_words
from edgelearn.errors import DataError, FormatError
from edgelearn.experiments.config import ConfigError
from edgelearn.experiments.federated import FederatedConfig, FederatedExperiment
from edgelearn.experiments.federated.experiment import PARTITION
from edgelearn.experiments.tasks import load_model
from edgelearn.experiments.verification import VerificationConfig, VerificationExperiment
from edgelearn.lab.runs import RunStore
from edgelearn.ops import BatchNormalization, Dense, ReLU
from tests.networks import chain

CLASSES, COUNT = 3, 90


def network(outputs=CLASSES):
    return chain("mine", (6,), hidden=Dense(8), norm=BatchNormalization(), relu=ReLU(), out=Dense(outputs))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Arrays and a model in the current folder."""
    monkeypatch.chdir(tmp_path)
    y = np.arange(COUNT) % CLASSES
    x = (np.random.default_rng(0).normal(size=(COUNT, 6)) + 2 * np.eye(6)[y]).astype(np.float32)
    np.savez("mine.npz", x=x, y=y, groups=np.arange(COUNT) % 5)
    np.savez("tested.npz", x=x[:60], y=y[:60], x_test=x[60:], y_test=y[60:])
    el.Model(network(), seed=4).save("mine.safetensors")
    return tmp_path


@pytest.mark.parametrize("partition", ["group", "iid"])
def test_arrays_and_a_network(folder, partition):
    command = (
        f"federated run own --data mine.npz --model mine.safetensors --clients 5 --rounds 20 --learning-rate 0.1 "
        f"--batch-size 8 --partition {partition} --runs runs"
    )
    assert main(command.split()) == 0
    store = RunStore("runs")
    run = store.open(store.list()[0].id)
    data = run.record["data"]
    assert run.record["results"]["accuracy"] > 0.6 and (data["train"], data["test"]) == (72, 18)
    assert (run.folder / PARTITION).read_bytes().startswith(b"\x89PNG")
    assert run.config["data"] == str(folder / "mine.npz") and run.record["weights"]["sha256"]
    assert load_model(run).network.name == "mine"


def test_it_begins_with_the_weights_of_the_file(folder):
    config = FederatedConfig("own", data="tested.npz", model="mine.safetensors")
    loaded = FederatedExperiment.load(config)
    saved = el.load("mine.safetensors").weights
    assert all(np.array_equal(array, saved[name]) for name, array in loaded.model.weights.items())
    assert len(loaded.test[1]) == 30 and loaded.task.groups is None
    grouped = FederatedExperiment.load(
        FederatedConfig("own", data="mine.npz", model="mine.safetensors", normalization="group")
    )
    assert np.array_equal(grouped.model.weights["out/kernel"], saved["out/kernel"])
    assert not any("moving" in name for name in grouped.model.weights)


def test_another_number_of_classes_gets_a_new_classifier(folder):
    el.Model(network(7), seed=4).save("seven.safetensors")
    loaded = FederatedExperiment.load(FederatedConfig("own", data="mine.npz", model="seven.safetensors"))
    assert loaded.model.network.output.shape == (CLASSES,)
    assert "Drawn from seed 0" in loaded.weights["description"]


def test_recordings(folder):
    """A folder with a subfolder for each word, for a federation and for verification."""
    clips = embedded_words(2, 4, 12)
    sound = load_clips(clips)
    for number, (word, speaker) in enumerate(zip(clips.words, clips.speakers, strict=True)):
        path = folder / "clips" / str(word)
        path.mkdir(parents=True, exist_ok=True)
        soundfile.write(path / f"{speaker}_nohash_{number}.wav", sound[number], 16_000)
    model = el.Model(el.models.ds_cnn((49, 10, 1), el.models.keywords.Size(16, 1, (2, 2), (2, 1)), 2, softmax=False))
    model.save("words.safetensors")
    config = FederatedConfig(
        "own", data="clips", model="words.safetensors", front_end="ds_cnn", partition="group", clients=3
    )
    loaded = FederatedExperiment.load(config)
    assert len(loaded.examples.parts) == 3 and set(loaded.data["classes"]) == set(clips.class_names)
    verified = VerificationExperiment.load(VerificationConfig("own", data="clips", clients=3))
    assert len(verified.examples.parts) == 3 and verified.data["classes"][0].startswith("synthesised")


def test_what_is_refused(folder):
    for settings in (
        {"data": "mine.npz"},
        {"model": "mine.safetensors"},
        {"task": "sample", "model": "mine.safetensors"},
    ):
        with pytest.raises(ConfigError, match="own"):
            FederatedConfig(**({"task": "own"} | settings))
    good = np.load("mine.npz")
    x, y = good["x"], good["y"]
    for problem, arrays in (
        ("no array 'y'", {"x": x}), ("x_test and y_test", {"x": x, "y": y, "x_test": x}),
        ("network takes", {"x": x[:, :5], "y": y}), ("int label", {"x": x, "y": y[:9]}),
        ("int label", {"x": x, "y": y - 1}), ("groups", {"x": x, "y": y, "groups": y[:3]}),
    ):  # fmt: skip
        np.savez("bad.npz", **arrays)
        with pytest.raises(DataError, match=problem):
            FederatedExperiment.load(FederatedConfig("own", data="bad.npz", model="mine.safetensors"))
    with pytest.raises(FormatError, match="missing"):
        FederatedExperiment.load(FederatedConfig("own", data=str(folder / "missing.npz"), model="mine.safetensors"))
