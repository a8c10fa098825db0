"""What a user's own clips are worth to a classifier of words that other people have trained."""

from __future__ import annotations

import numpy as np

from edgelearn.data.audio.cache import load_features
from edgelearn.data.audio.speech_commands import load_named
from edgelearn.errors import DataError
from edgelearn.experiments.keywords.learners import Background, Embedder, FineTune, Head, Learner, Linear
from edgelearn.experiments.keywords.metrics import det_curve
from edgelearn.experiments.keywords.personal import Personalisation, Protocol, personalise
from edgelearn.experiments.keywords.splits import hold_out

from .config import KeywordsConfig
from .data import ARABIC, HELD_SPEAKERS, arabic
from .job import make_embedder
from .networks import FRONT_END, SECONDS

PERSONAL = FineTune("head", epochs=200, learning_rate=0.02, rehearsal=0.5)
FALSE_ACCEPTS = 0.05  # before: the threshold is set for that


def personalise_arabic(
    config: KeywordsConfig, weights: dict[str, np.ndarray], shots: int, learner: Learner = PERSONAL
) -> Personalisation:
    """The speakers whom `config` holds out, and the 16 words that `weights` (a trained network's, with its classifier)
    tell apart: half of a user's ten clips are tested after enrolment with up to `shots` of the others, both ways
    round. The clips that it was trained with are rehearsed. False accepts are other users' clips of the 8 words that
    were held out; the threshold is where they were FALSE_ACCEPTS before.

    Raises DataError for a network that wasn't trained by classification."""
    if "classifier/kernel" not in weights:
        raise DataError("Personalisation starts from a classifier of words: train with the method 'classify'.")
    train = arabic(config).train[0]
    known = list(train.class_names)
    kernel, bias = (weights[f"classifier/{role}"] for role in ("kernel", "bias"))
    head = Head(kernel[:, : len(known)], bias[: len(known)])
    embedder = make_embedder(config, weights)
    background = Background(load_features(train, FRONT_END, SECONDS), train.labels)
    embedder = embedder.with_weights(embedder.weights, head).with_background(background)
    users = hold_out(load_named(ARABIC, config.data), 0, HELD_SPEAKERS, config.seed).test
    names = (*known, *(word for word in users.class_names if word not in known))
    users = users.only(names)
    features = load_features(users, FRONT_END, SECONDS)
    protocol = Protocol(tuple(range(len(known))), parts=2, threshold=_threshold(embedder, features, users.labels))
    return personalise(learner, embedder, users, features, protocol, shots)


def _threshold(embedder: Embedder, features: np.ndarray, labels: np.ndarray) -> float:
    plain = Linear(embedder.head.kernel, embedder.head.bias)
    sure = plain.knownness(embedder.embed(features))
    is_word = labels < plain.ways
    thresholds, accepted, _ = det_curve(sure[is_word], sure[~is_word])
    return float(thresholds[np.argmax(accepted <= FALSE_ACCEPTS)])
