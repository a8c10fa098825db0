"""Fine-tuning models of files on folders of pictures and clips."""

import json
from pathlib import Path

import numpy as np
import pytest

import edgelearn as el
from edgelearn.data.audio import RATE
from edgelearn.data.features import DS_CNN_MLPERF
from edgelearn.errors import DataError, PlanError, RunError
from edgelearn.experiments.finetune import PIXELS, FinetuneConfig, FinetuneExperiment, front_end_of, pictures_of
from edgelearn.experiments.tasks import load_model, predict, save_model
from edgelearn.graph import replace_head
from edgelearn.lab.runs import RunStore
from edgelearn.ops import (
    BatchNormalization,
    Conv2D,
    Dense,
    Flatten,
    GlobalAveragePooling2D,
    ReLU,
    Softmax,
)
from edgelearn.train import Callback
from tests.networks import chain


def network(size: int = 16, classes: int = 7) -> el.Network:
    return chain(
        "small", (size, size, 3), conv=Conv2D(8, 3, 2, "same", use_bias=False), bn=BatchNormalization(), relu=ReLU(),
        pool=GlobalAveragePooling2D(), dense=Dense(classes), softmax=Softmax(),
    )  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "small.safetensors"
    el.Model(network(), seed=3).save(path)
    return str(path)


def config(model, pictures, **settings):
    defaults = {"epochs": 2, "batch_size": 8, "pixels": "tf"}
    return FinetuneConfig(**{"model": model, "images": str(pictures), **defaults, **settings})


# -- the head --------------------------------------------------------------------------------------------------------


def test_the_classifier_is_replaced():
    found = replace_head(network(), 3)
    assert list(found.nodes)[-3:] == ["pool", "head", "head_softmax"] and found.output.shape == (3,)


def test_a_convolution_as_classifier_is_replaced():
    old = el.Network("conv", (8, 8, 3))
    for name, op in {"a": Conv2D(4, 3), "relu": ReLU(), "b": Conv2D(9, 1), "pool": GlobalAveragePooling2D(),
                     "softmax": Softmax()}.items():  # fmt: skip
        old.add(name, op)
    found = replace_head(old, 3)
    assert list(found.nodes) == ["a", "relu", "head_features", "head", "head_softmax"]
    assert isinstance(found.nodes["head_features"].op, GlobalAveragePooling2D)


def test_a_feature_extractor_keeps_its_layers():
    old = el.Network("features", (8, 8, 3))
    for name, op in {"a": Conv2D(4, 1), "relu": ReLU(), "head": Flatten()}.items():
        old.add(name, op)
    assert list(replace_head(old, 3).nodes) == ["a", "relu", "head", "head_2", "head_softmax"]


# -- preprocessing ---------------------------------------------------------------------------------------------------


def test_pixels_come_from_the_metadata_or_are_asked_for():
    known = {"size": 16, "mean": [0.1, 0.2, 0.3], "deviation": [1, 1, 1]}
    assert pictures_of(network(), known, None).mean == (0.1, 0.2, 0.3)
    tflite = pictures_of(network(), {"mean": [127.5], "std": [127.5]}, None)
    assert tflite.mean == tflite.deviation == (0.5, 0.5, 0.5)
    with pytest.raises(PlanError, match="--pixels"):
        pictures_of(network(), {}, None)
    with pytest.raises(PlanError, match="--pixels"):
        pictures_of(network(), known, "tf")


@pytest.mark.parametrize(("name", "expected"), [("tf", (-1, 1)), ("unit", (0, 1)), ("raw", (0, 255))])
def test_pixels_by_name(name, expected):
    examples = pictures_of(network(2), {}, name).examples(np.uint8([0, 255] * 6).reshape(1, 2, 2, 3))
    assert (examples.min(), examples.max()) == pytest.approx(expected, abs=1e-4)
    assert examples.dtype == np.float32 and set(PIXELS) == {"tf", "unit", "raw", "torch"}


def test_features_come_from_the_metadata_or_are_asked_for():
    words = el.Network("words", (49, 10, 1))
    words.add("flat", Flatten())
    assert front_end_of(words, {}, "ds_cnn") == (DS_CNN_MLPERF, 1.0)
    with pytest.raises(PlanError, match="--front-end"):
        front_end_of(words, {}, None)
    with pytest.raises(PlanError, match="49"):
        front_end_of(words, {}, "bc_resnet")


