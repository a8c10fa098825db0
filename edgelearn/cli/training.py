"""Commands that fine-tune a network, and how every command trains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from edgelearn.errors import RunError
from edgelearn.experiments.config import Config, setting
from edgelearn.experiments.finetune import FinetuneConfig, FinetuneExperiment
from edgelearn.experiments.flowers import FlowersConfig, FlowersExperiment
from edgelearn.lab.runs import RunStore
from edgelearn.tables import Table
from edgelearn.train import ProgressBar

from .answer import Answer, log, show
from .parser import RESUME, RUNS, changed, command, writable

TRAINING = {
    "run": "id of the run",
    "status": "finished, or interrupted (exit status 130)",
    "results": "the run's results, null after an interrupt: accuracy, its interval, memory in bytes, seconds",
}


def train(experiment: Any, config: Config, runs: RunStore, resume: str | None) -> Answer:
    """Start a training, or resume the run `resume` ("": the newest). Raises RunError if settings are given, too."""
    if resume is None:
        results, name = experiment.start(config, runs, [ProgressBar()]), None
    else:
        if given := changed(config):
            raise RunError(
                f"{given[0]} can't be changed: a resumed run keeps its configuration. Leave it out, or start a new run."
            )
        name = resume or runs.newest_unfinished(experiment.kind)
        results = experiment.resume(name, runs, [ProgressBar()])
    run = runs.open(name) if name else runs.open(runs.list()[0].id)
    return Answer({"run": run.id, "status": run.status, "results": results}, 130 if results is None else 0)


@command("flowers", one=TRAINING)
def flowers(config: FlowersConfig, runs: RunStore = RUNS, resume: str | None = RESUME) -> Answer:
    """Fine-tune MobileNet V1 on flowers: Qualcomm's published example, or the same for your own pictures.

    Pictures come from --images, --data or EDGELEARN_DATA, else from TensorFlow Datasets over the network, else from the
    embedded sample of drawings; the first line of output names the source. Ctrl-C saves at a step boundary, --resume
    continues.
    """
    return train(FlowersExperiment, config, runs, resume)


@command("finetune", one=TRAINING)
def finetune(config: FinetuneConfig, runs: RunStore = RUNS, resume: str | None = RESUME) -> Answer:
    """Fine-tune the model in a file on your own pictures or clips: a new head, and the layers that --train names.

    The folder has a subfolder for each class. Preprocessing comes from the model's metadata; where there is none,
    --pixels or --front-end says it. Ctrl-C saves at a step boundary, --resume continues.
    """
    return train(FinetuneExperiment, config, runs, resume)


@command("cifar10", many={
    "seed": "number", "accuracy": "on the test pictures", "loss": "of each epoch", "seconds": "of the training",
    "device": "name", "parameters": "number", "ms_per_step": "median over epochs",
})  # fmt: skip
def cifar10(
    seeds: tuple[int, ...] = setting((0,), minimum=0),
    epochs: int = setting(60, minimum=1),
    pictures: int | None = setting(None, "train with so many only", minimum=1),
    validation: bool = setting(False, "test with a fifth of the training pictures"),
    framework: str = setting("edgelearn", choices=("edgelearn", "torch")),
    network: str = setting(
        "small", "0.4 million parameters (small), 11.2 or 2.2 million",
        choices=("small", "resnet18_cifar", "mobilenet_v2_cifar"),
    ),
    data: str | None = setting(None, "a file that --write made (default: EDGELEARN_DATA)", metavar="NPZ"),
    write: Path | None = setting(
        None, "write the pictures of EDGELEARN_DATA there, encoded, and end", check=writable, metavar="NPZ"
    ),
    padding: str = setting("constant", "around cropped pictures: zeros, or mirrored", choices=("constant", "reflect")),
    compute: str = setting("fp32", "type to multiply in", choices=("fp32", "tf32", "bf16", "fp16")),
    models: Path | None = setting(None, "save the trained networks there", metavar="DIR"),
    device: str | None = setting(None, "part of a device's name; of PyTorch cpu or cuda", check=str, metavar="NAME"),
) -> list[Any]:  # fmt: skip
    """Train CIFAR-10 from scratch on 20,000 pictures, here or the same in PyTorch, with the accuracy over seeds."""
    from edgelearn.experiments import cifar10_recipe as recipe

    if write:
        recipe.write(str(write))
        return []
    chosen = recipe.read(data)
    if validation:
        chosen = recipe.for_validation(chosen)
    if pictures:
        chosen = replace(chosen, train=chosen.train[:pictures], train_labels=chosen.train_labels[:pictures])
    ours, found = {"padding": padding, "compute": compute, "models": models}, []
    for seed in seeds:
        log(f"{framework}, seed {seed}")
        if framework == "torch":
            found.append(recipe.train_torch(chosen, seed, epochs, device, network))
        else:
            found.append(recipe.train(chosen, seed, epochs, device, **ours, name=network))
    rows = [
        (r["seed"], f"{r['accuracy']:.2%}", f"{r['seconds']:.1f}", f"{r['ms_per_step']:.1f}", r["device"])
        for r in found
    ]
    mean = f"{sum(result['accuracy'] for result in found) / len(found):.2%}"
    show(Table(("seed", "accuracy", "seconds", "ms a step", "device"), [*rows, (), ("mean", mean, "", "", "")]))
    return found
