"""Intent classification: train a network on sentences, and let it classify others."""

from __future__ import annotations

from typing import Any

from edgelearn.experiments.intents import IntentsConfig, IntentsExperiment, classify
from edgelearn.experiments.tasks import load_model
from edgelearn.lab.runs import RunStore
from edgelearn.tables import Table

from .answer import Answer, show
from .parser import DEVICE, RESUME, RUNS, argument, command
from .training import TRAINING, train


@command("intents train", "train on sentences and their intents", one=TRAINING | {
    "results": "as of the other trainings, of sentences that neither training nor validation had, and validation: "
    "accuracy; least: the probability that 95 % of the validation's sentences reach; refused: share of the sentences "
    "of no known intent that don't; null after an interrupt",
})  # fmt: skip
def train_intents(config: IntentsConfig, runs: RunStore = RUNS, resume: str | None = RESUME) -> Answer:
    return train(IntentsExperiment, config, runs, resume)


@command("intents ask", "what sentences ask for", many={
    "text": "the sentence", "intent": "the most probable one", "probability": "its share, from 0 to 1",
})  # fmt: skip
def ask(
    run: str = argument(help="a run of `intents train`, by its id or the start", metavar="RUN"),
    texts: tuple[str, ...] = argument(help="sentences", metavar="TEXT"),
    runs: RunStore = RUNS,
    device: str | None = DEVICE,
) -> list[Any]:
    found = classify(load_model(runs.open(run), device), texts)
    rows = [
        {"text": text, "intent": intent, "probability": probability}
        for text, (intent, probability) in zip(texts, found, strict=True)
    ]
    show(Table(("text", "intent", "probability"), [(r["text"], r["intent"], f"{r['probability']:.1%}") for r in rows]))
    return rows
