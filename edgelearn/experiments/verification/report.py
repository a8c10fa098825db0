"""How well users are verified: rates of acceptance on users who were trained with and on people who weren't."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from edgelearn.experiments.keywords.metrics import det_curve, equal_error_rate


@dataclass(frozen=True)
class Report:
    """Rates of a verification network. *Seen* impostors are other users of the federation, *unseen* ones took no part.
    One threshold for all users.

    Arguments:
    - `seen`, `unseen`: true positive rate at a false positive rate of 10 %; NaN without impostors.
    - `seen_eer`, `unseen_eer`: equal error rates.
    - `accuracy`: share of test data whose best user is the right one.
    - `loss`: mean of 1 - score of the users' own test data.
    - `curves`: by kind of impostor, (false positive rates, true positive rates), ascending.
    """

    seen: float
    unseen: float
    seen_eer: float
    unseen_eer: float
    accuracy: float
    loss: float
    curves: dict[str, tuple[np.ndarray, np.ndarray]] = field(repr=False)

    @property
    def figures(self) -> dict[str, float]:
        """All figures that are known, by name."""
        return {k: v for k, v in vars(self).items() if k != "curves" and v == v}


def true_positive_rate(own: np.ndarray, impostors: np.ndarray, false_positive_rate: float = 0.1) -> float:
    """Return the share of a user's `own` scores at or above the lowest threshold that accepts at most
    `false_positive_rate` (default 0.1) of the impostors' scores."""
    _, accepted, rejected = det_curve(own, impostors)
    return float(1 - rejected[np.argmax(accepted <= false_positive_rate)])


def report(seen: np.ndarray, owners: np.ndarray, unseen: np.ndarray) -> Report:
    """Return the rates of scores.

    Arguments:
    - `seen`: of the users' test data, (n, users).
    - `owners`: number of the user whose they are, (n,).
    - `unseen`: of data of people who took no part, (m, users).
    """
    mine = owners[:, None] == np.arange(seen.shape[1])
    own, found, curves = seen[mine], {}, {}
    for name, impostors in (("seen", seen[~mine]), ("unseen", unseen.ravel())):
        found[name] = found[f"{name}_eer"] = float("nan")
        if impostors.size:
            _, accepted, rejected = det_curve(own, impostors)
            curves[name] = accepted[::-1], 1 - rejected[::-1]
            found[name], found[f"{name}_eer"] = true_positive_rate(own, impostors), equal_error_rate(own, impostors)
    accuracy = float(np.mean(seen.argmax(1) == owners))
    return Report(**found, accuracy=accuracy, loss=float(1 - own.mean()), curves=curves)
