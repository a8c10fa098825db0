"""A run of the suite goes on behind the one before, and adds up."""

import json
import sys

import pytest

from . import __main__ as torture
from . import damaged_files, disks, kills
from .attacks import Done
from .formats import FORMATS


def test_outcomes_come_back(tmp_path):
    path = tmp_path / "done.json"
    kept = kills.Killed("memory", 12, ["after 3 kills: it hangs"], 4, 2)
    Done(path, 7).keep("kills: memory", kept)
    assert Done(path, 7).of("kills: memory", kills.Killed) == kept
    assert Done(path, 7).of("kills: flowers", kills.Killed) is None
    with pytest.raises(ValueError, match="seed 7"):
        Done(path, 8)


def test_a_second_run_begins_behind_the_first(tmp_path, monkeypatch, capsys):
    script = tmp_path / "attacked.py"
    script.write_text(
        "import json, sys\n"
        "for number in range(int(sys.argv[3]), int(sys.argv[4])):\n"
        "    result = 'refused' if sys.argv[3] == '0' else 'read'\n"
        "    print(json.dumps({'number': number, 'result': result, 'seconds': 0, 'bytes': 0}), flush=True)\n"
    )
    monkeypatch.setattr(damaged_files, "COMMAND", (str(script),))
    monkeypatch.setattr(torture, "FORMATS", FORMATS[:1])
    for files in ("3", "5", "5"):
        command = ["torture", "--only", "files", "--files", files, "--done", str(tmp_path / "done.json")]
        monkeypatch.setattr(sys, "argv", command)
        assert torture.main() == 0
    (found,) = json.loads((tmp_path / "done.json").read_text())["outcomes"].values()
    assert (found["attacks"], found["refused"], found["read"]) == (5, 3, 2)
    assert "5 attacks, 0 failures" in capsys.readouterr().out


def test_levels_that_were_tried_are_not_tried_again(monkeypatch):
    tried = []
    monkeypatch.setattr(disks, "unshare", lambda: ("false",))
    monkeypatch.setattr(disks, "_count", lambda outcome, what, report: tried.append(what))
    disks.run("runs", float("inf"), levels=(1, 2, 3), outcome=disks.Ended("full disk: runs", attacks=2))
    assert tried == ["3 bytes"]
