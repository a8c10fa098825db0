"""Outputs of the frozen prefix, computed once before training."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgelearn.compile import Plan
from edgelearn.interop.weights import Weights
from edgelearn.runtime import FeatureCache, Session

from . import passes
from .callbacks.base import CallbackList
from .sources import Source
from .status import TrainingStatus


class KeptFeatures:
    """The features of a training that was stopped. The `fit` that continues it in this process extracts none again.

    They belong to the sources themselves, to the weights of the frozen prefix, and to the settings of the cache.
    """

    def __init__(self) -> None:
        self._sources: list[Source] = []
        self._settings: tuple = ()
        self._features: list[FeatureCache] = []

    def get(self, sources: Sequence[Source], settings: tuple) -> list[FeatureCache]:
        """Return the features of these sources under these settings, or an empty list."""
        same = len(sources) == len(self._sources) and all(a is b for a, b in zip(sources, self._sources, strict=True))
        return self._features if same and settings == self._settings else []

    def keep(self, sources: Sequence[Source], settings: tuple, features: list[FeatureCache]) -> None:
        self._sources, self._settings, self._features = list(sources), settings, features

    def clear(self) -> None:
        self._sources, self._settings, self._features = [], (), []


def feature_settings(
    plan: Plan, weights: Weights, sources: Sequence[Source], cache: str, folder: Path | None, block: int
) -> tuple:
    """All that features depend on, besides which sources they are of: the prefix, its weights, the content of arrays,
    which may be edited in place, and how features are stored."""
    digest = hashlib.sha256()
    arrays = [weights[name] for name in sorted(plan.request.network.parameters)]
    for array in [*arrays, *(source for source in sources if isinstance(source, np.ndarray))]:
        digest.update(np.ascontiguousarray(array).data)
    return plan.request.network.to_json(), digest.digest(), cache, folder, block


def extract_features(
    session: Session, wanted: Sequence[Source], cache: str, folder: Path | None, block: int, notify: CallbackList,
    status: TrainingStatus,
) -> list[FeatureCache]:  # fmt: skip
    """Return the features of each source in `wanted`. Raises StoppedError once `stop_training` is set.

    Arguments:
    - `session`: of a plan that predicts with the frozen prefix.
    - `cache`, `folder`: as in Model.fit.
    - `block`: channels of a block of the network that reads the features.
    - `notify`: hears of progress.
    """
    total, before, caches = sum(map(len, wanted)), 0, []
    for source in wanted:
        features = FeatureCache(session.plan.request.network.output.shape, len(source), cache, folder, block)
        for done in passes.extract(session, source, features):
            notify("on_extract", before + done, total)
            status.check_stop()
        caches.append(features)
        before += len(source)
    return caches
