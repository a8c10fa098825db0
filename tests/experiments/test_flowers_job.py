import json
import os
import shutil
import tempfile

import numpy as np
import pytest

import edgelearn as el
from edgelearn.data.flowers import load_flowers
from edgelearn.errors import DataError, DownloadError, FormatError, PlanError, RunError
from edgelearn.experiments import flowers
from edgelearn.experiments.flowers import SAMPLE_WEIGHTS, FlowersConfig, FlowersExperiment, load_pretrained
from edgelearn.experiments.tasks import FILE, load_model, newest, predict, save_model
from edgelearn.lab.runs import RunStore
from edgelearn.ops import SGD, Adam, AdamW
from edgelearn.train import Callback

needs_sample = pytest.mark.skipif(not SAMPLE_WEIGHTS.exists(), reason="the package's small network isn't there")


@pytest.fixture
def store(tmp_path):
    return RunStore(tmp_path / "runs")


# -- configuration ---------------------------------------------------------------------------------------------------


def test_what_is_left_open_is_the_published_job_or_the_samples():
    published, sample = FlowersConfig().resolve(sample=False), FlowersConfig().resolve(sample=True)
    assert (published.epochs, published.batch_size, published.learning_rate) == (100, 163, 0.003)
    assert sample.sample and (sample.epochs, sample.learning_rate) == (20, 0.01)
    chosen = FlowersConfig(epochs=7, batch_size=5, micro_batch=2, learning_rate=0.5)
    assert chosen.resolve(sample=False) == chosen
    assert chosen.resolve(sample=True).epochs == 7


def test_optimizers():
    def made(name):
        return FlowersConfig(optimizer=name, learning_rate=0.5).optimizer_at(0.5)

    assert made("sgd") == SGD(0.5) and made("momentum") == SGD(0.5, momentum=0.9)
    assert made("nesterov").nesterov and made("adam") == Adam(0.5) and made("adamw") == AdamW(0.5)


# -- pictures and weights --------------------------------------------------------------------------------------------


@needs_sample
def test_what_cannot_be_downloaded_is_replaced_by_the_sample_and_says_so(monkeypatch, pictures, tmp_path):
    def no_network(download):
        raise DownloadError("https://example.com cannot be reached (no route). Give a file.")

    photographs = load_flowers(str(pictures))
    monkeypatch.delenv("EDGELEARN_DATA", raising=False)
    monkeypatch.setattr(flowers.keras_h5, "fetch_published", no_network)
    monkeypatch.setattr(flowers, "load_flowers", lambda *_: _from(photographs, "tfds"))
    found = FlowersExperiment.load(FlowersConfig())
    assert found.dataset.origin == "embedded sample" and found.pretrained.origin == "package"
    assert found.config.sample and found.config.epochs == 20
    said = []
    found.log_setup(said.append)
    assert "embedded sample" in said[0] and "because" in said[0] and "https://example.com cannot be reached" in said[0]
    for origin in ("folder", "EDGELEARN_DATA"):
        monkeypatch.setattr(flowers, "load_flowers", lambda *_, origin=origin: _from(photographs, origin))
        with pytest.raises(DownloadError):
            FlowersExperiment.load(FlowersConfig())
    monkeypatch.setattr(flowers, "load_flowers", lambda *_: _from(photographs, "tfds"))
    with pytest.raises(FormatError, match=r"named\.h5"):
        FlowersExperiment.load(FlowersConfig(weights=str(tmp_path / "named.h5")))
    assert not FlowersExperiment.load(FlowersConfig(weights="sample")).published, "with another network"


def _from(dataset, origin):
    return type(dataset)(**{**vars(dataset), "origin": origin})


@needs_sample
def test_the_head_is_fresh_and_follows_from_the_seed():
    one, same, other = (load_pretrained(3, seed, sample=True) for seed in (0, 0, 1))
    assert one.weights["dense/kernel"].shape == (256, 3) and one.size == 96
    assert (
        np.array_equal(one.weights["dense/kernel"], same.weights["dense/kernel"])
        and one.record["sha256"] == same.record["sha256"]
    )
    assert not np.array_equal(one.weights["dense/kernel"], other.weights["dense/kernel"])
    assert one.record["sha256"] != other.record["sha256"]
    assert np.array_equal(one.weights["conv1/kernel"], other.weights["conv1/kernel"])


def test_damaged_sample_weights(monkeypatch, tmp_path):
    (tmp_path / "sample.safetensors").write_bytes(b"no")
    monkeypatch.setattr(flowers, "SAMPLE_WEIGHTS", tmp_path / "sample.safetensors")
    with pytest.raises(FormatError, match=r"sample\.safetensors"):
        load_pretrained(5, 0, sample=True)


