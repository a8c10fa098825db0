"""Griffe extension for the manual: render the lists of docstrings.

Docstrings in this project write arguments as

    Arguments:
    - `optimizer`: updates the weights.

Markdown wants an empty line before the list; the heading is set in bold.
"""

import re

import griffe

HEADING = re.compile(r"^(Arguments|Returns|Raises|Attributes|Methods|Fields):$", re.MULTILINE)
LIST_AFTER_TEXT = re.compile(r"^(?![-*] )(\S.*)\n(?=[-*] )", re.MULTILINE)


def as_markdown(text: str) -> str:
    """The docstring with bold headings and an empty line before each list."""
    return LIST_AFTER_TEXT.sub(r"\1\n\n", HEADING.sub(r"**\1**", text))


class DocstringLists(griffe.Extension):
    """Applies `as_markdown` to every docstring."""

    def on_object(self, *, obj: griffe.Object, **kwargs) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
