"""The sample job for real: drawings, features, training, test, files."""

import pytest
from PIL import Image

from edgelearn.data.flowers import draw_flower
from edgelearn.errors import RunError
from edgelearn.experiments.flowers import SAMPLE_WEIGHTS, FlowersConfig, FlowersExperiment
from edgelearn.experiments.tasks import load_model, predict
from edgelearn.interop import safetensors
from edgelearn.lab.runs import RunStore
from edgelearn.models import mobilenet_v1


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return RunStore(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def said():
    return []


@pytest.fixture(scope="module")
def run(store, said):
    assert FlowersExperiment.start(FlowersConfig(sample=True), store, [], said.append)
    (summary,) = store.list()
    return store.open(summary.id)


def test_it_learns_the_flowers(run):
    results, before = run.record["results"], run.record["before"]["accuracy"]
    assert results["accuracy"] >= 0.95
    assert results["accuracy"] == results["correct"] / results["total"]
    low, high = results["interval"]
    assert low < results["accuracy"] < high or results["accuracy"] == high
    assert 0.05 < before < 0.45
    assert run.history()[-1]["val_accuracy"] == pytest.approx(results["accuracy"], abs=2 / results["total"])
    assert len(run.history()) == results["epochs"] == run.config["epochs"]


def test_it_says_where_pictures_and_network_come_from(run, said):
    assert said[0] == run.record["data"]["description"] and "embedded sample" in said[0]
    assert run.record["data"]["origin"] == "embedded sample" and run.record["weights"]["origin"] == "package"
    assert "Published" not in said[-1] and "Before training" in said[-1]


def test_only_the_last_convolution_and_the_head_change(run):
    pretrained, trained = safetensors.read_weights(SAMPLE_WEIGHTS), load_model(run).weights
    changed = {name for name, array in pretrained.items() if (trained[name] != array).any()}
    assert changed == {"conv_pw_13/kernel"}
    assert set(trained) - set(pretrained) == {"dense/kernel", "dense/bias"}


@pytest.mark.parametrize("name", ["confusion.png", "curves.png", "memory.png", "model.safetensors"])
def test_its_files_are_there(run, name):
    path = run.folder / name
    assert path.stat().st_size > 1000
    if path.suffix == ".png":
        with Image.open(path) as figure:
            figure.verify()


def test_memory_is_as_planned(run):
    memory = run.record["results"]["memory"]
    assert 0 < memory["planned"] <= memory["allocated"] < memory["process"]
    ((word, claim, _),) = run.claims.rows
    assert word == "passed" and "to the byte" in claim


def test_predict_on_a_drawn_picture(run, store, tmp_path):
    picture, broken = tmp_path / "tulip.png", tmp_path / "broken.png"
    Image.fromarray(draw_flower("tulips", 99, 0, 160)).save(picture)
    broken.write_bytes(b"no picture")
    (path, answer), (_, reason) = predict([str(picture), str(broken)], store)
    assert path == str(picture)
    assert answer[0][0] == "tulips" and answer[0][1] > 0.5
    assert [share for _, share in answer] == sorted((share for _, share in answer), reverse=True)
    assert "broken.png" in reason


def test_predict_without_a_finished_run(tmp_path):
    with pytest.raises(RunError, match="edgelearn flowers"):
        list(predict(["any.png"], RunStore(tmp_path)))


def test_the_file_of_weights_is_the_body_and_small():
    assert SAMPLE_WEIGHTS.stat().st_size < 1_500_000
    network = mobilenet_v1((96, 96, 3), 0.25, 5)
    found = safetensors.read_weights(SAMPLE_WEIGHTS)
    assert set(found) == {name for name in network.parameters if not name.startswith("dense/")}
    assert all(found[name].shape == network.parameters[name].weight.shape for name in found)


def test_an_experiment_and_its_loaded_training_show_themselves():
    training = FlowersExperiment.load(FlowersConfig(sample=True, epochs=3))
    assert repr(training).startswith("<FlowersTraining of FlowersConfig: 800 examples, 3 epochs, on ")
    text, page = str(training), training._repr_html_()
    for part in ("The embedded sample", "planned, train", "label_smoothing", "conv_pw_13"):
        assert part in text and part in page
    assert "object at 0x" not in text and "None" not in text
    assert repr(FlowersExperiment) == "<Experiment 'flowers', FlowersConfig, presets sample, thicket, photographs>"
    assert "examples per update" in FlowersExperiment._repr_html_()
