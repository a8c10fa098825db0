"""Runs and their store: folders, records, histories and checkpoints."""

import json
import logging
import math
import os
import platform
import re
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from edgelearn import atomic
from edgelearn.errors import FormatError, RunError
from edgelearn.lab.runs import Run, RunStore, export, list_table, write_export
from edgelearn.lab.runs.run import changes, commit, environment, is_held
from edgelearn.lab.runs.store import rescue

CONFIG = {"seed": 3, "lr": 0.003, "batch": np.int64(163), "optimizer": {"name": "sgd"}, "layers": (1, 2)}
CURRENT, PREVIOUS = "checkpoint.safetensors", "checkpoint-previous.safetensors"


@pytest.fixture
def run(store):
    return store.create("flowers", CONFIG, device={"name": "pocl"})


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}


# -- the store ---------------------------------------------------------------------------------------------------------


def test_root(tmp_path, monkeypatch):
    (tmp_path / "checkout" / ".git").mkdir(parents=True)
    (tmp_path / "checkout" / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EDGELEARN_RUNS", raising=False)
    assert RunStore().root == tmp_path / "runs" and RunStore("given").root == tmp_path / "given"
    monkeypatch.chdir(tmp_path / "checkout" / "notebooks")
    assert RunStore().root == tmp_path / "checkout" / "runs"
    monkeypatch.setenv("EDGELEARN_RUNS", str(tmp_path / "elsewhere"))
    assert RunStore().root == tmp_path / "elsewhere"


def test_create(store, run):
    assert re.fullmatch(r"flowers-\d{8}-\d{6}-[0-9a-f]{4}", run.id)
    assert run.folder == store.root / run.id and os.listdir(store.root) == [run.id] and run.status == "running"
    assert run.config == CONFIG | {"batch": 163, "layers": [1, 2]}
    record = run.record
    assert (record["seed"], record["device"], record["started"]) == (3, {"name": "pocl"}, record["updated"])
    assert record["environment"]["numpy"] == np.__version__
    assert (run.folder / "run.json").read_text() == atomic.to_json(record, indent=2) + "\n"
    assert len({store.create("a", {}).id for _ in range(8)}) == 8 and len(store.list()) == 9


@pytest.mark.parametrize("kind", ["", "Flowers", "a/b", "..", "a b", "é", ".x", "x\n"])
def test_unusable_kind(store, kind):
    with pytest.raises(RunError, match="kind"):
        store.create(kind, {})
    assert not store.root.exists()


def test_what_cannot_be_created_leaves_nothing(store, tmp_path, full_disk):
    for match, config, fields in (("JSON", {"model": object()}, {}), ("status", {}, {"status": "finished"})):
        with pytest.raises(RunError, match=match):
            store.create("a", config, **fields)
    assert not store.root.exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="file"):
        RunStore(tmp_path / "file").create("a", {})
    with full_disk(), pytest.raises(RunError, match="no room"):
        store.create("a", {})
    assert os.listdir(store.root) == []


def test_what_was_killed_while_being_created_goes_after_an_hour(store):
    for name, age in ((".creating-old", 4000), (".creating-new", 0)):
        (store.root / name).mkdir(parents=True)
        os.utime(store.root / name, (time.time() - age,) * 2)
    run = store.create("a", {})
    assert sorted(os.listdir(store.root)) == [".creating-new", run.id]
    assert [summary.id for summary in store.list()] == [run.id]


def test_open_by_id_or_prefix(store):
    with pytest.raises(RunError, match="none yet"):
        store.open("a")
    first, second = store.create("apple", {}), store.create("pear", {})
    assert store.open(first.id).id == first.id and store.open("pea").id == second.id
    third = store.create("apple", {})
    with pytest.raises(RunError, match=f"(?s)2 runs start with 'apple'.*{third.id}"):
        store.open("apple")
    (store.root / f"{first.id}-copy").mkdir()
    (store.root / f"{first.id}-copy" / "run.json").write_bytes((first.folder / "run.json").read_bytes())
    assert store.open(first.id).id == first.id  # an exact id is no prefix
    for name in ("", "banana", "../store", "."):
        with pytest.raises(RunError, match=r"(?s)starts with.*pear"):
            store.open(name)


