"""Whether activations that are inverted come back as they were."""

from __future__ import annotations

from edgelearn.errors import ReconstructionError

from .callbacks import Callback, Logs


class WatchReconstruction(Callback):
    """After the first step of every epoch, and in it after every `every` of them if that is given: how far off
    inverted activations are, relative to their largest values. `errors` collects (updates so far, {layer: error}) with
    layers from the last to the first, as they are inverted: errors grow along that way. Raises ReconstructionError once
    one is above `bound`.

    `fit` uses one by itself where its plan inverts anything; widgets.plot_reconstruction draws them over depth."""

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
