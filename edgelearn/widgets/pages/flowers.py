"""Fine-tuning on flowers: settings, training, mistakes, runs compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.data.pictures import decode, normalize
from edgelearn.display import plural
from edgelearn.errors import UsageError
from edgelearn.experiments.experiment import Training
from edgelearn.experiments.flowers import ACCURACY, FlowersConfig, FlowersExperiment, FlowersTraining
from edgelearn.experiments.memory_plans import plot_roles, plot_timeline
from edgelearn.lab.runs import Comparison, RunStore, compare, figures
from edgelearn.statistics import confusion_matrix
from edgelearn.tables import Table
from edgelearn.widgets.pictures import Waiting, contact_sheet, plot_prediction
from edgelearn.widgets.training import TrainingView

from .shown import Shown

PRESETS = {
    "sample": FlowersConfig(sample=True), "thicket": FlowersConfig(thicket=True), "photographs": FlowersConfig()
}  # fmt: skip
_SHEET = 16  # pictures


class Flowers(Shown):
    """A loaded fine-tuning: its settings, some of its pictures, and the memory it will take.

    - `training`: the FlowersTraining.
    - `store`, `run`: where its run is kept, and the run that is continued, if any.
    """

    def __init__(self, training: FlowersTraining, store: RunStore, run: Any) -> None:
        self.training, self.store, self.run = training, store, run
        config, dataset = training.config, training.dataset
        settings = Table((), [
            ("pictures", dataset.description),
            ("training, test", f"{len(training.train[1]):,} and {plural(len(training.test[1]), 'picture')}"),
            ("network", training.pretrained.description), ("trained", ", ".join(config.trainable)),
            ("mini-batch", f"{config.batch_size}, in micro-batches of {config.micro_batch}"),
            ("epochs, learning rate", f"{config.epochs}, {config.learning_rate:g} ({config.optimizer})"),
            ("device", f"{training.model.device.id}: {training.model.choice.reason}"),
            ("published", f"{ACCURACY['before']:.1%} before training and {ACCURACY['after']:.1%} after (photographs)"),
        ])  # fmt: skip
        shown = np.random.default_rng(0).permutation(training.train[0].indices)[:_SHEET]
        names = [dataset.class_names[dataset.labels[i]] for i in shown]
        sheet = contact_sheet([dataset.image(int(i), 96) for i in shown], names)
        super().__init__(f"{dataset.description} {training.pretrained.description}", settings, sheet)

    def plan(self) -> Shown:
        """The memory of a step with the feature cache and without, and over the step."""
        plan = self.training.phases["train"]
        without = self.training.model.plan(plan.request.batch_size, plan.request.micro_batch)
        bars = plot_roles({"a step with the cache": plan, "without": without})
        return Shown(repr(self.training.phases), bars, plot_timeline(plan))


def flowers(preset: str = "sample", resume: str | None = None, **settings: Any) -> Flowers:
    """Load Qualcomm's published fine-tuning, or the same small on drawings.

    Arguments:
    - `preset`: "sample" (drawings), "thicket" (drawings that are hard to tell) or "photographs".
    - `resume`: id of an interrupted run, to go on with it (default: a new one).
    - `settings`: others of FlowersConfig, such as `epochs`, `trainable`, `seed`.
    """
    if preset not in PRESETS:
        raise UsageError(f"There is no preset '{preset}'. Choose one of {', '.join(PRESETS)}.")
    store = RunStore()
    run = store.open(resume) if resume else None
    config = FlowersConfig.from_dict(run.config) if run else replace(PRESETS[preset], **settings)
    with Waiting("Loading pictures and network"):
        return Flowers(FlowersExperiment.load(config), store, run)


def train(experiment: Flowers | Training, store: RunStore | None = None) -> TrainingView:
    """A view with buttons that trains an experiment while the notebook stays free.

    Arguments:
    - `store`: where the run is kept (default: the experiment's, else that of the commands).
    """
    if isinstance(experiment, Flowers):
        return TrainingView(experiment.training, store or experiment.store, run=experiment.run)
    return TrainingView(experiment, store or RunStore())


def mistakes(experiment: Flowers) -> Shown:
    """The confusion matrix on the test pictures, and the wrong answers with the highest probabilities: the picture's
    class, and the predicted one."""
    training = experiment.training
    dataset, names = training.dataset, training.dataset.class_names
    with Waiting("Predicting"):
        probabilities = training.model.predict(training.test[0])
    indices = training.test[0].indices
    predicted, truth = probabilities.argmax(-1), dataset.labels[indices]
    matrix = figures.plot_confusion(confusion_matrix(truth, predicted, len(names)), names)
    wrong = np.flatnonzero(predicted != truth)
    surest = wrong[np.argsort(-probabilities[wrong].max(-1))][:_SHEET]
    captions = [f"{names[truth[i]]}\n{names[predicted[i]]} {probabilities[i].max():.0%}" for i in surest]
    pictures = [dataset.image(int(indices[i]), 96) for i in surest]
    line = f"{len(wrong)} of {len(truth)} test pictures are named wrongly."
    return Shown(line, matrix, line, *([contact_sheet(pictures, captions)] if captions else []))


def name_picture(experiment: Flowers, path: str | None = None) -> Shown:
    """Name a picture: the first of the test set, or the JPEG or PNG at `path`."""
    training = experiment.training
    size, names = training.pretrained.size, training.dataset.class_names
    first = training.test[0].indices[0]
    picture = decode(Path(path), size, path) if path else training.dataset.image(int(first), size)
    title = Path(path).name if path else f"in truth: {names[training.dataset.labels[first]]}"
    probabilities = training.model.predict(normalize(picture[None]))[0]
    return Shown(
        f"{title}; named {names[probabilities.argmax()]}", plot_prediction(picture, names, probabilities, title)
    )


def compare_runs(kind: str = "flowers", count: int = 4, store: RunStore | None = None) -> Comparison:
    """Compare the newest `count` finished runs of a kind. Raises RunError if there is none."""
    kept = store or RunStore()
    names = [summary.id for summary in kept.list() if summary.kind == kind and summary.status == "finished"]
    return compare([kept.open(name) for name in names[:count]])