def test_list(store):
    assert store.list() == []
    first = store.create("a", {}, device={"name": "pocl"})
    first.append_epoch({"epoch": 1, "val_accuracy": 0.5})
    first.close()
    with store.create("b", {}) as second:
        second.finish({"correct": 1, "total": 2})
    running = store.create("c", {})
    (store.root / "tensorboard").mkdir()
    (store.root / "notes.txt").write_text("")
    third, second, first = store.list()
    assert (third.id, third.status) == (running.id, "running")
    assert (second.kind, second.status, second.results) == ("b", "finished", {"correct": 1, "total": 2})
    assert (first.status, first.epochs, first.device) == ("interrupted", 1, {"name": "pocl"})
    assert first.last["val_accuracy"] == 0.5


BAD_RECORDS = [
    None, "", "{", "[]", "{}", '{"format": 1}', '{"format": "x"}', '{"format": 99}', "\udcff\udcfe", "[" * 200_000,
    "null", '{"format": "1"}',
]  # fmt: skip


@pytest.mark.parametrize("record", [*BAD_RECORDS, "device"], ids=range(len(BAD_RECORDS) + 1))
def test_a_damaged_run_leaves_the_others_in_the_list(store, record):
    good, bad = store.create("a", {}), store.create("b", {})
    bad.close()
    path = bad.folder / "run.json"
    whole = path.read_text()
    path.unlink()
    if record is not None:
        record = whole.replace('"device": {}', '"device": 3') if record == "device" else record
        path.write_bytes(record.encode(errors="surrogateescape"))
    summaries = {summary.id: summary for summary in store.list()}
    assert summaries[good.id].status == "running" and summaries[bad.id].status == "damaged"
    assert str(path) in summaries[bad.id].problem and bad.id in list_table(store.list())
    with pytest.raises(FormatError, match=r"run\.json"):
        store.open(bad.id)


# -- a run -------------------------------------------------------------------------------------------------------------


def test_update_and_finish(store, run):
    run.update(data={"name": "flowers", "examples": 3670}, weights=Path("w.h5"))
    run.finish({"correct": np.int64(670), "total": 736})
    for seen in (run, store.open(run.id)):
        record = seen.record
        assert seen.status == "finished" and record["started"] < record["updated"] and record["finished"]
        assert record["data"] == {"name": "flowers", "examples": 3670} and record["weights"] == "w.h5"
        assert record["results"] == {"correct": 670, "total": 736}
    with pytest.raises(RunError, match="finished: there is nothing to resume"):
        run.resume()
    assert not is_held(run.folder / "lock")


@pytest.mark.parametrize("field", ["status", "id", "config", "environment"])
def test_fields_that_the_run_keeps(run, field):
    with pytest.raises(RunError, match=field):
        run.update(**{field: 1})


WRITES = [
    lambda run: run.append_epoch({"epoch": 2}), lambda run: run.save_checkpoint({"w": np.ones(3)}, {"epoch": 2}),
    lambda run: run.update(data=1), lambda run: run.finish({}), lambda run: run.fail("x"),
]  # fmt: skip


def test_reading_is_not_writing(store, run):
    reader = store.open(run.id)
    before = contents(run.folder)
    for write in WRITES:
        with pytest.raises(RunError, match=r"resume\(\)"):
            write(reader)
    assert contents(run.folder) == before and reader.status == "running"
    with pytest.raises(RunError, match="being written by process"):
        reader.resume()


