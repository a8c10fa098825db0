"""The help of every command fits 80 columns and breaks no word."""

import pytest

from edgelearn.cli import COMMANDS, full_parser, main
from edgelearn.cli.parser import leaves

WORDS = ["", *COMMANDS, *(name for name, _ in leaves(full_parser()) if " " in name)]


def help_of(words, columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit) as stop:
        main([*words.split(), "--help"])
    assert stop.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("words", WORDS)
def test_help(words, monkeypatch, capsys):
    narrow, wide = (help_of(words, columns, monkeypatch, capsys) for columns in (80, 1000))
    assert [line for line in narrow.splitlines() if len(line) > 80] == []
    assert sorted(narrow.split()) == sorted(wide.split())
