"""Outputs of the frozen prefix, computed once before training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgelearn.runtime import FeatureCache, Session

from . import passes
from .callbacks.base import CallbackList
from .sources import Source
from .status import TrainingStatus


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
