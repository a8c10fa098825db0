"""Griffe extension for the manual: turn this project's docstrings into Markdown.

Docstrings write arguments as

    Arguments:
    - `optimizer`: updates the weights.

Markdown wants an empty line before the list; the heading is set in bold. Lines of a doctest become a code block, and
`[rows][16]` is a layout, not a reference. A configuration's field, `setting(default, help)`, is documented by its help.
"""

import re
from ast import literal_eval

import griffe

HEADING = re.compile(r"^(Arguments|Returns|Raises|Attributes|Methods|Fields):$", re.MULTILINE)
LIST_AFTER_TEXT = re.compile(r"^(?![-*] )(\S.*)\n(?=[-*] )", re.MULTILINE)
DOCTEST = re.compile(r"(?:^(?:>>>|\.\.\.).*\n?)+", re.MULTILINE)
CODE_OR_LAYOUT = re.compile(r"`[^`]*`|(\])(\[)")


def as_markdown(text: str) -> str:
    """The docstring with bold headings, an empty line before each list, code blocks, and escaped layouts."""
    text = LIST_AFTER_TEXT.sub(r"\1\n\n", HEADING.sub(r"**\1**", text))
    text = CODE_OR_LAYOUT.sub(lambda match: r"]\[" if match[1] else match[0], text)
    return DOCTEST.sub(lambda match: f"\n```python\n{match[0].rstrip()}\n```\n", text)


def help_of(attribute: griffe.Attribute) -> str:
    """The second argument of `setting(default, help)` if it is a literal, else ""."""
    call = attribute.value
    if not isinstance(call, griffe.ExprCall) or str(call.function) != "setting" or len(call.arguments) < 2:
        return ""
    try:
        return f"{literal_eval(str(call.arguments[1]))}."
    except (SyntaxError, ValueError):  # an expression, or one that griffe prints as no Python
        return ""


class DocstringLists(griffe.Extension):
    """Applies `as_markdown` to every docstring, and documents the fields of configurations."""

    def on_object(self, *, obj: griffe.Object, **kwargs) -> None:
        if isinstance(obj, griffe.Attribute) and not obj.docstring and (text := help_of(obj)):
            obj.docstring = griffe.Docstring(text[:1].upper() + text[1:], parent=obj)
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
