"""Run the Python of every page from top to bottom, and parse every edgelearn command."""

import shlex
import warnings

import matplotlib
import pytest

from edgelearn import cli

from .pages import MANUAL, ROOT, blocks, name_of

PAGES = [page for page in MANUAL if any(b.language == "python" and not b.skipped for b in blocks(page))]
COMMANDS = [
    pytest.param(line, id=f"{name_of(page)}:{block.line + number}")
    for page in MANUAL
    for block in blocks(page)
    if block.language == "sh"
    for number, line in enumerate(block.code.replace("\\\n", " ").splitlines())
    if line.startswith("edgelearn ")
]


@pytest.fixture(autouse=True)
def _drawings_open_no_window():
    matplotlib.use("agg")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_examples_run(page, tmp_path, monkeypatch):
    """Every block of a page in one namespace; a failure points into the page."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDGELEARN_RUNS", str(tmp_path / "runs"))
    monkeypatch.delenv("EDGELEARN_DATA", raising=False)
    namespace = {"__name__": "example", "__file__": str(tmp_path / "example.py")}
    for block in blocks(page):
        if block.title:
            (tmp_path / block.title).write_text(block.code)
        if block.language == "python" and not block.skipped:
            code = compile("\n" * (block.line - 1) + block.code, name_of(page), "exec")
            exec(code, namespace)


@pytest.mark.parametrize("page", MANUAL, ids=name_of)
def test_examples_compile(page):
    """Blocks that aren't run are Python all the same."""
    for block in blocks(page):
        if block.language == "python":
            with warnings.catch_warnings(action="error"):
                compile(block.code, f"{name_of(page)}:{block.line}", "exec")


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_are_understood(line, monkeypatch, capsys):
    """Names of commands and options are those that the program has; nothing is run."""
    words = shlex.split(line, comments=True)[1:]
    for end in ("|", ">", ">>", "&&"):
        if end in words:
            words = words[: words.index(end)]
    cli.full_parser()  # imports the commands, which would keep what is patched below
    for check in ("interop.check_network_name", "cli.parser.import_object", "runtime.choose_device"):
        monkeypatch.setattr(f"edgelearn.{check}", lambda name: None)  # what the page's reader has
    monkeypatch.setattr("edgelearn.cli.answer.answer", lambda options: 0)
    try:
        status = cli.main(words)
    except SystemExit as stop:
        status = stop.code
    assert status == 0, capsys.readouterr().err


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
