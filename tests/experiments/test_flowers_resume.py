"""An interrupted job that is gone on with ends with the same bits as one that wasn't interrupted."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edgelearn.cli import main
from edgelearn.experiments.flowers import SAMPLE_WEIGHTS
from edgelearn.interop import safetensors
from edgelearn.lab.runs import RunStore

SCRIPT = Path(__file__).with_name("interrupted_flowers.py")
EPOCHS, UPDATES = 3, 6
pytestmark = pytest.mark.skipif(not SAMPLE_WEIGHTS.exists(), reason="the package's small network isn't there")


@pytest.fixture(scope="module")
def launch(pictures):
    """launch(moment, signals, runs): the finished process."""

    def launch(moment, signals, runs, *arguments):
        begin = ["--images", pictures, "--weights", "sample", "--epochs", EPOCHS, "--batch-size", 4, "--micro-batch", 3]
        command = [sys.executable, SCRIPT, moment, signals, "flowers", *(arguments or begin), "--runs", runs]
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=100)

    return launch


@pytest.fixture(scope="module")
def whole(launch, tmp_path_factory):
    """A run that nothing interrupted."""
    runs = tmp_path_factory.mktemp("whole")
    done = launch("never", "SIGINT", runs)
    assert done.returncode == 0, done.stderr
    (summary,) = RunStore(runs).list()
    return RunStore(runs).open(summary.id)


@pytest.fixture
def store(tmp_path):
    return RunStore(tmp_path / "runs")


def only_run(store):
    (summary,) = store.list()
    return store.open(summary.id)


def resume(store, *name):
    return main(["flowers", "--resume", *name, "--runs", str(store.root)])


def rows(run):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in run.history()]


def assert_same(run, whole):
    assert run.status == "finished"
    mine, other = (safetensors.read_model_file(each.folder / "model.safetensors") for each in (run, whole))
    assert mine.weights.keys() == other.weights.keys() and mine.preprocessing == other.preprocessing
    assert all((mine.weights[name] == other.weights[name]).all() for name in mine.weights)
    assert rows(run) == rows(whole)
    assert run.record["before"] == whole.record["before"]
    kept = "correct", "total", "accuracy", "loss", "interval", "epochs"
    assert all(run.record["results"][name] == whole.record["results"][name] for name in kept)
    assert {path.name for path in run.folder.iterdir()} == {path.name for path in whole.folder.iterdir()}


@pytest.mark.parametrize(
    ("moment", "signals", "updates"),
    [("compile", "SIGINT", 0), ("extract", "SIGTERM", 0), ("step:3", "SIGINT", 3), ("step:6", "SIGINT", 6)],
)
def test_interrupted(launch, store, whole, moment, signals, updates):
    done = launch(moment, signals, store.root)
    run = only_run(store)
    if updates < UPDATES:
        assert done.returncode == 130, done.stderr
        assert f"Continue with: edgelearn flowers --resume {run.id}" in done.stdout.splitlines()[-1]
        assert run.status == "interrupted"
        _, state = run.load_checkpoint()
        assert state["updates"] == updates and len(run.history()) == updates // 2
        assert resume(store) == 0
    assert "Traceback" not in done.stderr
    assert_same(run, whole)  # what is asked of it after the last step, it has done


def test_interrupted_while_results_are_written(launch, store, whole):
    done = launch("finish", "SIGINT", store.root)
    run = only_run(store)
    assert done.returncode == 130 and "Traceback" not in done.stderr
    assert f"Continue with: edgelearn flowers --resume {run.id}" in done.stdout.splitlines()[-1]
    assert run.status == "interrupted" and resume(store) == 0
    assert_same(run, whole)


def test_interrupted_twice_at_once(launch, store, whole):
    done = launch("step:3", "SIGINT+SIGINT", store.root)
    assert done.returncode == 130 and done.stderr.splitlines()[-1] == "edgelearn: interrupted"
    assert "Traceback" not in done.stderr
    run = only_run(store)
    assert run.status == "interrupted" and run.load_checkpoint()[1]["epoch"] == 1
    assert resume(store, run.id[:-2]) == 0
    assert_same(run, whole)


@pytest.mark.parametrize("moment", ["extract", "step:3", "row", "renames", "finish"])
def test_killed(launch, store, whole, moment):
    done = launch(moment, "SIGKILL", store.root)
    assert done.returncode == -signal.SIGKILL
    run = only_run(store)
    assert run.status == "interrupted"
    if run.has_checkpoint():
        _, state = run.load_checkpoint()
        assert len(run.history()) - state["epoch"] in (0, 1)
    else:
        assert moment == "extract"
    assert resume(store) == 0
    assert_same(run, whole)


def test_interrupted_again_and_again(launch, store, whole):
    assert launch("step:1", "SIGINT", store.root).returncode == 130
    assert launch("extract", "SIGINT", store.root, "--resume").returncode == 130
    assert only_run(store).load_checkpoint()[1]["updates"] == 1
    assert launch("step:4", "SIGTERM", store.root, "--resume").returncode == 130
    assert resume(store) == 0
    assert_same(only_run(store), whole)
    assert len(only_run(store).record["resumed"]) == 3


def copied(whole, store):
    """A run as `whole` was before its end."""
    shutil.copytree(whole.folder, store.root / whole.id)
    run = store.open(whole.id)
    text = (run.folder / "run.json").read_text()
    (run.folder / "run.json").write_text(text.replace('"status": "finished"', '"status": "failed"'))
    return run


def test_only_what_is_unfinished_can_be_resumed(store, whole, capsys):
    def refused(problem, *name):
        capsys.readouterr()
        assert resume(store, *name) == 1
        output = capsys.readouterr()
        assert problem in output.err and "Traceback" not in output.err and not output.out

    refused("flowers run")
    refused("'flowers-2'", "flowers-2")
    shutil.copytree(whole.folder, store.root / whole.id)
    refused(whole.id, whole.id)
    refused("flowers run")
    with store.create("federated", {"seed": 0}) as other:
        pass
    refused("'federated'", other.id)
    refused("flowers run")


def test_one_process_at_a_time(store, whole, capsys):
    run = copied(whole, store)
    with store.open(run.id).resume():
        assert resume(store, run.id) == 1
        assert f"is being written by process {os.getpid()}" in capsys.readouterr().err
    assert run.status == "interrupted"


def test_a_run_keeps_its_configuration(store, whole, capsys):
    copied(whole, store)
    assert main(["flowers", "--resume", "--batch-size", "7", "--runs", str(store.root)]) == 1
    assert "--batch-size can't be changed" in capsys.readouterr().err


def test_other_pictures_or_weights_are_refused(store, whole, capsys, pictures, monkeypatch):
    run = copied(whole, store)
    more = pictures / "red" / "more.png"
    shutil.copy(pictures / "red" / "1.png", more)
    try:
        for number in range(4):
            shutil.copy(more, more.with_name(f"more{number}.png"))
        assert resume(store) == 1
        error = capsys.readouterr().err
        assert "began with other data: train was 8 and is now 12" in error
        assert f"10 pictures in 2 classes from the folder {pictures}" in error
    finally:
        for path in more.parent.glob("more*.png"):
            path.unlink()
    assert run.status == "failed"
    record = run.folder / "run.json"
    digest = run.record["weights"]["sha256"]
    record.write_text(record.read_text().replace(digest, "0" * 64))
    assert resume(store) == 1
    assert "began with other weights: sha256 was 0000" in capsys.readouterr().err
    record.write_text(record.read_text().replace("0" * 64, digest))
    assert resume(store) == 0  # nothing is left but the test
    assert_same(run, whole)


def test_a_damaged_checkpoint_is_named(store, whole, capsys):
    run = copied(whole, store)
    path = run.folder / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert resume(store) == 1
    error = capsys.readouterr().err
    assert str(path) in error and "checkpoint-previous.safetensors" in error
    path.unlink()
    assert resume(store) == 0
    assert_same(run, whole)
