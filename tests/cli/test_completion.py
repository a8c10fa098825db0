"""Completion, by bash itself."""

import shutil
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """The script for bash, in a file."""
    pytest.importorskip("shtab")
    code = "import sys; from edgelearn.cli import main; sys.exit(main(['completion', 'bash']))"
    path = tmp_path_factory.mktemp("completion") / "edgelearn.sh"
    path.write_text(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    return path


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("edgelearn mem", {"memory"}),
        ("edgelearn memory ", {"plan", "compare", "measure", "train", "check"}),
        ("edgelearn memory compare --pl", {"--plans"}),
        ("edgelearn memory plan --batchnorm ", {"auto", "moving", "batch"}),
        ("edgelearn completion ", {"bash", "zsh"}),
    ],
)
def test_bash(script, words, expected):
    typed = words.split(" ")
    program = f"""
    source {script}
    COMP_WORDS=({" ".join(word or "''" for word in typed)})
    COMP_CWORD={len(typed) - 1}
    _shtab_edgelearn edgelearn '{typed[-1]}' ''
    printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=30)
    assert expected <= set(done.stdout.split()), done.stderr


def test_zsh(said):
    pytest.importorskip("shtab")
    assert said("completion", "zsh").startswith("#compdef edgelearn")


def test_without_the_package(monkeypatch, refused):
    monkeypatch.setitem(sys.modules, "shtab", None)
    refused("edgelearn[completion]", "completion", "bash")
