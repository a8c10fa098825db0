"""Tables fit their width, and break no word."""

import pytest

from edgelearn.lab.runs.tables import render, table

HEADER = ("contender", "median ms", "middle half ms", "time / fastest peer's", "noisy", "steps MB", "import s")
ROWS = [
    ("keras train_on_batch jit, tuned malloc", "12.4", "11.9 – 13.1", "0.41 (0.38 – 0.44)", "2 of 9", "30", "2.11"),
    ("a_name_of_forty_characters_without_space", "3.1", "3.0 – 3.2", "fastest peer", "0 of 9", "29", ""),
]


def rendered(header, rows, width, **settings):
    found = table("Title", header, right=True)
    for row in rows:
        found.add_row(*row)
    return render([found], width, **settings)


@pytest.mark.parametrize("width", [50, 80, 100, 200])
def test_fits(width):
    text = rendered(HEADER, ROWS, width)
    assert max(map(len, text.splitlines())) <= width
    words = {word.strip(";:") for word in text.split()}
    assert {word.strip(":") for row in (HEADER[1:], *ROWS) for cell in row for word in cell.split()} <= words


def test_a_wide_terminal_has_a_line_a_row():
    lines = rendered(HEADER, ROWS, 200).splitlines()
    assert len(lines) == 6 and lines[4].split("  ")[0].strip() == ROWS[0][0]


def test_columns_that_may_be_left_out():
    wide, narrow = (rendered(HEADER, ROWS, n, optional=("noisy", "import s")) for n in (200, 78))
    assert "noisy" in wide and "noisy" not in narrow and "import" in narrow and "contender" in narrow


def test_a_word_that_is_longer_than_the_line():
    text = rendered(("path", "n"), [("x" * 100, "1")], 80)
    assert max(map(len, text.splitlines())) <= 80 and text.count("x") == 100
