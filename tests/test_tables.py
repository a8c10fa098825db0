"""Tables as text that fits a terminal, and in other forms."""

import re

import pytest

from edgelearn.tables import Table

HEADER = ("contender", "median ms", "middle half ms", "time / fastest peer's", "noisy", "steps MB", "import s")
ROWS = [
    ("keras train_on_batch jit, tuned malloc", "12.4", "11.9 – 13.1", "0.41 (0.38 – 0.44)", "2 of 9", "30", "2.11"),
    ("a_name_of_forty_characters_without_space", "3.1", "3.0 – 3.2", "fastest peer", "0 of 9", "29", ""),
]


@pytest.mark.parametrize("width", [50, 80, 100, 200])
def test_a_table_fits_and_breaks_no_word(width):
    lines = Table(HEADER, ROWS, "Title", right=True).to_text(width).splitlines()
    assert max(map(len, lines)) <= width
    words = {word.strip(";:") for line in lines for word in line.split()}
    assert {word.strip(":") for row in (HEADER[1:], *ROWS) for cell in row for word in cell.split()} <= words
    if width == 200:  # a line a row
        assert len(lines) == 6 and lines[4].split("  ")[0].strip() == ROWS[0][0]


def test_columns_that_may_be_left_out_and_a_word_that_is_longer_than_the_line():
    found = Table(HEADER, ROWS, right=True, optional=("noisy", "import s"))
    wide, narrow = found.to_text(200), found.to_text(78)
    assert "noisy" in wide and "noisy" not in narrow and "import" in narrow and "contender" in narrow
    assert max(map(len, str(Table(("path", "n"), [("x" * 100, "1")])).splitlines())) <= 80


def test_lines_between_rows_and_notes_below_them():
    found = Table(("name", "n"), [("a", 1), (), ("all", "<2>")], "Title", ["A note."])
    lines = str(found).splitlines()
    assert lines[0] == "Title" and lines[-5:] == [" a      1", "", " all    <2>", "", "A note."]
    assert found.to_csv() == "name,n\na,1\nall,<2>\n"
    assert found.to_markdown() == "| name | n |\n| --- | --- |\n| a | 1 |\n| all | <2> |\n"
    box = f"tabindex='0' role='region' aria-label='Table: {found.title or ', '.join(found.header)}'><table "
    assert box in found.to_html(), "the keyboard scrolls it"
    assert found.to_html().count("<tr>") == 3 and "&lt;2&gt;" in found.to_html() and "A note." in found.to_html()


def test_numbers_stand_right_and_failures_are_marked():
    rows = [("a", "12.5 ms", "1,200", "passed", "8 clips"), ("b", "–", "7 %", "failed", "two")]
    html = Table(("name", "time", "share", "claim", "words"), rows).to_html()
    right = [cell.split("<")[0] for cell in html.split('text-align: right; white-space: nowrap">')[1:]]
    assert right == ["time", "share", "12.5 ms", "1,200", "–", "7 %"]
    assert html.count("background: #b00020") == 1 and ">failed</b>" in html


def test_a_column_without_a_name_has_no_header():
    html = Table(("", "claim", " "), [("passed", "<b>", "")]).to_html()
    head, body = html.split("<tbody>")
    assert re.findall("<(t[hd]) [^>]*>([^<]*)", head) == [("td", ""), ("th", "claim"), ("td", " ")]
    assert re.findall("<(t[hd]) ", body) == ["td"] * 3
