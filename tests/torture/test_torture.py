"""A short part of the torture suite, faults that are planted and found, and runs that go on behind earlier ones."""

import errno
import json
import mmap
import os
import shutil
import sys
import time
from argparse import Namespace
from contextlib import suppress
from functools import partial

import numpy as np
import pytest

from edgelearn.cli import main
from edgelearn.display import escaped
from edgelearn.errors import EdgelearnError, FormatError
from edgelearn.interop.formats import read_model
from edgelearn.lab.runs import RunStore

from . import __main__ as torture
from . import command_lines, damaged_files, disks, keras_models, kills, many_models
from .attacks import Attack, Done, FileFormat, Outcome
from .damaged_files import MOST, attack, damaged, missing
from .formats import FORMATS

ATTACKS, SEED = 25, 20261122
# They import TensorFlow; tests/data/test_tfds.py and tests/interop/test_imported_files.py read damaged ones, too
LONG = ("TFRecord", "SavedModel (graph)", "SavedModel (index)", "SavedModel (values)")
measures_memory = pytest.mark.skipif(
    not os.path.exists("/proc/self/clear_refs"), reason="memory is measured by Linux's /proc"
)

# -- damaged files -----------------------------------------------------------------------------------------------------


@measures_memory
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras with NumPy 2
@pytest.mark.filterwarnings("ignore:.*NaN or infinite values")
@pytest.mark.parametrize("file_format", [each for each in FORMATS if each.name not in LONG], ids=lambda each: each.name)
def test_damaged_files_are_read_or_refused(file_format, tmp_path):
    if missing(file_format):
        pytest.skip(missing(file_format))
    outcomes = list(attack(file_format, tmp_path, SEED, 0, ATTACKS))
    assert [each for each in outcomes if each["result"] not in ("read", "refused")] == []
    assert max(each["bytes"] for each in outcomes) < MOST
    assert any(each["result"] == "refused" for each in outcomes)


@pytest.mark.parametrize("value", [3, "text", [1, 2], None, {"x": 1}], ids=repr)
def test_settings_and_classes_of_other_types_are_refused(value, tmp_path):
    """Also where Keras 3 writes a layer's name beside its settings, and reading went on without them."""
    good = keras_models.structure()
    for place in range(len(good["config"]["layers"])):
        for part in ("class_name", "config"):
            config = json.loads(json.dumps(good))
            config["config"]["layers"][place][part] = value
            keras_models.write_hdf5(tmp_path / "model.h5", config, "3.6.0", keras_models.FUNCTIONAL)
            with suppress(EdgelearnError):
                read_model(tmp_path / "model.h5")


def test_an_attack_can_be_repeated(tmp_path):
    good = FORMATS[0].make(tmp_path).read_bytes()
    files = [damaged(FORMATS[0], good, SEED, number) for number in range(10)]
    assert files == [damaged(FORMATS[0], good, SEED, number) for number in range(10)]
    assert len(set(files)) == 10 and files != [damaged(FORMATS[0], good, SEED + 1, number) for number in range(10)]


def planted(fault):
    """A format whose reader has a fault where the file begins with another byte."""

    def make(folder):
        (folder / "file").write_bytes(b"good" * 64)
        return folder / "file"

    def read(path):
        if path.read_bytes() != b"good" * 64:
            fault()

    return FileFormat("planted", make, read)


def refuse():
    raise FormatError("refused")


@measures_memory
@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (refuse, None), (lambda: {}["key"], "KeyError"), (lambda: time.sleep(0.5), "took"),
        (lambda: mmap.mmap(-1, 60 << 20, mmap.MAP_PRIVATE | mmap.MAP_POPULATE), "of memory"),
    ],
    ids=["refused", "raised", "slow", "memory"],
)  # fmt: skip
def test_planted_faults_are_found(fault, found, tmp_path, monkeypatch):
    monkeypatch.setattr(damaged_files, "LONGEST", 0.4)
    monkeypatch.setattr(damaged_files, "MOST", 50 << 20)
    outcome = Outcome("planted")
    for report in attack(planted(fault), tmp_path, SEED, 0, 2):
        damaged_files.note(outcome, report)
    assert outcome.attacks == 2
    assert len(outcome.failures) == (2 if found else 0)
    assert all(found in failure for failure in outcome.failures)