@pytest.mark.skipif(not os.environ.get("EDGELEARN_DATA"), reason="EDGELEARN_DATA isn't set: no photographs")
def test_the_published_job():
    found = FlowersExperiment.load(FlowersConfig())
    assert (len(found.train[1]), len(found.test[1])) == (2934, 736)
    assert found.published
    assert -(-len(found.train[1]) // found.config.batch_size) == 18
    assert found.dataset.class_names == ("dandelion", "daisy", "tulips", "sunflowers", "roses")
    network = found.model.network
    assert network.count() == 3_233_989 and network.count(network.trainable) == 1_053_701
    said = []
    found.log_setup(said.append)
    assert said[0].startswith("3,670 photographs of tf_flowers")
    assert any("Non-trainable parameters: 2,180,288" in text for text in said)
    assert list(found.phases) == ["extract", "train", "test"]
    assert found.phases["train"].peak_bytes < found.model.plan(163, 41).peak_bytes
    words = found.train[0][np.array([0, 2933])]
    assert words.min() >= -1 and words.max() <= 1 and words.std() > 0.2


# -- runs ------------------------------------------------------------------------------------------------------------


@needs_sample
@pytest.mark.parametrize("cache", ["fp32", None])
def test_a_run_holds_what_was_planned(pictures, store, cache):
    class Watch(Callback):
        def on_train_end(self, logs):
            self.held = self.model.context.ledger.held

    watch, said = Watch(), []
    config = FlowersConfig(images=str(pictures), weights="sample", epochs=2, batch_size=4, micro_batch=2, cache=cache)
    results = FlowersExperiment.start(config, store, [watch], said.append)
    run = newest(store)
    record = run.record
    assert results["memory"]["allocated"] == results["memory"]["planned"] == record["plan"]["peak_bytes"]
    assert watch.held == 0
    assert results["total"] == record["data"]["test"] == 2 and record["data"]["skipped"] == 1
    assert record["config"] == json.loads(json.dumps(config.resolve(sample=False).to_dict()))
    assert record["before"].keys() == {"loss", "accuracy"}
    assert [row["epoch"] for row in run.history()] == [1, 2]
    assert run.history()[-1]["val_accuracy"] == results["accuracy"]
    assert any("broken.jpg" in text for text in said) and "  1 file skipped" in said


@needs_sample
@pytest.mark.parametrize(
    ("config", "kind", "problem"),
    [
        ({"budget": 1000}, PlanError, "0.001 MB"),
        ({"trainable": ("conv_pw_14",)}, PlanError, "No parameter matches 'conv_pw_14'"),
        ({"trainable": ("*_bn/moving_mean",)}, PlanError, "Nothing to train"),
        ({"trainable": ("conv1",)}, PlanError, "no frozen prefix"),
        ({"images": "nowhere"}, DataError, "nowhere does not exist"),
    ],
)
def test_a_job_that_cannot_be_leaves_no_run(pictures, store, config, kind, problem):
    with pytest.raises(kind, match=problem):
        FlowersExperiment.start(
            FlowersConfig(**{"images": str(pictures), "weights": "sample", **config}), store, [], lambda text: None
        )
    assert not store.list()


@needs_sample
def test_an_error_while_training_fails_the_run(pictures, store):
    class Broken(Callback):
        def on_epoch_end(self, epoch, logs):
            raise DataError("the disk is gone")

    config = FlowersConfig(images=str(pictures), weights="sample", epochs=2, batch_size=4)
    with pytest.raises(DataError):
        FlowersExperiment.start(config, store, [Broken()], lambda text: None)
    (summary,) = store.list()
    assert summary.status == "failed"
    assert store.open(summary.id).record["error"] == {"type": "DataError", "message": "the disk is gone"}
    with pytest.raises(RunError, match="edgelearn flowers"):
        newest(store)
    with pytest.raises(RunError, match=f"--resume {summary.id}"):
        load_model(store.open(summary.id))


def test_only_some_runs_have_a_network(store):
    with store.create("federated", {}) as run:
        run.finish({})
    with pytest.raises(RunError, match="'federated'"):
        next(predict(["x.jpg"], store, run.id))
    with store.create("flowers", {}) as run:
        run.finish({})
    with pytest.raises(RunError, match=run.id):
        load_model(run)
    (run.folder / FILE).write_text("{}")
    with pytest.raises(FormatError, match=FILE):
        load_model(run)
    with store.create("memory", {}) as run:
        network = el.Network("tiny", (4,))
        network.add("dense", el.ops.Dense(3))
        save_model(run, el.Model(network), ["a", "b", "c"])
        run.finish({})
    with pytest.raises(RunError, match=run.id):
        next(predict(["x.jpg"], store))
    assert newest(store).id == run.id and load_model(run).class_names == ("a", "b", "c")


@needs_sample
@pytest.mark.parametrize("moment", ["on_epoch_end", "on_train_end"])
def test_a_run_whose_folder_disappears_is_saved_elsewhere(pictures, store, moment, tmp_path, monkeypatch):
    class Delete(Callback):
        def vanish(self, *arguments):
            (run,) = store.list()
            if run.folder.exists() and self.model.position.updates >= 2:
                shutil.rmtree(run.folder)

    setattr(Delete, moment, Delete.vanish)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "elsewhere"))
    config = FlowersConfig(images=str(pictures), weights="sample", epochs=3, batch_size=4, micro_batch=4)
    with pytest.raises(RunError, match=r"moved or deleted.*--resume flowers-.*elsewhere"):
        FlowersExperiment.start(config, store, [Delete()], lambda text: None)
    (found,) = (tmp_path / "elsewhere").iterdir()
    saved = RunStore(found)
    epochs = 2 if moment == "on_epoch_end" else 3  # the folder goes after the first, and the second can't be saved
    assert [row["epoch"] for row in saved.open("flowers").history()] == list(range(1, epochs + 1))
    results = FlowersExperiment.resume("flowers", saved, [], lambda text: None)
    assert results["epochs"] == 3 and saved.list()[0].status == "finished"
