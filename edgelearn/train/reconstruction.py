"""Check that inverted activations equal those of the forward pass."""

from __future__ import annotations

from collections.abc import Sequence

from edgelearn.compile import Invert, Plan
from edgelearn.errors import ReconstructionError

from .callbacks import Callback
from .status import Logs


class WatchReconstruction(Callback):
    """Measure how far inverted activations are from the original ones, relative to their largest values.

    `errors` collects (updates so far, {layer: error}) with layers from the last to the first, as they are inverted:
    errors grow in that direction. `fit` adds one of these by itself if its plan inverts anything;
    widgets.plot_reconstruction draws them over depth.

    Arguments:
    - `bound`: largest relative error (default 1e-3).
    - `every`: number of steps between two measurements in an epoch; default: only the epoch's first step.

    Raises ReconstructionError when an error is above `bound`.
    """

    def __init__(self, bound: float = 1e-3, every: int | None = None) -> None:
        self.bound, self.every = bound, every
        self.errors: list[tuple[int, dict[str, float]]] = []

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        if batch % self.every if self.every else batch:
            return
        updates, errors = self.model.position.updates, self.model.reconstruction_errors()
        self.errors.append((updates, errors))
        for layer, error in errors.items():
            if not error <= self.bound:
                raise ReconstructionError(
                    f"Update {updates}: the inverse gives '{layer}' back with an error of {error:.1e} of its largest "
                    f"value, above the bound of {self.bound:.1e}, so gradients below it can't be trusted. Sums of its "
                    f"stream have outgrown their number format: lower the learning rate, give couplings a larger "
                    f"step, or recompute '{layer}' instead."
                )


def watched(callbacks: Sequence[Callback], plan: Plan) -> list[Callback]:
    """Return the callbacks, with a WatchReconstruction before them if `plan` inverts activations and none watches."""
    inverts = any(isinstance(strategy, Invert) for strategy in plan.request.activation_memory.values())
    has_one = any(isinstance(callback, WatchReconstruction) for callback in callbacks)
    return [WatchReconstruction(), *callbacks] if inverts and not has_one else list(callbacks)
