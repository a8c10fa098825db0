"""A model from elsewhere: looked at, fine-tuned within a budget, taken back and run by its own runtime."""

from __future__ import annotations

import os
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.data.flowers import embedded_flowers
from edgelearn.errors import UsageError
from edgelearn.experiments.finetune import FinetuneConfig, FinetuneExperiment, finetuning_of
from edgelearn.experiments.flowers import load_pretrained
from edgelearn.interop import ModelFile, read_model, write_model
from edgelearn.tables import Table
from edgelearn.train import History
from edgelearn.train.inspection import inspect
from edgelearn.widgets.pictures import Waiting, contact_sheet, plot_history

from .shown import Shown

PUBLISHED = Path("models") / "vww_96_float.tflite"  # MLCommons Tiny's person detector, under the data folder


@lru_cache(maxsize=1)
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory()  # goes with the kernel


def model_file() -> Path:
    """A TFLite file: MLCommons Tiny's person detector in EDGELEARN_DATA, else the package's MobileNet."""
    published = Path(os.environ.get("EDGELEARN_DATA", ""), PUBLISHED)
    if published.is_file():
        return published
    path = Path(_folder().name) / "pretrained.tflite"
    sample = load_pretrained(5, seed=0, sample=True)
    preprocessing = {"size": 96, "mean": [0.5] * 3, "deviation": [0.5] * 3}
    write_model(path, ModelFile(sample.network, sample.weights, preprocessing=preprocessing))
    return path


def drawings() -> Shown:
    """A drawn flower of each kind: the embedded sample."""
    dataset = embedded_flowers()
    first = [int(np.flatnonzero(dataset.labels == number)[0]) for number in range(len(dataset.class_names))]
    return Shown(dataset.description, contact_sheet([dataset.image(i, 96) for i in first], list(dataset.class_names)))


class Finetuned(Shown):
    """A model fine-tuned on drawn flowers: accuracy before and after, curves, planned memory.

    - `training`: the Training; `model`: its model.
    """

    def __init__(self, training: Any, history: History, before: float, after: float) -> None:
        self.training, self.model = training, training.model
        peak = training.phases.peak_bytes / 1e6
        rows = [("accuracy before", f"{before:.1%}"), ("accuracy after", f"{after:.1%}"),
                ("planned peak", f"{peak:.1f} MB"), ("trained", ", ".join(training.config.train))]  # fmt: skip
        super().__init__(f"accuracy {before:.1%} before, {after:.1%} after", plot_history(history), Table((), rows))

    def export(self, name: str = "flowers.tflite") -> Path:
        """Write the model to a file in a temporary folder, in the format of the name's ending."""
        path = Path(_folder().name) / name
        self.model.export(path)
        return path


def finetune(path: str | Path, budget: str = "20 MB", epochs: int = 5) -> Finetuned:
    """Give a model a new classifier and train it, with the last convolution, on drawn flowers.

    Arguments:
    - `path`: a model file.
    - `budget`: limit of device memory.
    """
    last = [layer.name for layer in inspect(path).layers if layer.op == "Conv2D"][-1]
    pixels = "unit" if Path(path).name == PUBLISHED.name else None  # the file doesn't say so
    config = FinetuneConfig(
        model=str(path), images="drawings", pixels=pixels, train=(last,), epochs=epochs, batch_size=50, budget=budget
    )
    with Waiting("Loading"):
        training = finetuning_of(config, embedded_flowers(), read_model(path))
        training.experiment = FinetuneExperiment
    with Waiting("Training", training.model.device):
        before = training.model.evaluate(*training.test)["accuracy"]
        history = History()
        training.fit([history])
        after = training.model.evaluate(*training.test)["accuracy"]
    return Finetuned(training, history, before, after)


def take_back(tuned: Finetuned, name: str = "flowers.tflite") -> Table:
    """Export a TFLite file and run it with LiteRT, the official runtime. Raises UsageError if that isn't installed."""
    try:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType
    except ImportError:
        raise UsageError("LiteRT isn't installed: pip install ai-edge-litert.") from None
    path = tuned.export(name)
    resolver = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    runner = Interpreter(str(path), experimental_op_resolver_type=resolver).get_signature_runner()
    (output,) = runner.get_output_details()
    source, y = tuned.training.test
    x = source[np.arange(len(y))]
    found = np.concatenate([runner(input=x[i : i + 1])[output] for i in range(len(x))])
    difference = np.abs(found - tuned.model.predict(source)).max()
    return Table((), [
        ("file", f"{path.name}, {path.stat().st_size:,} bytes"),
        ("accuracy in LiteRT", f"{(found.argmax(-1) == y).mean():.1%}"),
        ("largest difference from edgelearn", f"{difference:.1e}"),
    ])  # fmt: skip
