"""The command `edgelearn flowers`, sent a signal at a chosen moment; run as a script by test_flowers_resume.py.

    interrupted_flowers.py MOMENT SIGNALS [argument of the command ...]

Moments: compile, extract, step:N (after update N), row (between the second epoch's row and its checkpoint), renames
(between the two renames of a checkpoint), finish (when all files but the record are there).
"""

import os
import signal
import sys

from edgelearn.cli import main, training
from edgelearn.lab.runs import Run
from edgelearn.train import ProgressBar

MOMENT, SIGNALS = sys.argv[1], [getattr(signal, name) for name in sys.argv[2].split("+")]


def at(moment):
    if moment == MOMENT:
        for number in SIGNALS:
            os.kill(os.getpid(), number)


class Signaled(ProgressBar):
    def on_compile(self, done, total):
        super().on_compile(done, total)
        if done == 1:
            at("compile")

    def on_extract(self, done, total):
        super().on_extract(done, total)
        at("extract")

    def on_train_batch_end(self, batch, logs):
        super().on_train_batch_end(batch, logs)
        at(f"step:{self.model.position.updates}")


def before(owner, name, moment, fits):
    """Let a function be preceded by the signal where its arguments fit."""
    original = getattr(owner, name)

    def replacement(*arguments, **options):
        if fits(*arguments):
            at(moment)
        return original(*arguments, **options)

    setattr(owner, name, replacement)


training.ProgressBar = Signaled
before(Run, "save_checkpoint", "row", lambda run, *_: len(run.history()) == 2)
before(Run, "finish", "finish", lambda *_: True)
before(os, "replace", "renames", lambda old, new: new.name == "checkpoint.safetensors" and _has_previous(new))


def _has_previous(path):
    return path.with_name("checkpoint-previous.safetensors").exists() and not path.exists()


sys.exit(main(sys.argv[3:]))
