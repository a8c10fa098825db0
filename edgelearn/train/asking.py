"""Active learning: strategies that choose the examples to ask labels for, as functions of features and answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.cluster.vq import kmeans2

from edgelearn.errors import DataError

NEIGHBOURS = 20  # that an example is typical by, as its paper has it
LEAST = 5  # examples of a cluster that is asked about, where there are such
TINY = 1e-12

Strategy = Callable[[np.ndarray, np.ndarray, np.ndarray, int, np.random.Generator], np.ndarray]


def ask(
    strategy: str, features: np.ndarray, answers: np.ndarray, labelled: Sequence[int] | np.ndarray, count: int = 1,
    seed: int = 0,
) -> np.ndarray:  # fmt: skip
    """Choose examples to ask labels for: indices, int (count,), none of which is labelled yet.

    Arguments:
    - `strategy`: one of STRATEGIES: "random"; "typical", TypiClust, for the first few labels; "margin", the two best
      answers are close; "badge", gradients of the last layer that are large and differ.
    - `features`: activations below the last layer, (n, channels). `answers`: probabilities (n, classes).
    - `labelled`: indices of examples that have labels.
    - `count`: how many to choose (default 1). `seed`: of the draws (default 0).

    Raises DataError for an unknown strategy, or if fewer examples are left.
    """
    if strategy not in STRATEGIES:
        raise DataError(f"There is no strategy '{strategy}': choose {', '.join(STRATEGIES)}.")
    asked = np.asarray(labelled, np.int64).reshape(-1)
    if not 1 <= count <= len(features) - len(asked):
        raise DataError(f"{len(features) - len(asked)} examples have no label; {count} can't be chosen of them.")
    rng = np.random.default_rng([seed, len(asked)])
    return np.asarray(STRATEGIES[strategy](np.asarray(features, np.float32), answers, asked, count, rng))


def _left(features: np.ndarray, asked: np.ndarray) -> np.ndarray:
    return np.setdiff1d(np.arange(len(features)), asked)


def at_random(
    features: np.ndarray, answers: np.ndarray, asked: np.ndarray, count: int, rng: np.random.Generator
) -> np.ndarray:
    return rng.choice(_left(features, asked), count, replace=False)


def typical(
    features: np.ndarray, answers: np.ndarray, asked: np.ndarray, count: int, rng: np.random.Generator
) -> np.ndarray:
    """TypiClust (Hacohen et al. 2022, "Active learning on a budget: opposite strategies suit high and low budgets"): as
    many clusters as labels there will be; of the largest without a label, the example with the nearest neighbours."""
    x = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), TINY)
    draws: dict[str, Any] = {"minit": "++", "seed": rng}
    _, clusters = kmeans2(x, len(asked) + count, **draws)
    sizes = np.bincount(clusters, minlength=len(asked) + count)
    labels = np.bincount(clusters[asked], minlength=len(sizes))
    free = np.ones(len(x), bool)
    free[asked] = False
    for _ in range(count):
        unlabelled = np.bincount(clusters[free], minlength=len(sizes))
        # The last key counts first: clusters that have examples left, of some size, with few labels, large ones.
        cluster = np.lexsort((-sizes, labels, sizes < LEAST, unlabelled == 0))[0]
        members = np.flatnonzero(clusters == cluster)
        near = np.sort(_distances(x[members]), axis=1)[:, 1 : NEIGHBOURS + 1]
        spread = near.mean(1) if len(members) > 1 else np.zeros(1)
        chosen = members[np.where(free[members], spread, np.inf).argmin()]
        free[chosen] = False
        labels[cluster] += 1
    return np.flatnonzero(~free & ~np.isin(np.arange(len(x)), asked))


def _distances(x: np.ndarray) -> np.ndarray:
    """Return the Euclidean distances between all rows of `x` (n, channels), which have unit length: (n, n)."""
    return np.sqrt(np.maximum(2 - 2 * x @ x.T, 0))


def margin(
    features: np.ndarray, answers: np.ndarray, asked: np.ndarray, count: int, rng: np.random.Generator
) -> np.ndarray:
    """The examples whose two best answers are closest (Scheffer et al. 2001); at random before there are labels."""
    if not len(asked):
        return at_random(features, answers, asked, count, rng)
    left = _left(features, asked)
    best = np.sort(answers[left], axis=1)
    return left[np.argsort(best[:, -1] - best[:, -2], kind="stable")[:count]]


def badge(
    features: np.ndarray, answers: np.ndarray, asked: np.ndarray, count: int, rng: np.random.Generator
) -> np.ndarray:
    """BADGE (Ash et al. 2020, "Deep batch active learning by diverse, uncertain gradient lower bounds"): k-means++ over
    the gradients of the last layer, were the best answer right; at random before there are labels."""
    if not len(asked):
        return at_random(features, answers, asked, count, rng)
    left = _left(features, asked)
    errors, x = answers[left] - np.eye(answers.shape[1])[answers[left].argmax(1)], features[left]
    # The gradient is the outer product of both: its inner products are products of theirs.
    norms = np.square(errors).sum(1) * np.square(x).sum(1)
    chosen = [int(norms.argmax())]
    nearest = np.full(len(left), np.inf)
    while len(chosen) < count:
        last = chosen[-1]
        nearest = np.minimum(nearest, norms + norms[last] - 2 * (errors @ errors[last]) * (x @ x[last]))
        shares = np.maximum(nearest, TINY)
        shares[chosen] = 0
        chosen.append(int(rng.choice(len(left), p=shares / shares.sum())))
    return left[chosen]


STRATEGIES: dict[str, Strategy] = {"random": at_random, "typical": typical, "margin": margin, "badge": badge}
