"""The numbers that the host sends to the device at the beginning of a mini-batch."""

from __future__ import annotations

import numpy as np

from edgelearn.compile.request import Request
from edgelearn.errors import PlanError
from edgelearn.ops import control as places


def step_scalars(request: Request, examples: int, rate: float = 0.0, step: int = 0, scale: float = 1.0) -> np.ndarray:
    """Return the 16 words of `scalars` (see ops.control).

    Arguments:
    - `examples`: of the mini-batch.
    - `rate`: learning rate.
    - `step`: number of the update, from 1; 0 where nothing is trained.
    - `scale`: of the loss (default 1).

    Raises PlanError if a request without an optimizer is to train.
    """
    scalars = np.zeros(16, np.float32)
    scalars[places.INVERSE_BATCH] = scale / examples
    scalars[places.UNSCALE] = 1 / scale
    scalars[places.LEARNING_RATE] = rate
    if step:
        if request.optimizer is None:
            raise PlanError("This plan only evaluates and predicts: to train, make one with an optimizer.")
        scalars[places.CORRECTION] = request.optimizer.correction(step)
        scalars[places.SECOND_CORRECTION] = request.optimizer.second_correction(step)
    words, seed = scalars.view(np.uint32), request.seed
    words[places.SEED], words[places.SEED_HIGH], words[places.STEP] = seed & 0xFFFFFFFF, seed >> 32, step
    return scalars
