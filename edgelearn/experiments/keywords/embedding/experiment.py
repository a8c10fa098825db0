"""Experiment: train an embedding into a run folder, and test it in episodes of new words and speakers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np

from edgelearn import atomic
from edgelearn.data.audio.cache import load_features
from edgelearn.data.subfolders import skipped_lines
from edgelearn.errors import DataError
from edgelearn.experiments.experiment import Experiment, Log
from edgelearn.experiments.keywords.episodes import Episodes
from edgelearn.experiments.keywords.evaluate import EvaluationReport, Evaluator, to_table
from edgelearn.interop import safetensors
from edgelearn.keywords.learners import Embedder, Learner, NearestMean
from edgelearn.keywords.learners.finetune import trainable_part
from edgelearn.lab.runs import Run, figures
from edgelearn.ops import AdamW
from edgelearn.train import Callback, CosineDecay, Model
from edgelearn.train.phases import Phases

from .config import KeywordsConfig
from .data import TaskData, load_task
from .dummy_temperature import select_dummy_temperature
from .networks import FRONT_END, SECONDS, add_head, make_network
from .sources import ClipSource, EpisodeOrder, Recordings, augmentations
from .weights import COMMAND, WEIGHTS, make_embedder, read_start

PROTOCOLS = (("same", 1), ("same", 5), ("other", 1), ("other", 5))  # speakers, shots
NUM_CLASSES = 5


class KeywordsExperiment(Experiment[KeywordsConfig]):
    """Training of an embedding. `run` does all of it; a notebook can call the steps.

    Arguments:
    - `config`: settings of the run.
    - `data`: clips to train on and to test with.
    """

    kind, command, config_type = "keywords", COMMAND, KeywordsConfig
    same: ClassVar = {"data": ("origin", "words", "train", "test")}

    def __init__(self, config: KeywordsConfig, data: TaskData) -> None:
        self.config, self.data = config, data
        recordings = Recordings.load(data.train, FRONT_END.rate, SECONDS)
        self.recordings = recordings.with_reversed() if config.reversed else recordings
        network = make_network(config)
        embedding = tuple(network.parameters)
        trainable = trainable_part(network, config.part)
        loss = add_head(network, config, self.recordings.words)
        network.freeze(*embedding)
        if not config.frozen:
            network.unfreeze(*trainable)
        weights = network.initialize(config.seed)
        if config.start:
            weights |= read_start(config.start, embedding)
        self.model = Model(network, weights, config.device, config.seed)
        steps = max(1, config.epochs * self.steps)
        rate = CosineDecay(config.learning_rate, steps, warmup_steps=min(100, steps // 10))
        batchnorm = "moving" if config.frozen or config.part != "all" else "batch"
        self.model.compile(AdamW(rate, weight_decay=config.weight_decay), batchnorm=batchnorm, loss=loss)

    @classmethod
    def load(cls, config: KeywordsConfig) -> KeywordsExperiment:
        return cls(config, load_task(config))

    @cached_property
    def episodes(self) -> EpisodeOrder | None:
        """Episodes of an epoch, with about as many clips as the data; None for the method "classify"."""
        c = self.config
        if not c.episodic:
            return None
        unknown = c.method == "dummy-prototypes"
        size = c.num_classes * (c.shots + c.queries * (1 + unknown))
        count = max(1, len(self.recordings) // size)
        return EpisodeOrder(self.recordings, c.num_classes, c.shots, c.queries, unknown, count, c.seed)

    @property
    def batch_size(self) -> int:
        return self.episodes.size if self.episodes else min(self.config.batch_size, len(self.recordings))

    @property
    def steps(self) -> int:
        """Number of updates in an epoch."""
        return self.episodes.count if self.episodes else -(-len(self.recordings) // self.batch_size)

    @cached_property
    def phases(self) -> Phases:
        """Memory plans of the training."""
        count = self.episodes.count * self.episodes.size if self.episodes else len(self.recordings)
        return self.model.phases(self.batch_size, examples=(count,))

    @property
    def embedder(self) -> Embedder:
        """An embedder with the model's current weights."""
        return make_embedder(self.config, self.model.weights)

    def train_source(self) -> tuple[ClipSource, np.ndarray]:
        """Training examples and their labels."""
        shape, embedder = self.model.network.input_shape, self.embedder

        def examples(clips: np.ndarray) -> np.ndarray:
            return embedder.examples(FRONT_END(clips))

        augmented = augmentations(self.config, embedder.bands_first)
        labels = np.tile(self.episodes.labels, self.episodes.count) if self.episodes else self.recordings.labels
        return ClipSource(self.recordings, examples, shape, *augmented, self.episodes), labels

    def origins(self) -> dict:
        return {"data": self.data.to_dict()}

    def sources(self) -> list[str]:
        untested = [
            f"  not tested with {shots} clips by the {speakers} speaker(s): {problem}"
            for (speakers, shots), problem in self._tests.items()
            if isinstance(problem, DataError)
        ]
        return [self.data.to_dict()["description"], *skipped_lines(self.data.skipped), *untested]

    def fit(self, callbacks: Sequence[Callback]) -> None:
        x, labels = self.train_source()
        self.model.fit(
            x, labels, self.batch_size, self.config.epochs, shuffle=self.episodes is None, callbacks=callbacks,
            verbose=0,
        )  # fmt: skip

    @cached_property
    def _tests(self) -> dict[tuple[str, int], Episodes | DataError]:
        """Episodes of each of PROTOCOLS, or the error if the test clips don't suffice."""
        num_classes = min(NUM_CLASSES, len(self.data.test.class_names) - 1)
        tests: dict[tuple[str, int], Episodes | DataError] = {}
        for speakers, shots in PROTOCOLS:
            try:
                tests[speakers, shots] = Episodes(
                    self.data.test, num_classes, shots, min(5, 10 - shots), None, speakers, self.config.episodes
                )
            except DataError as problem:
                tests[speakers, shots] = problem
        return tests

    def test(self, learners: Sequence[Learner] | None = None) -> list[EvaluationReport]:
        """Evaluate learners in the episodes of PROTOCOLS that the test clips suffice for.

        `learners`: default nearest mean by both distances, and dummy prototypes if the embedder has them.
        """
        if learners is None:
            learners = list[Learner]([NearestMean("euclidean"), NearestMean("cosine")])
            if self.embedder.dummies:
                clips = self.data.train[0]
                learners.append(
                    select_dummy_temperature(self.embedder, clips, load_features(clips, FRONT_END, SECONDS))
                )
        evaluator = Evaluator(self.embedder, load_features(self.data.test, FRONT_END, SECONDS))
        tests = [episodes for episodes in self._tests.values() if isinstance(episodes, Episodes)]
        return [evaluator.run(learner, episodes) for learner in learners for episodes in tests]

    def finish(self, run: Run, seconds: float, log: Log) -> dict:
        metadata = {"config": json.dumps(self.config.to_dict()), "data": self.data.to_dict()["description"]}
        atomic.write_bytes(run.folder / WEIGHTS, safetensors.to_bytes(self.model.weights, metadata))
        reports = self.test()
        results = {
            "reports": [report.to_dict() for report in reports], "seconds": seconds, "epochs": self.config.epochs,
            "memory": self.memory(),
        }  # fmt: skip
        figures.plot_learning_curves(run.history(), run.folder / "curves.png")
        run.finish(results)
        if reports:
            log(to_table(reports))
        return results
