"""A short part of the hostile command lines, and what they found."""

import errno

import pytest

from edgelearn.cli import main
from edgelearn.display import escaped
from edgelearn.lab.runs import RunStore

from . import command_lines

LONG = "a" * 5000


def status(line):
    try:
        return main(list(line))
    except SystemExit as stop:
        return stop.code


@pytest.mark.parametrize("name", ("memory fit", "federated verify enrol", "compare", "convert"))
def test_hostile_lines(name):
    outcome = command_lines.run(name, seed=5, count=20, deadline=float("inf"))
    assert outcome.failures == [] and outcome.attacks == 20


@pytest.mark.parametrize("line", (("inspect", LONG), ("compare", "x", "--save", LONG), ("convert", LONG, "a.onnx")))
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


def test_escaped():
    assert escaped("a\nb\tc é – 你") == "a\nb\tc é – 你"
    assert escaped("\x1b\r\u202e") == "\\x1b\\r\\u202e"


def test_a_sweep_of_what_is_no_experiment(capsys):
    assert main(["sweep", "os:getcwd", "a=1,2"]) == 1
    assert "os:getcwd" in capsys.readouterr().err


@pytest.mark.parametrize("command", ("rounds", "compare"))
def test_a_run_that_is_no_federation(command, tmp_path, capsys):
    with RunStore(tmp_path).create("flowers", {"seed": 1}) as run:
        run.finish({"correct": 1, "total": 2})
    assert main(["federated", command, run.id, "--runs", str(tmp_path)]) == 1
    assert run.id in capsys.readouterr().err