@pytest.fixture
def attacked(tmp_path, monkeypatch):
    """attacked(body): the process that is attacked runs these lines for each `number`."""

    def replace(body):
        script = tmp_path / "attacked.py"
        script.write_text(
            "import json, os, sys, time\n"
            "for number in range(int(sys.argv[3]), int(sys.argv[4])):\n"
            f"    {body}\n"
            "    print(json.dumps({'number': number, 'result': result, 'seconds': 0, 'bytes': 0}), flush=True)\n"
        )
        monkeypatch.setattr(damaged_files, "COMMAND", (str(script),))

    return replace


def test_a_crash_and_a_hang_end_one_process_and_not_the_attack(attacked, monkeypatch):
    attacked("result = 'read' if number not in (1, 3) else time.sleep(60) if number == 1 else os.abort()")
    monkeypatch.setattr(damaged_files, "LONGEST", 0.3)
    outcome = Attack("one", partial(damaged_files.steps, FORMATS[0], SEED, 5)).run()
    assert (outcome.attacks, outcome.ends["read"]) == (5, 3)
    assert [failure.partition(":")[0] for failure in outcome.failures] == ["attack 1", "attack 3"]


# -- kills, disks and models -------------------------------------------------------------------------------------------


@pytest.mark.skipif(not disks.unshare(), reason="small file systems can't be mounted here (unshare)")
def test_a_full_disk_of_caches():
    outcome = Attack("disk", partial(disks.steps, "caches", (64 << 10,))).run()
    assert (outcome.ends, outcome.failures) == ({"went well": 1}, [])


def test_what_is_lost_after_a_kill_is_found(tmp_path):
    store = RunStore(tmp_path)
    with store.create("test", {"seed": 1}) as run:
        for epoch in (1, 2):
            run.append_epoch({"epoch": epoch})
            run.save_checkpoint({"a": np.ones(2, np.float32)}, {"epoch": epoch, "updates": 4 * epoch})
    assert kills.check(store, 0) == 8 and kills.check(store, 8) == 8
    with pytest.raises(AssertionError):
        kills.check(store, 9)
    history = run.folder / "history.jsonl"
    whole = history.read_text()
    history.write_text(whole.splitlines()[0] + "\n")
    with pytest.raises(AssertionError):
        kills.check(store, 8)
    history.write_text(whole)
    shutil.copy(run.folder / "run.json", run.folder / "checkpoint.safetensors")
    with pytest.raises(Exception, match="corrupt"):
        kills.check(store, 8)


@pytest.mark.skipif(not many_models.countable(), reason="memory is counted by glibc's mallinfo2 and Linux's /proc")
@pytest.mark.parametrize("way", many_models.WAYS)
def test_memory_does_not_grow(way):
    """A model takes 4 to 16 kB today, and took 98 KiB with what was kept before."""
    found = many_models.measure(12, float("inf"), 6, way)
    assert found["models"] == 12
    assert found["allocated"] < 32_000 * 6


@pytest.mark.parametrize("more", (0, 1))
def test_growth_is_a_failure(more, monkeypatch):
    found = {"models": 1200, "resident": many_models.MOST * 1150 + many_models.SLACK + more, "allocated": 0}
    monkeypatch.setattr(many_models, "measure", lambda *arguments, way: found)
    outcome = many_models.attacks(Namespace(models=1200))[0].run()
    assert outcome.attacks == 1200 and len(outcome.failures) == more


# -- command lines -----------------------------------------------------------------------------------------------------


def status(line):
    try:
        return main(list(line))
    except SystemExit as stop:
        return stop.code


