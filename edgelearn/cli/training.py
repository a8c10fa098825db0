"""Commands that fine-tune a network, and how every command trains."""

from __future__ import annotations

from typing import Any

from edgelearn.errors import RunError
from edgelearn.experiments.config import Config
from edgelearn.experiments.finetune import FinetuneConfig, FinetuneExperiment
from edgelearn.experiments.flowers import FlowersConfig, FlowersExperiment
from edgelearn.lab.runs import RunStore
from edgelearn.train import ProgressBar

from .answer import Answer
from .parser import RESUME, RUNS, changed, command

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
