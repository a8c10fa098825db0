"""What a user's own clips are worth to a classifier of words that other people have trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgelearn.data.audio.cache import load_features
from edgelearn.data.audio.clips import ClipDataset
from edgelearn.data.audio.speech_commands import load_named
from edgelearn.errors import DataError
from edgelearn.experiments.keywords.personal import Personalisation, Protocol
from edgelearn.experiments.keywords.personal.trial import Trial
from edgelearn.experiments.keywords.splits import hold_out
from edgelearn.keywords.learners import Background, Embedder, Head, Learner, Neighbours

from .config import KeywordsConfig
from .data import ARABIC, HELD_SPEAKERS, arabic
from .networks import FRONT_END, SECONDS
from .weights import make_embedder, read_run

PERSONAL = Neighbours()
FALSE_ACCEPTS = 0.05  # before: the threshold is set for that


def personalise_arabic(
    config: KeywordsConfig, weights: dict[str, np.ndarray], shots: Sequence[int], learner: Learner = PERSONAL
) -> list[Personalisation]:
    """The speakers whom `config` holds out, and the 16 words that `weights` (a trained network's, with its classifier)
    tell apart: half of a user's ten clips are tested after enrolment with up to so many `shots` of the others, both
    ways round. The background are the clips that it was trained with. False accepts are other users' clips of the 8
    words that were held out; thresholds, before and after, accept FALSE_ACCEPTS of those words by the speakers that it
    was trained with.

    Raises DataError for a network that wasn't trained by classification, or of another task than "arabic"."""
    if config.task != "arabic":
        raise DataError(f"Users are the speakers of the task 'arabic'; this network was trained on '{config.task}'.")
    if "classifier/kernel" not in weights:
        raise DataError("Personalisation starts from a classifier of words: train with the method 'classify'.")
    everything = load_named(ARABIC, config.data)
    users = hold_out(everything, 0, HELD_SPEAKERS, config.seed).test
    embedder, known = _embedder(config, weights, everything, set(users.speakers.tolist()))
    ways = embedder.head.ways
    labels = [known.index(word) if word in known else ways for word in users.words.tolist()]
    names = (*(f"word {number}" for number in range(ways)), "another")
    protocol = Protocol(tuple(range(len(known))), parts=2, against="none")
    others = embedder.background.others
    scores = embedder.head.scores(embedder.embed(others))
    protocol = protocol.accepting(scores, int(FALSE_ACCEPTS * len(others)))
    features = load_features(users, FRONT_END, SECONDS)
    trial = Trial(embedder, replace(users, class_names=names, labels=labels), features, protocol)
    return [trial.run(learner, count) for count in shots]


def personalise_run(
    folder: str | Path, shots: Sequence[int], data: str | None = None, device: str | None = None
) -> list[Personalisation]:
    """personalise_arabic for the network in the `folder` of a run of KeywordsExperiment."""
    config, weights = read_run(Path(folder))
    return personalise_arabic(replace(config, data=data, device=device), weights, shots)


def _embedder(
    config: KeywordsConfig, weights: dict[str, np.ndarray], everything: ClipDataset, users: set[str]
) -> tuple[Embedder, tuple[str, ...]]:
    """With head and background, and the words that users can say: English words among the head's are none."""
    train = arabic(config).train
    known, total = train[0].class_names, sum(len(dataset.class_names) for dataset in train)
    head = Head(weights["classifier/kernel"][:, :total], weights["classifier/bias"][:total])  # not the reversed words'
    features = np.concatenate([load_features(dataset, FRONT_END, SECONDS) for dataset in train])
    labels = np.concatenate([train[0].labels, *(dataset.labels + len(known) for dataset in train[1:])])
    others = everything.take(~np.isin(everything.speakers, list(users)) & ~np.isin(everything.words, known))
    background = Background(features, labels, load_features(others, FRONT_END, SECONDS))
    embedder = make_embedder(config, weights)
    return embedder.with_weights(embedder.weights, head).with_background(background), known
