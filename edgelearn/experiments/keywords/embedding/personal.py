"""What a user's own clips are worth to a classifier of words that other people have trained."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgelearn.data.audio.cache import load_features
from edgelearn.data.audio.clips import ClipDataset
from edgelearn.data.audio.speech_commands import load_named
from edgelearn.errors import DataError
from edgelearn.experiments.keywords.learners import Background, Embedder, FineTune, Head, Learner, Linear
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
    round. The clips that it was trained with are rehearsed; English words among them are none that a user says. False
    accepts are other users' clips of the 8 words that were held out; the threshold is where they were FALSE_ACCEPTS
    before.

    Raises DataError for a network that wasn't trained by classification."""
    if "classifier/kernel" not in weights:
        raise DataError("Personalisation starts from a classifier of words: train with the method 'classify'.")
    train = arabic(config).train
    known, total = train[0].class_names, sum(len(dataset.class_names) for dataset in train)
    head = Head(weights["classifier/kernel"][:, :total], weights["classifier/bias"][:total])  # not the reversed words'
    features = np.concatenate([load_features(dataset, FRONT_END, SECONDS) for dataset in train])
    labels = np.concatenate([train[0].labels, *(dataset.labels + len(known) for dataset in train[1:])])
    embedder = make_embedder(config, weights)
    embedder = embedder.with_weights(embedder.weights, head).with_background(Background(features, labels))

    users = hold_out(load_named(ARABIC, config.data), 0, HELD_SPEAKERS, config.seed).test
    numbers = [known.index(word) if word in known else total for word in users.words.tolist()]
    names = (*(f"word {number}" for number in range(total)), "another")
    users = replace(users, class_names=names, labels=numbers)
    heard = load_features(users, FRONT_END, SECONDS)
    protocol = Protocol(tuple(range(len(known))), parts=2)
    return personalise(learner, embedder, users, heard, _at_false_accepts(protocol, embedder, heard, users), shots)


def _at_false_accepts(protocol: Protocol, embedder: Embedder, features: np.ndarray, users: ClipDataset) -> Protocol:
    """With the lowest threshold that accepts FALSE_ACCEPTS of the clips of no word, or fewer."""
    others = features[~np.isin(users.labels, protocol.words)]
    scores = Linear(embedder.head.kernel, embedder.head.bias).scores(embedder.embed(others))
    taken = np.sort(scores.max(1)[protocol.accepted(scores) >= 0])[::-1]
    most = int(FALSE_ACCEPTS * len(others))
    return protocol if len(taken) <= most else replace(protocol, threshold=float(np.nextafter(taken[most], np.inf)))
