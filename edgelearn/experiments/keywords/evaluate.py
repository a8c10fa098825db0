"""Episodes into a table: what a way to learn from few clips comes to, with 95 % intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np

from edgelearn.errors import DataError
from edgelearn.keywords.learners import Embedder, Learner, Spotter
from edgelearn.lab.runs.tables import render, table

from .episodes import Episode, Episodes
from .metrics import Interval, OpenSet, det_curve, interval, open_set

MEASURES = tuple(field.name for field in fields(OpenSet) if field.name not in ("threshold", "false_accepts"))


@dataclass(frozen=True, eq=False)
class EvaluationReport:
    """What `learner` came to in `episodes`: an Interval of each of MEASURES (see metrics.OpenSet; rates at 5 % false
    accepts), and the scores of all known and of all unknown clips, for a DET curve."""

    learner: Learner
    episodes: Episodes
    measures: dict[str, Interval]
    known: np.ndarray
    unknown: np.ndarray

    def det(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The DET curve over the clips of all episodes: see metrics.det_curve."""
        return det_curve(self.known, self.unknown)

    def to_dict(self) -> dict:
        e = self.episodes
        names = "ways", "shots", "queries", "unknown", "unknown_words", "unlabelled", "speakers", "seed"
        settings = {name: getattr(e, name) for name in names}
        found = {name: asdict(value) for name, value in self.measures.items()}
        return self.learner.to_dict() | settings | {"episodes": len(e), "measures": found}


def evaluate(learner: Learner, embedder: Embedder, features: np.ndarray, episodes: Episodes) -> EvaluationReport:
    """Enrol and test in each of `episodes`, whose data set's clips have `features` (n, frames, bands). Where the
    embeddings stay as they are, each clip is embedded once. Raises DataError for episodes without clips to reject, or
    of other clips than there are features of."""
    return Evaluator(embedder, features).run(learner, episodes)


class Evaluator:
    """One set of clips, for several learners and episodes."""

    def __init__(self, embedder: Embedder, features: np.ndarray) -> None:
        self.embedder, self.features = embedder, features
        self.embeddings = embedder.embed(features)

    def run(self, learner: Learner, episodes: Episodes) -> EvaluationReport:
        if not episodes.unknown:
            raise DataError(
                f"{episodes.dataset.name} has no words left to reject beside {episodes.ways} to recognise. Ask for "
                f"fewer ways."
            )
        if len(episodes.dataset) != len(self.features):
            raise DataError(
                f"{episodes.dataset.name} has {len(episodes.dataset):,} clips, but there are features of "
                f"{len(self.features):,}. Compute them for these clips."
            )
        found, known, unknown = [], [], []
        for number, episode in enumerate(episodes):
            scores, sure, unsure = self._episode(learner, episode, number)
            found.append(open_set(scores.argmax(1), episode.query_labels, sure, unsure))
            known.append(sure)
            unknown.append(unsure)
        measures = {name: interval([getattr(each, name) for each in found]) for name in MEASURES}
        return EvaluationReport(learner, episodes, measures, np.concatenate(known), np.concatenate(unknown))

    def _episode(self, learner: Learner, episode: Episode, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Scores of the queries, and how known these and the unknown clips are."""
        e = episode
        support, query, unknown, heard = (part.ravel() for part in (e.support, e.query, e.unknown, e.unlabelled))
        labels = episode.support_labels
        if learner.keeps_embeddings:
            x, ways = self.embeddings, len(episode.words)
            found = learner.classify(self.embedder, x[support], labels, ways, x[heard], seed=number)
            return found.scores(x[query]), found.knownness(x[query]), found.knownness(x[unknown])
        more = self.features[heard] if len(heard) else None
        spotter: Spotter = learner.enrol(self.embedder, self.features[support], labels, more, seed=number)
        x = spotter.embedder.embed(self.features[np.concatenate([query, unknown])])
        sure = spotter.classifier.knownness(x)
        return spotter.classifier.scores(x[: len(query)]), sure[: len(query)], sure[len(query) :]


HEADER = ("learner", "ways", "shots", "speaker", "accuracy", "AUROC", "equal error", "rejected*", "right*")


def to_table(reports: Sequence[EvaluationReport], width: int = 140) -> str:
    """A line for each report: means with 95 % intervals."""
    found = table(None, HEADER)
    columns = "accuracy", "auroc", "equal_error_rate", "false_rejects", "accepted_accuracy"
    for report in reports:
        e = report.episodes
        settings = [v["learner"] if isinstance(v, dict) else str(v) for v in report.learner.to_dict().values()]
        measured = (str(report.measures[name]) for name in columns)
        found.add_row(", ".join(settings[:2]), str(e.ways), str(e.shots), e.speakers, *measured)
    counts = " or ".join(sorted({str(len(report.episodes)) for report in reports}))
    return render([found, f"{counts} episodes. *: of known clips, where 5 % of unknown ones are accepted."], width)