def test_full_disk_loses_nothing(run, full_disk):
    run.append_epoch({"epoch": 1})
    for epoch in (0, 1):
        run.save_checkpoint({"w": np.zeros(3)}, {"epoch": epoch})
    before = contents(run.folder)
    with full_disk():
        for write in WRITES:
            with pytest.raises(RunError, match="no room"):
                write(run)
    assert contents(run.folder) == before and run.record == json.loads(before["run.json"])
    run.finish({})  # with room again, it goes on
    assert run.status == "finished"


def test_what_a_full_disk_keeps_from_its_folder_is_rescued(run, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "gone"))
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    copy = rescue(run, [{"epoch": 1, "loss": 0.5}], {"w": np.ones(3)}, {"epoch": 1})
    assert copy.parents[1] == tmp_path
    again = Run(copy).resume()
    assert again.history() == [{"epoch": 1, "loss": 0.5}] and again.load_checkpoint()[1] == {"epoch": 1}
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "gone")
    assert rescue(run, [], {}, {}) is None


def test_resume(store, run):
    run.close()
    reader = store.open(run.id)
    assert reader.status == run.status == "interrupted"
    (run.folder / ".run.json.01234567.tmp").write_text("half")
    assert reader.resume() is reader and reader.status == run.status == "running"
    assert list(run.folder.glob(".*")) == []
    assert reader.record["resumed"][0]["environment"]["numpy"] == np.__version__
    reader.finish({})
    assert run.status == "finished"


def test_context_manager(store, full_disk):
    with pytest.raises(ZeroDivisionError), store.create("a", {}) as failed:
        1 / 0  # noqa: B018
    assert failed.status == "failed"
    assert failed.record["error"] == {"type": "ZeroDivisionError", "message": "division by zero"}
    failed.resume()
    assert failed.record["error"] is None
    failed.fail("lost the device")
    assert store.open(failed.id).record["error"]["message"] == "lost the device"
    with pytest.raises(KeyboardInterrupt), store.create("a", {}) as interrupted:
        raise KeyboardInterrupt
    assert interrupted.status == "interrupted"
    unsaved = store.create("a", {})
    with full_disk(), pytest.raises(ZeroDivisionError) as caught, unsaved:
        1 / 0  # noqa: B018
    assert "no room" in caught.value.__notes__[0] and unsaved.status == "interrupted"


def test_threads_may_write_at_once(run):
    def write(name):
        for number in range(10):
            run.update(**{f"{name}{number}": number})

    threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {f"{name}{number}" for name in "abc" for number in range(10)} <= run.record.keys()
    assert json.loads((run.folder / "run.json").read_text()) == run.record


@pytest.mark.parametrize("results", [{"accuracy": "high"}, {"memory": {"planned": 1.5}}, {"interval": 3}])
def test_what_could_not_be_read_again_is_not_written(store, results):
    with store.create("test", {"seed": 1}) as run:
        with pytest.raises(RunError, match=f"results.{min(results)}"):
            run.update(results=results)
        with pytest.raises(RunError, match="loss"):
            run.append_epoch({"epoch": 1, "loss": "x"})
    assert store.list()[0].status == "interrupted"


def test_history(store, run):
    assert run.history() == []
    for epoch in (1, 2, 3):
        run.append_epoch({"epoch": np.int64(epoch), "loss": np.float32(0.5), "val_loss": math.inf})
    assert store.open(run.id).history() == [{"epoch": e, "loss": 0.5, "val_loss": math.inf} for e in (1, 2, 3)]
    run.append_epoch({"epoch": 2, "loss": 0.25})
    assert [(row["epoch"], row["loss"]) for row in run.history()] == [(1, 0.5), (2, 0.25)]
    for epoch in (None, "1", 1.0, True):
        with pytest.raises(RunError, match="epoch"):
            run.append_epoch({"epoch": epoch})


