"""Personalisation in Arabic: users of a classifier of words that was trained with other people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgelearn.data.audio.cache import load_features
from edgelearn.data.audio.clips import ClipDataset
from edgelearn.data.audio.speech_commands import load_named
from edgelearn.errors import DataError
from edgelearn.experiments.keywords.personalisation import CrossValidation, PersonalisationReport, Protocol
from edgelearn.experiments.keywords.splits import hold_out
from edgelearn.keywords.learners import Background, Head, Learner, Neighbours

from .config import KeywordsConfig
from .data import ARABIC, HELD_SPEAKERS, arabic
from .networks import FRONT_END, SECONDS
from .weights import make_embedder, read_run

FALSE_ACCEPTS = 0.05  # at the threshold before personalisation


def personalise_arabic(
    config: KeywordsConfig, weights: dict[str, np.ndarray], shots: Sequence[int], learner: Learner | None = None
) -> list[PersonalisationReport]:
    """Personalise a trained classifier of 16 Arabic words for the 6 held-out speakers.

    Half of a user's ten clips of a word are tested after enrolment with the others, both ways round. The background
    consists of the training clips. False accepts are other users' clips of the 8 held-out words; thresholds, before and
    after, accept FALSE_ACCEPTS of these words by the training speakers.

    Arguments:
    - `config`: of the training.
    - `weights`: of the trained network with its classifier.
    - `shots`: a report is made for each number of enrolled clips of a word.
    - `learner`: default `Neighbours()`.

    Raises DataError for a network that wasn't trained by classification, or for another task than "arabic".
    """
    if config.task != "arabic":
        raise DataError(f"Users are the speakers of the task 'arabic'; this network was trained on '{config.task}'.")
    if "classifier/kernel" not in weights:
        raise DataError("Personalisation starts from a classifier of words: train with the method 'classify'.")
    every = load_named(ARABIC, config.data)
    users = hold_out(every, 0, HELD_SPEAKERS, config.seed).test
    head, background, words = _shared(config, weights, every, users)
    embedder = make_embedder(config, weights)
    embedder = embedder.with_weights(embedder.weights, head).with_background(background)
    classes = head.num_classes
    labels = [words.index(word) if word in words else classes for word in users.words.tolist()]
    names = (*(f"word {number}" for number in range(classes)), "another")
    scores = head.scores(embedder.embed(background.non_keywords))
    protocol = Protocol(tuple(range(len(words))), folds=2, against="none")
    protocol = protocol.with_accepts(scores, int(FALSE_ACCEPTS * len(scores)))
    features = load_features(users, FRONT_END, SECONDS)
    validation = CrossValidation(embedder, replace(users, class_names=names, labels=labels), features, protocol)
    return [validation.run(learner or Neighbours(), count) for count in shots]


def personalise_run(
    folder: str | Path, shots: Sequence[int], data: str | None = None, device: str | None = None
) -> list[PersonalisationReport]:
    """`personalise_arabic` for the network in the folder of a run."""
    config, weights = read_run(Path(folder))
    return personalise_arabic(replace(config, data=data, device=device), weights, shots)


def _shared(
    config: KeywordsConfig, weights: dict[str, np.ndarray], every: ClipDataset, users: ClipDataset
) -> tuple[Head, Background, tuple[str, ...]]:
    """The head, the background, and the words that users say: English words of the head count as non-keywords."""
    train = arabic(config).train
    words, total = train[0].class_names, sum(len(dataset.class_names) for dataset in train)
    head = Head(weights["classifier/kernel"][:, :total], weights["classifier/bias"][:total])  # without reversed words
    features = np.concatenate([load_features(dataset, FRONT_END, SECONDS) for dataset in train])
    labels = np.concatenate([train[0].labels, *(dataset.labels + len(words) for dataset in train[1:])])
    others = every.take(~np.isin(every.speakers, users.speakers) & ~np.isin(every.words, words))
    return head, Background(features, labels, load_features(others, FRONT_END, SECONDS)), words
