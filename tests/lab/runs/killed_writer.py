"""A writer to be killed; run as a script by test_kill.py.

    killed_writer.py calls ROOT     fork writers that kill themselves at their 1st, 2nd … call to the system
    killed_writer.py create ROOT    the same, for creating a run

Both check after every kill that all is readable, and print how many kills there were.
"""

import os
import sys

import numpy as np

from edgelearn.lab.runs import RunStore
from edgelearn.lab.runs.store import CHANGES
from tests.torture.killed_command import kill_at

CALLS = ("open", "write", "fsync", "replace", "ftruncate", "rename", "mkdir")


def write_epoch(run, epoch):
    run.append_epoch({"epoch": epoch, "loss": 1 / epoch, "padding": "x" * 500})
    run.save_checkpoint({"weights": np.full((64, 64), epoch, np.float32)}, {"epoch": epoch})


def check(run):
    """All is whole, and no more than the epoch under way is missing. Returns the last epoch."""
    tensors, state = run.load_checkpoint()
    assert np.all(tensors["weights"] == state["epoch"])
    epochs = [row["epoch"] for row in run.history()]
    assert epochs == list(range(1, len(epochs) + 1)), epochs
    assert len(epochs) - state["epoch"] in (0, 1), (epochs, state)
    assert run.record["config"] == {"seed": 7}
    return state["epoch"]


def killed(action, number):
    """Run `action(number)` in a fork; whether it was killed (else it must have gone well)."""
    child = os.fork()
    if child == 0:
        try:
            action(number)
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return True
    assert os.waitstatus_to_exitcode(status) == 0
    return False


def calls(store):
    def write(number):
        run = store.open("test").resume()
        epoch = check(run)
        kill_at(number, CALLS)
        write_epoch(run, epoch + 1)

    number = 1
    while killed(write, number):
        run = store.open("test")
        check(run)
        assert run.status == "interrupted"
        number += 1
    # The last kill may have come between the two renames of a checkpoint: the next one leaves both, and nothing else.
    with run.resume():
        write_epoch(run, check(run) + 1)
    names = {"checkpoint-previous.safetensors", "checkpoint.safetensors", "history.jsonl", "lock", "run.json"}
    assert {path.name for path in run.folder.iterdir()} - {CHANGES} == names
    print(number - 1)


def create(store):
    def make(number):
        kill_at(number, CALLS)
        store.create("test", {"seed": number})

    number = 1
    while killed(make, number):
        for summary in store.list():
            assert summary.status == "interrupted", summary
            assert store.open(summary.id).config == {"seed": number}
        number += 1
        for summary in store.list():
            os.rename(summary.folder, store.root / f".checked-{summary.id}")
    print(number - 1)


if __name__ == "__main__":
    {"calls": calls, "create": create}[sys.argv[1]](RunStore(sys.argv[2]))
