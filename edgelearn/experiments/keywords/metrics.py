"""Metrics of keyword spotting: words must be recognised, and unknown words rejected.

The known score of a clip is higher the more certain a method is that the clip is one of its words. Clips at or above a
threshold are accepted. A *false accept* is an unknown clip that is accepted, a *false reject* a clip of a known word
that isn't.
"""

from dataclasses import dataclass

import numpy as np

from edgelearn.errors import DataError


def accuracy(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Share of `predicted` (n,) that equals `labels` (n,)."""
    return float(np.mean(np.asarray(predicted) == np.asarray(labels)))


def auroc(known: np.ndarray, unknown: np.ndarray) -> float:
    """Area under the ROC curve: how often a known clip's score is above an unknown one's, ties counting half."""
    known, unknown = _scores(known, unknown)
    ordered = np.sort(unknown)
    below = np.searchsorted(ordered, known, "left") + np.searchsorted(ordered, known, "right")
    return float(below.mean() / 2 / len(unknown))


def det_curve(known: np.ndarray, unknown: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Detection error trade-off (Martin et al. 1997): thresholds, false-accept rates and false-reject rates.

    Thresholds ascend through every distinct score; the last, infinity, accepts nothing. Raises DataError without scores
    of either kind, or for NaN.
    """
    known, unknown = _scores(known, unknown)
    thresholds = np.append(np.unique(np.concatenate([known, unknown])), np.inf)
    accepted = (len(unknown) - np.searchsorted(np.sort(unknown), thresholds, "left")) / len(unknown)
    rejected = np.searchsorted(np.sort(known), thresholds, "left") / len(known)
    return thresholds, accepted, rejected


def equal_error_rate(known: np.ndarray, unknown: np.ndarray) -> float:
    """Rate at which false accepts and false rejects are equal, interpolated between the two thresholds where the curves
    cross."""
    _, accepted, rejected = det_curve(known, unknown)
    gap = accepted - rejected  # from 1 down to -1
    after = int(np.argmax(gap <= 0))
    share = gap[after - 1] / (gap[after - 1] - gap[after])
    return float(rejected[after - 1] + share * (rejected[after] - rejected[after - 1]))


@dataclass(frozen=True)
class OpenSet:
    """Open-set metrics.

    Arguments:
    - `accuracy`: of known clips if nothing is rejected.
    - `auroc`, `equal_error_rate`: of known against unknown clips.
    - `false_accepts`: rate at `threshold`, the lowest whose rate is within the limit.
    - `false_rejects`: share of known clips that `threshold` rejects.
    - `accepted_accuracy`: share of known clips that it accepts and that are classified correctly.
    """

    accuracy: float
    auroc: float
    equal_error_rate: float
    false_accepts: float
    threshold: float
    false_rejects: float
    accepted_accuracy: float


def open_set(
    predicted: np.ndarray, labels: np.ndarray, known: np.ndarray, unknown: np.ndarray, false_accepts: float = 0.05
) -> OpenSet:
    """Compute all open-set metrics.

    Arguments:
    - `predicted`, `labels`, `known`: predictions, labels and known scores of n clips of known words.
    - `unknown`: known scores of m clips of unknown words.
    - `false_accepts`: limit of the false-accept rate (default 0.05).
    """
    known = np.asarray(known, np.float64)
    right = np.asarray(predicted) == np.asarray(labels)
    thresholds, accepted, rejected = det_curve(known, unknown)
    at = int(np.argmax(accepted <= false_accepts))
    return OpenSet(
        accuracy=float(right.mean()),
        auroc=auroc(known, unknown),
        equal_error_rate=equal_error_rate(known, unknown),
        false_accepts=float(accepted[at]),
        threshold=float(thresholds[at]),
        false_rejects=float(rejected[at]),
        accepted_accuracy=float(np.mean(right & (known >= thresholds[at]))),
    )


def _scores(known: np.ndarray, unknown: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    known, unknown = np.asarray(known, np.float64), np.asarray(unknown, np.float64)
    if not known.size or not unknown.size or np.isnan(known).any() or np.isnan(unknown).any():
        raise DataError(
            f"Rates need scores of known and of unknown clips without NaN: got {known.size} and {unknown.size} scores."
        )
    return known, unknown
