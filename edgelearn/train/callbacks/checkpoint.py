"""Save the model while it trains."""

from __future__ import annotations

from pathlib import Path

from edgelearn.errors import PlanError
from edgelearn.ops.settings import number, whole
from edgelearn.train.saved_model import SavedModel, check_own_suffix, check_weights_suffix
from edgelearn.train.status import Logs

from .monitor import Monitor


class ModelCheckpoint(Monitor):
    """Save the model at the end of every epoch, or of the best ones, as Keras's ModelCheckpoint.

    A file is complete or the one before: it is written under another name first. `edgelearn.load(path,
    optimizer=…)` continues the training from it. For the best and the last model use two of these.

    Arguments:
    - `filepath`: a file .safetensors; it may hold `{epoch}` and names of figures, as in
      "{epoch:03d}-{val_loss:.2f}.safetensors".
    - `monitor`: name of the figure in the epoch's logs (default "val_loss"); needed for `save_best_only`.
    - `save_best_only`: save only if the figure has improved (default False).
    - `mode`: `"min"`, `"max"` or `"auto"` (default): accuracy, precision, recall, F1 and AUC should rise, others fall.
    - `save_freq`: `"epoch"` (default), or a number of steps from one saving to the next.
    - `initial_value_threshold`: the figure to improve on first, such as that of an earlier training (default: none).
    - `save_weights_only`: write the weights alone, for `Model.load_weights`, which continue no training; the file
      may then be .weights.h5 or .pt, too (default False).

    Raises PlanError for arguments that can't be, FormatError for a file's name of another format, RunError if the file
    can't be written.
    """

    def __init__(
        self, filepath: str | Path, monitor: str = "val_loss", save_best_only: bool = False, mode: str = "auto",
        save_freq: str | int = "epoch", initial_value_threshold: float | None = None,
        save_weights_only: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(monitor, mode)
        self.filepath, self.save_best_only, self.save_weights_only = str(filepath), save_best_only, save_weights_only
        (check_weights_suffix if save_weights_only else check_own_suffix)(filepath)
        self.save_freq = save_freq if save_freq == "epoch" else whole("save_freq", save_freq)
        if save_best_only and self.save_freq != "epoch":
            raise PlanError("save_best_only compares epochs: leave save_freq at 'epoch'.")
        if initial_value_threshold is not None:
            threshold = number("initial_value_threshold", initial_value_threshold)
            self.best = -threshold if self.rises else threshold
        self._steps = 0

    def on_train_begin(self, logs: Logs) -> None:
        if not isinstance(self.model, SavedModel):
            raise PlanError("ModelCheckpoint saves a Model: a Trainer has no file of its own.")
        self._steps = 0

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        self._steps += 1
        if self.save_freq != "epoch" and self._steps % int(self.save_freq) == 0:
            self._save(self.model.position.epoch, logs)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        if self.save_freq == "epoch" and (not self.save_best_only or self.improves(self.value(epoch, logs))):
            self._save(epoch, logs)

    def _save(self, epoch: int, logs: Logs) -> None:
        try:
            path = Path(self.filepath.format(**{**logs, "epoch": epoch + 1}))
        except (KeyError, IndexError, ValueError) as error:
            raise PlanError(
                f"The name of the checkpoint, '{self.filepath}', can't be made: {error}. There are epoch, "
                f"{', '.join(logs)}."
            ) from None
        path.parent.mkdir(parents=True, exist_ok=True)
        assert isinstance(self.model, SavedModel)
        (self.model.save_weights if self.save_weights_only else self.model.save)(path)
