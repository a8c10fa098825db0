"""Evaluation of learners in episodes, with 95 % intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np

from edgelearn.errors import DataError
from edgelearn.keywords.learners import Embedder, Learner
from edgelearn.lab.runs.statistics import Interval, interval
from edgelearn.lab.runs.tables import render, table

from .episodes import Episode, Episodes
from .metrics import OpenSet, open_set

MEASURES = tuple(field.name for field in fields(OpenSet) if field.name not in ("threshold", "false_accepts"))


@dataclass(frozen=True, eq=False)
class EvaluationReport:
    """Results of a learner.

    Arguments:
    - `learner`, `episodes`: what was evaluated.
    - `measures`: an Interval for each of MEASURES (see `metrics.OpenSet`; rates at 5 % false accepts).
    - `known`, `unknown`: known scores of all clips of known and of unknown words, for a DET curve.
    """

    learner: Learner
    episodes: Episodes
    measures: dict[str, Interval]
    known: np.ndarray
    unknown: np.ndarray

    def to_dict(self) -> dict:
        names = "num_classes", "shots", "queries", "unknown", "unknown_words", "unlabelled", "speakers", "seed"
        settings = {name: getattr(self.episodes, name) for name in names}
        measures = {name: asdict(value) for name, value in self.measures.items()}
        return self.learner.to_dict() | settings | {"episodes": len(self.episodes), "measures": measures}


def evaluate(learner: Learner, embedder: Embedder, features: np.ndarray, episodes: Episodes) -> EvaluationReport:
    """Evaluate one learner: see `Evaluator`."""
    return Evaluator(embedder, features).run(learner, episodes)


class Evaluator:
    """Evaluates learners in episodes of one set of clips.

    Each clip is embedded once; learners that train the network embed the clips of each episode again.

    Arguments:
    - `embedder`: what learners start from.
    - `features`: of all clips of the episodes' data set (n, frames, bands).
    """

    def __init__(self, embedder: Embedder, features: np.ndarray) -> None:
        self.embedder, self.features = embedder, features
        self.embeddings = embedder.embed(features)

    def run(self, learner: Learner, episodes: Episodes) -> EvaluationReport:
        """Enrol and test in each episode. Raises DataError for episodes without unknown words, or of other clips."""
        if not episodes.unknown:
            raise DataError(
                f"{episodes.dataset.name} has no unknown words in addition to {episodes.num_classes} to enrol. Ask for "
                f"fewer."
            )
        if len(episodes.dataset) != len(self.features):
            raise DataError(
                f"{episodes.dataset.name} has {len(episodes.dataset):,} clips, but there are features of "
                f"{len(self.features):,}. Compute them for these clips."
            )
        results, known, unknown = [], [], []
        for number, episode in enumerate(episodes):
            scores, of_queries, of_unknown = self._episode(learner, episode, number)
            results.append(open_set(scores.argmax(1), episode.query_labels, of_queries, of_unknown))
            known.append(of_queries)
            unknown.append(of_unknown)
        measures = {name: interval(np.array([getattr(each, name) for each in results])) for name in MEASURES}
        return EvaluationReport(learner, episodes, measures, np.concatenate(known), np.concatenate(unknown))

    def _episode(self, learner: Learner, episode: Episode, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Scores of the queries, and known scores of the queries and of the unknown clips."""
        parts = episode.support, episode.query, episode.unknown, episode.unlabelled
        support, query, unknown, unlabelled = (part.ravel() for part in parts)
        labels = episode.support_labels
        if learner.keeps_embeddings:
            x, num_classes = self.embeddings, len(episode.words)
            classifier = learner.classify(self.embedder, x[support], labels, num_classes, x[unlabelled], seed=number)
            return classifier.scores(x[query]), classifier.known_score(x[query]), classifier.known_score(x[unknown])
        more = self.features[unlabelled] if len(unlabelled) else None
        spotter = learner.enrol(self.embedder, self.features[support], labels, more, seed=number)
        x = spotter.embedder.embed(self.features[np.concatenate([query, unknown])])
        known = spotter.classifier.known_score(x)
        return spotter.classifier.scores(x[: len(query)]), known[: len(query)], known[len(query) :]


HEADER = ("learner", "classes", "shots", "speaker", "accuracy", "AUROC", "equal error", "rejected*", "right*")


def to_table(reports: Sequence[EvaluationReport], width: int = 140) -> str:
    """A line for each report: means with 95 % intervals."""
    rows = table(None, HEADER)
    columns = "accuracy", "auroc", "equal_error_rate", "false_rejects", "accepted_accuracy"
    for report in reports:
        e = report.episodes
        settings = [v["learner"] if isinstance(v, dict) else str(v) for v in report.learner.to_dict().values()]
        measured = (str(report.measures[name]) for name in columns)
        rows.add_row(", ".join(settings[:2]), str(e.num_classes), str(e.shots), e.speakers, *measured)
    counts = " or ".join(sorted({str(len(report.episodes)) for report in reports}))
    return render([rows, f"{counts} episodes. *: of known clips, where 5 % of unknown ones are accepted."], width)
