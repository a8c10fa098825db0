"""Write the logs of a training to files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, TextIO

from edgelearn.errors import PlanError, RunError
from edgelearn.train.status import Logs

from .base import Callback


class CSVLogger(Callback):
    """Write a row an epoch to a CSV file, as Keras's CSVLogger: the epoch from 0, then the figures by name.

    Arguments:
    - `filename`: the file.
    - `separator`: between columns (default ",").
    - `append`: go on with an existing file (default False: write it anew).

    Raises RunError if the file can't be written.
    """

    def __init__(self, filename: str | Path, separator: str = ",", append: bool = False) -> None:
        self.filename, self.separator, self.append = Path(filename), separator, append
        self._file: TextIO | None = None
        self._columns: list[str] = []

    def on_train_begin(self, logs: Logs) -> None:
        self.on_train_end(logs)
        self._columns = self._read_columns() if self.append else []
        try:
            self._file = self.filename.open("a" if self.append else "w", newline="", encoding="utf-8")
        except OSError as error:
            raise RunError(f"CSVLogger can't write {self.filename}: {error.strerror}.") from None

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        if self._file is None:
            return
        writer = csv.writer(self._file, delimiter=self.separator)
        if not self._columns:
            others = [f"val_{name}" for name in logs] if not any(name.startswith("val_") for name in logs) else []
            self._columns = ["epoch", *logs, *(name for name in others if name != "val_seconds")]
            writer.writerow(self._columns)
        writer.writerow([epoch if name == "epoch" else logs.get(name, "NA") for name in self._columns])
        self._file.flush()

    def on_train_end(self, logs: Logs) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read_columns(self) -> list[str]:
        try:
            with self.filename.open(newline="", encoding="utf-8") as file:
                return next(csv.reader(file, delimiter=self.separator), [])
        except OSError:
            return []


class TensorBoard(Callback):
    """Write the figures of epochs, and of steps on request, as event files for TensorBoard.

    Training figures go to the folder `train`, those of validation to `validation`, as Keras's TensorBoard has them.
    Needs tensorboardX: pip install 'edgelearn[tensorboard]'.

    Arguments:
    - `log_dir`: the folder (default "logs").
    - `update_freq`: `"epoch"` (default), or a number of steps after which their loss and accuracy are written, too.

    Raises PlanError without tensorboardX, and for another `update_freq`.
    """

    def __init__(self, log_dir: str | Path = "logs", update_freq: str | int = "epoch") -> None:
        if update_freq != "epoch" and (not isinstance(update_freq, int) or update_freq < 1):
            raise PlanError(f"update_freq is 'epoch' or a number of steps, not {update_freq!r:.60}.")
        self.log_dir, self.update_freq = Path(log_dir), update_freq
        self._writers: dict[str, Any] = {}

    def on_train_begin(self, logs: Logs) -> None:
        try:
            import tensorboardX  # noqa: F401
        except ImportError:
            raise PlanError("TensorBoard needs tensorboardX: pip install 'edgelearn[tensorboard]'.") from None

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        step = self.model.position.updates
        if self.update_freq != "epoch" and step % int(self.update_freq) == 0:
            for name, value in logs.items():
                self._writer("train").add_scalar(f"batch_{name}", value, step)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        for name, value in logs.items():
            part = "validation" if name.startswith("val_") else "train"
            self._writer(part).add_scalar(f"epoch_{name.removeprefix('val_')}", value, epoch)
        self._writer("train").add_scalar("epoch_learning_rate", self.model.learning_rate, epoch)
        for writer in self._writers.values():
            writer.flush()

    def on_train_end(self, logs: Logs) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _writer(self, part: str) -> Any:
        from tensorboardX import SummaryWriter

        if part not in self._writers:
            self._writers[part] = SummaryWriter(str(self.log_dir / part))
        return self._writers[part]
