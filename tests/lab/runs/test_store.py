import errno
import json
import logging
import math
import os
import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from edgelearn import atomic
from edgelearn.errors import FormatError, RunError
from edgelearn.lab.runs import Run, RunStore, list_table
from edgelearn.lab.runs.run import is_held

CONFIG = {"seed": 3, "lr": 0.003, "batch": np.int64(163), "optimizer": {"name": "sgd"}, "layers": (1, 2)}


@pytest.fixture
def run(store):
    return store.create("flowers", CONFIG, device={"name": "pocl"})


def fill_disk(monkeypatch):
    def full(_descriptor, _data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock"}


def test_root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EDGELEARN_RUNS", raising=False)
    assert RunStore().root == tmp_path / "runs"
    monkeypatch.setenv("EDGELEARN_RUNS", str(tmp_path / "elsewhere"))
    assert RunStore().root == tmp_path / "elsewhere"
    assert RunStore("given").root == tmp_path / "given"
    monkeypatch.delenv("EDGELEARN_RUNS")
    (tmp_path / "checkout" / ".git").mkdir(parents=True)
    (tmp_path / "checkout" / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "checkout" / "notebooks")
    assert RunStore().root == tmp_path / "checkout" / "runs"


def test_create(store, run):
    assert re.fullmatch(r"flowers-\d{8}-\d{6}-[0-9a-f]{4}", run.id)
    assert run.folder == store.root / run.id
    assert run.status == "running"
    assert run.config == {
        "seed": 3,
        "lr": 0.003,
        "batch": 163,
        "optimizer": {"name": "sgd"},
        "layers": [1, 2],
    }
    record = run.record
    assert record["seed"] == 3
    assert record["device"] == {"name": "pocl"}
    assert record["environment"]["numpy"] == np.__version__
    assert record["started"] == record["updated"]
    assert json.loads((run.folder / "run.json").read_text()) == record
    assert os.listdir(store.root) == [run.id]


def test_ids_are_unique(store):
    assert len({store.create("a", {}).id for _ in range(8)}) == 8
    assert len(store.list()) == 8


@pytest.mark.parametrize("kind", ["", "Flowers", "a/b", "..", "a b", "é", ".x", "x\n"])
def test_unusable_kind(store, kind):
    with pytest.raises(RunError, match="kind"):
        store.create(kind, {})
    assert not store.root.exists()


def test_unusable_config(store):
    with pytest.raises(RunError, match="JSON"):
        store.create("a", {"model": object()})
    with pytest.raises(RunError, match="status"):
        store.create("a", {}, status="finished")
    assert not store.root.exists()


def test_create_on_a_full_disk_leaves_nothing(store, monkeypatch):
    fill_disk(monkeypatch)
    with pytest.raises(RunError, match="no room"):
        store.create("a", {})
    assert os.listdir(store.root) == []


def test_create_where_a_file_is(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="file"):
        RunStore(tmp_path / "file").create("a", {})


def test_what_was_killed_while_being_created_goes_after_an_hour(store):
    for name, age in ((".creating-old", 4000), (".creating-new", 0)):
        (store.root / name).mkdir(parents=True)
        os.utime(store.root / name, (time.time() - age,) * 2)
    run = store.create("a", {})
    assert sorted(os.listdir(store.root)) == [".creating-new", run.id]
    assert [summary.id for summary in store.list()] == [run.id]


def test_open_by_id_or_prefix(store):
    first, second = store.create("apple", {}), store.create("pear", {})
    assert store.open(first.id).id == first.id
    assert store.open("pea").id == second.id
    third = store.create("apple", {})
    with pytest.raises(RunError, match=f"(?s)2 runs start with 'apple'.*{third.id}"):
        store.open("apple")
    (store.root / f"{first.id}-copy").mkdir()
    (store.root / f"{first.id}-copy" / "run.json").write_bytes((first.folder / "run.json").read_bytes())
    assert store.open(first.id).id == first.id  # an exact id is no prefix
    for name in ("", "banana", "../store", "."):
        with pytest.raises(RunError, match=r"(?s)starts with.*pear"):
            store.open(name)


def test_open_in_an_empty_store(store):
    with pytest.raises(RunError, match="none yet"):
        store.open("a")


def test_update_and_finish(store, run):
    run.update(data={"name": "flowers", "examples": 3670}, weights=Path("w.h5"))
    run.finish({"correct": np.int64(670), "total": 736})
    for seen in (run, store.open(run.id)):
        assert seen.status == "finished"
        assert seen.record["data"] == {"name": "flowers", "examples": 3670}
        assert seen.record["weights"] == "w.h5"
        assert seen.record["results"] == {"correct": 670, "total": 736}
        assert seen.record["started"] < seen.record["updated"]
        assert seen.record["finished"]
    with pytest.raises(RunError, match="finished: there is nothing to resume"):
        run.resume()
    assert not is_held(run.folder / "lock")


@pytest.mark.parametrize("field", ["status", "id", "config", "environment"])
def test_fields_that_the_run_keeps(run, field):
    with pytest.raises(RunError, match=field):
        run.update(**{field: 1})


def test_reading_is_not_writing(store, run):
    reader = store.open(run.id)
    before = contents(run.folder)
    for write in (
        lambda: reader.update(data=1),
        lambda: reader.append_epoch({"epoch": 1}),
        lambda: reader.save_checkpoint({}, {}),
        lambda: reader.finish({}),
        lambda: reader.fail("x"),
    ):
        with pytest.raises(RunError, match=r"resume\(\)"):
            write()
    assert contents(run.folder) == before
    assert reader.status == "running"
    with pytest.raises(RunError, match="being written by process"):
        reader.resume()


def test_resume(store, run):
    run.close()
    reader = store.open(run.id)
    assert reader.status == run.status == "interrupted"
    (run.folder / ".run.json.01234567.tmp").write_text("half")
    assert reader.resume() is reader
    assert reader.status == run.status == "running"
    assert list(run.folder.glob(".*")) == []
    assert reader.record["resumed"][0]["environment"]["numpy"] == np.__version__
    reader.finish({})
    assert run.status == "finished"


def test_context_manager(store):
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
    with store.create("a", {}) as finished:
        finished.finish({})
    assert finished.status == "finished"


def test_failing_on_a_full_disk_keeps_the_first_error(store, monkeypatch):
    run = store.create("a", {})
    fill_disk(monkeypatch)
    with pytest.raises(ZeroDivisionError) as caught, run:
        1 / 0  # noqa: B018
    monkeypatch.undo()
    assert "no room" in caught.value.__notes__[0]
    assert run.status == "interrupted"


def test_history(store, run):
    assert run.history() == []
    for epoch in (1, 2, 3):
        run.append_epoch({"epoch": np.int64(epoch), "loss": np.float32(0.5), "val_loss": math.inf})
    assert store.open(run.id).history() == [{"epoch": e, "loss": 0.5, "val_loss": math.inf} for e in (1, 2, 3)]
    run.append_epoch({"epoch": 2, "loss": 0.25})
    assert [(row["epoch"], row["loss"]) for row in run.history()] == [(1, 0.5), (2, 0.25)]


@pytest.mark.parametrize("epoch", [None, "1", 1.0, True])
def test_history_rows_have_a_number(run, epoch):
    with pytest.raises(RunError, match="epoch"):
        run.append_epoch({"epoch": epoch})


def test_torn_and_damaged_history(run):
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


def test_checkpoint(store, run):
    assert not run.has_checkpoint()
    with pytest.raises(RunError, match="no checkpoint"):
        run.load_checkpoint()
    for epoch in (1, 2, 3):
        run.save_checkpoint({"w": np.full((2, 3), epoch, np.float32)}, {"epoch": epoch})
    tensors, state = store.open(run.id).load_checkpoint()
    assert state == {"epoch": 3}
    np.testing.assert_array_equal(tensors["w"], np.full((2, 3), 3))
    assert run.has_checkpoint()


def test_previous_checkpoint_only_if_the_current_is_missing(run, caplog):
    for epoch in (1, 2):
        run.save_checkpoint({"w": np.zeros(3)}, {"epoch": epoch})
    current = run.folder / "checkpoint.safetensors"
    current.write_bytes(current.read_bytes()[:-1])
    with pytest.raises(FormatError, match=r"checkpoint\.safetensors .* is corrupt.*checkpoint-previous"):
        run.load_checkpoint()
    current.unlink()
    with caplog.at_level(logging.WARNING):
        assert run.load_checkpoint()[1] == {"epoch": 1}
    assert "missing" in caplog.text
    (run.folder / "checkpoint-previous.safetensors").write_bytes(b"")
    with pytest.raises(FormatError, match="previous"):
        run.load_checkpoint()


def test_full_disk_loses_nothing(run, monkeypatch):
    run.append_epoch({"epoch": 1})
    for epoch in (0, 1):
        run.save_checkpoint({"w": np.zeros(3)}, {"epoch": epoch})
    before = contents(run.folder)
    fill_disk(monkeypatch)
    for write in (
        lambda: run.append_epoch({"epoch": 2}),
        lambda: run.save_checkpoint({"w": np.ones(3)}, {"epoch": 2}),
        lambda: run.update(data=1),
        lambda: run.finish({}),
    ):
        with pytest.raises(RunError, match="no room"):
            write()
    monkeypatch.undo()
    assert contents(run.folder) == before
    assert run.record == json.loads(before["run.json"])
    run.finish({})  # with room again, it goes on
    assert run.status == "finished"


def test_list(store, tmp_path):
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


@pytest.mark.parametrize(
    "record",
    [None, "", "{", "[]", "{}", '{"format": 1}', '{"format": "x"}', '{"format": 99}', b"\xff\xfe\xfd"],
)
def test_damaged_runs_are_listed(store, record):
    good, bad = store.create("a", {}), store.create("b", {})
    bad.close()
    path = bad.folder / "run.json"
    path.unlink()
    if record is not None:
        path.write_bytes(record if isinstance(record, bytes) else record.encode())
    summaries = {summary.id: summary for summary in store.list()}
    assert summaries[good.id].status == "running"
    assert summaries[bad.id].status == "damaged"
    assert str(path) in summaries[bad.id].problem
    with pytest.raises(FormatError, match=r"run\.json"):
        store.open(bad.id)


def test_damaged_history_is_listed(store, run):
    (run.folder / "history.jsonl").write_text("?\n")
    assert store.list()[0].status == "damaged"


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


def test_a_run_works_wherever_its_folder_lies(store, run, tmp_path):
    run.save_checkpoint({"w": np.ones(2)}, {"epoch": 1})
    run.close()
    moved = tmp_path / "renamed"
    os.rename(run.folder, moved)
    assert Run(moved).resume().load_checkpoint()[1] == {"epoch": 1}


def test_json_on_the_disk_ends_with_a_newline(run):
    assert (run.folder / "run.json").read_text() == atomic.to_json(run.record, indent=2) + "\n"


@pytest.mark.parametrize(
    "content", ["[" * 200_000, "null", '{"format": "1"}', None], ids=["nested", "null", "text", "device"]
)
def test_one_damaged_record_leaves_the_others_in_the_list(store, content):
    for seed in (1, 2):
        with store.create("test", {"seed": seed}) as run:
            run.finish({"correct": 1, "total": 2})
    path = run.folder / "run.json"
    path.write_text(content or path.read_text().replace('"device": {}', '"device": 3'))
    listed = {summary.id: summary for summary in store.list()}
    assert listed.pop(run.id).status == "damaged"
    assert [summary.status for summary in listed.values()] == ["finished"]
    assert run.id in list_table(store.list())


@pytest.mark.parametrize("results", [{"accuracy": "high"}, {"memory": {"planned": 1.5}}, {"interval": 3}])
def test_what_could_not_be_read_again_is_not_written(store, results):
    with store.create("test", {"seed": 1}) as run:
        with pytest.raises(RunError, match=f"results.{min(results)}"):
            run.update(results=results)
        with pytest.raises(RunError, match="loss"):
            run.append_epoch({"epoch": 1, "loss": "x"})
    assert store.list()[0].status == "interrupted"