@pytest.mark.parametrize("name", ("memory fit", "federated verify enrol", "compare", "convert"))
def test_hostile_lines(name):
    outcome = Attack(name, partial(command_lines.steps, name, 5, 20)).run()
    assert outcome.failures == [] and outcome.attacks == 20


LONG_NAME = "a" * 5000


@pytest.mark.parametrize(
    "line", (("inspect", LONG_NAME), ("compare", "x", "--save", LONG_NAME), ("convert", LONG_NAME, "a.onnx"))
)
def test_a_name_that_no_file_can_have(line, capsys):
    assert main(list(line)) == 1
    error = capsys.readouterr().err
    assert "aaaa" in error and len(error) < 400


def test_other_errors_of_the_system_are_no_names(monkeypatch):
    def fails(options):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("edgelearn.cli.answer.answer", fails)
    with pytest.raises(OSError, match="Input/output"):
        main(["runs"])


@pytest.mark.parametrize("line", (("inspect", "\x1b[31mred"), ("runs", "a", "\x1b[31mred"), ("compare", "\u202ea\x07")))
def test_a_terminal_obeys_no_name(line, capsys):
    assert status(line) in (1, 2)
    error = capsys.readouterr().err
    assert not set("\x1b\x07\u202e") & set(error) and "\\" in error
    assert escaped("a\nb\tc é – 你\r") == "a\nb\tc é – 你\\r"


def test_a_sweep_of_what_is_no_experiment(capsys):
    assert main(["sweep", "os:getcwd", "a=1,2"]) == 1
    assert "os:getcwd" in capsys.readouterr().err


@pytest.mark.parametrize("command", ("rounds", "compare"))
def test_a_run_that_is_no_federation(command, tmp_path, capsys):
    with RunStore(tmp_path).create("flowers", {"seed": 1}) as run:
        run.finish({"correct": 1, "total": 2})
    assert main(["federated", command, run.id, "--runs", str(tmp_path)]) == 1
    assert run.id in capsys.readouterr().err


# -- runs of the suite -------------------------------------------------------------------------------------------------


def test_outcomes_come_back(tmp_path):
    path = tmp_path / "done.json"
    kept = Outcome("kills: memory", 12, ["after 3 kills: it hangs"], {"in writes": 4}, {"seconds": 2.5})
    Done(path, 7).keep(kept)
    assert Done(path, 7).of("kills: memory") == kept and Done(path, 7).of("kills: flowers") is None
    assert str(kept) == "4 in writes; at most 2.50 seconds"
    with pytest.raises(ValueError, match="seed 7"):
        Done(path, 8)


def test_a_second_run_begins_behind_the_first(tmp_path, monkeypatch, capsys, attacked):
    attacked("result = 'refused' if sys.argv[3] == '0' else 'read'")
    monkeypatch.setattr(damaged_files, "FORMATS", FORMATS[:2])
    for files in ("3", "5", "5"):
        command = ["torture", "--only", "files", "--files", files, "--done", str(tmp_path / "done.json")]
        monkeypatch.setattr(sys, "argv", [*command, "--jobs", FORMATS[0].name])
        assert torture.main() == 0
    (found,) = json.loads((tmp_path / "done.json").read_text())["outcomes"].values()
    assert (found["attacks"], found["ends"]) == (5, {"refused": 3, "read": 2})
    assert "5 attacks, 0 failures" in capsys.readouterr().out


def test_levels_that_were_tried_are_not_tried_again(monkeypatch):
    monkeypatch.setattr(disks, "unshare", lambda: ("false",))
    outcome = Attack("disk", partial(disks.steps, "runs", (1, 2, 3))).run(outcome=Outcome("disk", 2))
    assert outcome.attacks == 3 and [failure.partition(":")[0] for failure in outcome.failures] == ["3 bytes"]


def test_a_run_out_of_time_attacks_nothing_more():
    def steps(outcome, deadline):
        while True:
            outcome.note("done")
            yield

    assert Attack("endless", steps).run(deadline=time.monotonic() + 0.05).attacks > 1
    assert Attack("endless", steps).run(deadline=0.0).attacks == 0
