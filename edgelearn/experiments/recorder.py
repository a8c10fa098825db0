"""Keep a training in a run folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edgelearn.errors import RunError
from edgelearn.lab.runs import Run
from edgelearn.lab.runs.store import rescue
from edgelearn.train import Callback
from edgelearn.train.status import Logs, TrainedModel


class Recorder(Callback):
    """Writes a row of history and a checkpoint after each epoch, and what was measured before training.

    Arguments:
    - `run`: the run.
    - `model`: the model that is trained.
    - `command`: the command that resumes it.
    """

    def __init__(self, run: Run, model: TrainedModel, command: str) -> None:
        self.run, self.model, self.command = run, model, command
        self._rows = run.history()

    def on_train_begin(self, logs: Logs) -> None:
        if logs:
            with self.rescuing():
                self.run.update(before={k.removeprefix("val_"): v for k, v in logs.items()})

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        row = {"epoch": epoch + 1, **logs}
        self._rows = [each for each in self._rows if each["epoch"] <= epoch] + [row]
        with self.rescuing():
            self.run.append_epoch(row)
            self.run.save_checkpoint(*self.model.state())

    def save(self) -> None:
        """Write a checkpoint."""
        with self.rescuing():
            self.run.save_checkpoint(*self.model.state())

    @contextmanager
    def rescuing(self) -> Iterator[None]:
        """If the run can't be written in the block, keep what is in memory elsewhere; the RunError then says where."""
        try:
            yield
        except RunError as error:
            folder = rescue(self.run, self._rows, *self.model.state())
            if folder is None:
                raise RunError(f"{error} What is in memory could not be saved anywhere else either.") from error
            raise RunError(
                f"{error} What was in memory is saved in {folder}. Continue with: {self.command} --resume "
                f"{self.run.id} --runs {folder.parent}"
            ) from error