def test_torn_and_damaged_history(store, run):
    run.append_epoch({"epoch": 1})
    path = run.folder / "history.jsonl"
    with path.open("a") as file:
        file.write('{"epoch": 2, "lo')
    assert run.history() == [{"epoch": 1}]
    run.append_epoch({"epoch": 2})
    assert run.history() == [{"epoch": 1}, {"epoch": 2}]
    for damaged in ("nonsense", "[]", "{}", '{"epoch": "x"}'):
        path.write_text('{"epoch": 1}\n' + damaged + "\n")
        with pytest.raises(FormatError, match="line 2"):
            run.history()
    assert store.list()[0].status == "damaged"


def test_checkpoint(store, run, caplog, tmp_path):
    assert not run.has_checkpoint()
    with pytest.raises(RunError, match="no checkpoint"):
        run.load_checkpoint()
    for epoch in (1, 2, 3):
        run.save_checkpoint({"w": np.full((2, 3), epoch, np.float32)}, {"epoch": epoch})
    tensors, state = store.open(run.id).load_checkpoint()
    assert state == {"epoch": 3} and (tensors["w"] == 3).all() and run.has_checkpoint()
    run.close()
    moved = tmp_path / "renamed"  # a run works wherever its folder lies
    os.rename(run.folder, moved)
    run = Run(moved).resume()
    current = moved / CURRENT
    current.write_bytes(current.read_bytes()[:-1])
    with pytest.raises(FormatError, match=r"checkpoint\.safetensors .* is corrupt.*checkpoint-previous"):
        run.load_checkpoint()
    current.unlink()
    with caplog.at_level(logging.WARNING):
        assert run.load_checkpoint()[1] == {"epoch": 2}
    assert "missing" in caplog.text
    (moved / PREVIOUS).write_bytes(b"")
    with pytest.raises(FormatError, match="previous"):
        run.load_checkpoint()


def test_export(store, tmp_path):
    with store.create("a", {"seed": 1, "clip": math.inf}) as run:
        run.append_epoch({"epoch": 1, "loss": math.nan})
        run.append_epoch({"epoch": 2, "loss": 0.5})
    document = export(run)
    assert (document["run"]["id"], document["run"]["status"]) == (run.id, "interrupted")
    assert document["run"]["config"] == {"seed": 1, "clip": None}
    assert document["history"] == [{"epoch": 1, "loss": None}, {"epoch": 2, "loss": 0.5}]
    write_export(run, tmp_path / "run.json")
    text = (tmp_path / "run.json").read_text()
    assert json.loads(text) == document and str(store.root) not in text and "NaN" not in text


# -- environment -------------------------------------------------------------------------------------------------------


def git(folder, *arguments):
    identity = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_environment(tmp_path, monkeypatch):
    found = environment()
    assert (found["python"], found["numpy"]) == (platform.python_version(), np.__version__)
    assert found["platform"] and {"edgelearn", "commit", "machine"} <= found.keys()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit(tmp_path) is None, "without git"


def test_commit(tmp_path):
    assert commit(tmp_path) is None
    git(tmp_path, "init")
    package = tmp_path / "package"
    package.mkdir()
    before, after = b"1\n\n", "zw\u00f6lf\n\n".encode("latin-1")  # the patch ends in an empty line
    (package / "code.py").write_bytes(before)
    (tmp_path / "other").write_text("")
    git(tmp_path, "add", "other")
    git(tmp_path, "commit", "-m", "m")
    assert commit(package) is None  # installed inside somebody else's checkout
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "m")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert commit(package) == head and not changes(commit(package), package)
    (package / "code.py").write_bytes(after)
    (package / "new.py").write_text("3")
    assert commit(package) == f"{head}-dirty"
    kept = changes(commit(package), package)
    assert "-1\n" in kept and "# new file: new.py" in kept
    git(tmp_path, "checkout", "--", ".")
    (tmp_path / "kept.diff").write_bytes(kept.encode(errors="surrogateescape"))
    git(tmp_path, "apply", "kept.diff")
    assert (package / "code.py").read_bytes() == after
