"""Keep a training in a run folder."""

from __future__ import annotations

from edgelearn.lab.runs import Run
from edgelearn.train import Callback
from edgelearn.train.status import Logs


class Recorder(Callback):
    """Writes a row of history and a checkpoint after each epoch, and what was measured before training."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def on_train_begin(self, logs: Logs) -> None:
        if logs:
            self.run.update(before={k.removeprefix("val_"): v for k, v in logs.items()})

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self.run.append_epoch({"epoch": epoch + 1, **logs})
        self.save()

    def save(self) -> None:
        self.run.save_checkpoint(*self.model.state())
