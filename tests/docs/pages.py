"""The pages of the manual as text: their code blocks, links and headings.

A code block runs unless the line before it is `<!-- skip: reason -->`. A comment that starts with `<!-- run` holds
code that runs and isn't shown: small stand-ins for data that the page's reader has. A block with `title="name.cl"`
stands for that file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
MANUAL = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
DOCUMENTS = [
    *MANUAL,
    *(ROOT / name for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "edgelearn").rglob("README.md")),
]

_BLOCK = re.compile(r"^(?P<fence>```+) *(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=fence)$", re.MULTILINE | re.DOTALL)
_PART = re.compile(
    r"^<!-- run\n(?P<hidden>.*?)^-->$"
    r"|^(?:<!-- skip: (?P<reason>[^\n]+?) -->\n)?```(?P<language>\w*)(?: title=\"(?P<title>[^\"\n]+)\")?[^\n]*\n"
    r"(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def name_of(page: Path) -> str:
    """Path of a page relative to the repository."""
    return page.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Block:
    """A code block of a page.

    Fields:
    - `language`: what stands behind the fence, such as "python" or "sh".
    - `code`: its text.
    - `line`: number of its first line of code in the page, from 1.
    - `skipped`: why it doesn't run, or None.
    - `title`: name of the file that it stands for, or None.
    """

    language: str
    code: str
    line: int
    skipped: str | None = None
    title: str | None = None


def blocks(page: Path) -> list[Block]:
    """All code blocks of a page in order, the hidden ones among them."""
    text = page.read_text()
    found = []
    for match in _PART.finditer(text):
        hidden = match["hidden"] is not None
        line = text.count("\n", 0, match.start("hidden" if hidden else "code")) + 1
        code = match["hidden"] if hidden else match["code"]
        found.append(Block("python" if hidden else match["language"], code, line, match["reason"], match["title"]))
    return found


def prose(page: Path) -> str:
    """The page without code blocks, inline code and comments."""
    text = _BLOCK.sub("", page.read_text())
    return re.sub(r"`[^`\n]+`", "", re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL))


def slugs(page: Path) -> set[str]:
    """Anchors of a page's headings, as the site and GitHub write them."""
    headings = re.findall(r"^#+ +(.+?) *$", _BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}