# -- training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("settings", "trained"), [({}, {"head"}), ({"train": ("conv",)}, {"head", "conv"})])
def test_a_run(model, pictures, tmp_path, settings, trained):
    store = RunStore(tmp_path / "runs")
    results = FinetuneExperiment.start(config(model, pictures, **settings), store, [], lambda line: None)
    run = store.open(store.list()[0].id)
    assert run.status == "finished" and 0 <= results["accuracy"] <= 1
    kept = load_model(run)
    assert kept.preprocessing["mean"] == [0.5, 0.5, 0.5] and len(kept.class_names) == kept.network.output.shape[0]
    before, after = el.load(model).weights, kept.weights
    changed = {name.partition("/")[0] for name in after if name not in before or (after[name] != before[name]).any()}
    assert changed == trained
    assert run.record["weights"]["sha256"] and run.record["preprocessing"] == json.loads(json.dumps(kept.preprocessing))


class StopAfter(Callback):
    def on_epoch_end(self, epoch, logs):
        self.model.stop_training = epoch == 0


def test_a_run_is_resumed_to_the_bit(model, pictures, tmp_path):
    whole, parts = RunStore(tmp_path / "whole"), RunStore(tmp_path / "parts")
    settings = config(model, pictures, epochs=2)
    FinetuneExperiment.start(settings, whole, [], lambda line: None)
    assert FinetuneExperiment.start(settings, parts, [StopAfter()], lambda line: None) is None
    FinetuneExperiment.resume(parts.list()[0].id, parts, [], lambda line: None)
    first, second = (load_model(store.open(store.list()[0].id)).weights for store in (whole, parts))
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_int8_leaves_ranges_for_an_export(model, pictures, tmp_path):
    pytest.importorskip("tflite")
    trained = el.finetune(model, images=str(pictures), pixels="tf", epochs=1, batch_size=8, precision="int8")
    trained.export(tmp_path / "m.tflite", int8=True)
    assert (tmp_path / "m.tflite").stat().st_size > 0


def test_a_loss_and_an_optimizer_of_ones_own(model, pictures, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("finetune_parts.py").write_text(
        "from edgelearn.ops import SGD, SoftmaxCrossEntropy\n"
        "def smooth(): return SoftmaxCrossEntropy(0.2)\n"
        "class Same(SGD): pass\n"
    )
    own = {"loss": "finetune_parts:smooth", "optimizer": "finetune_parts:Same"}
    store, losses = RunStore(tmp_path / "runs"), []
    for parts in (own, {"label_smoothing": 0.2}, {"label_smoothing": 0.0}):
        FinetuneExperiment.start(config(model, pictures, epochs=1, **parts), store, [], lambda line: None)
        losses.append(store.open(store.list()[0].id).history()[-1]["loss"])
    assert losses[0] == losses[1] != losses[2]


def test_its_own_classifier_can_be_kept(model, pictures):
    with pytest.raises(PlanError, match="keep-head"):
        FinetuneExperiment.load(config(model, pictures, keep_head=True))


def test_clips(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    rng = np.random.default_rng(0)
    for word in ("no", "yes"):
        (tmp_path / "words" / word).mkdir(parents=True)
        for i in range(5):
            soundfile.write(tmp_path / "words" / word / f"{i}.wav", 0.1 * rng.standard_normal(RATE), RATE)
    words = chain("words", (49, 10, 1), conv=Conv2D(4, 3, 4), flat=Flatten())
    el.Model(words).save(tmp_path / "words.safetensors")
    trained = el.finetune(
        tmp_path / "words.safetensors", clips=str(tmp_path / "words"), front_end="ds_cnn", epochs=1, batch_size=4
    )
    store = RunStore(tmp_path / "runs")
    with store.create("finetune", {}) as run:
        save_model(run, trained, trained.class_names, trained.preprocessing)
        run.finish({})
    with pytest.raises(RunError, match="pictures"):
        next(predict(["a.png"], store))
    assert trained.class_names == ("no", "yes") and trained.preprocessing["seconds"] == 1.0


def test_missing_settings_are_named(model, pictures, tmp_path):
    with pytest.raises(RunError, match="--images"):
        FinetuneExperiment.load(FinetuneConfig(model=model))
    with pytest.raises(RunError, match="MODEL"):
        FinetuneExperiment.load(FinetuneConfig(images=str(pictures)))
    with pytest.raises(DataError):
        FinetuneExperiment.load(FinetuneConfig(model=model, images=str(tmp_path / "nowhere")))
