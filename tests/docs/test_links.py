"""Relative links lead somewhere, in the checkout as on the site."""

import json
import re

import pytest
import yaml

from .pages import DOCUMENTS, ROOT, name_of, prose, slugs

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
SOURCES = ("docs", "edgelearn", "kernels", "notebooks", "tests", "tools")
EXAMPLES = {"my-board.json", "bench.json"}  # files that a reader makes
COPIED = {ROOT / "docs" / "network.schema.json": ROOT / "edgelearn" / "graph" / "network.schema.json"}  # by `make docs`
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PICTURES = sorted((ROOT / "docs" / "pictures").iterdir())


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_relative_links_exist(document):
    check(document, prose(document))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=name_of)
def test_links_of_notebooks_exist(notebook):
    cells = json.loads(notebook.read_text())["cells"]
    check(notebook, "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"))


def check(document, text):
    for link in LINK.findall(text):
        if "://" in link or link.startswith(("mailto:", "/edgelearn")):  # the last are pages of JupyterLab's server
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert COPIED.get(target, target).exists(), f"{name_of(document)} links to {link}"
        if anchor and target.suffix == ".md":
            assert anchor in slugs(target), f"{name_of(document)} links to {link}: no such heading"


def test_every_page_is_in_the_navigation():
    def files(entry):
        if isinstance(entry, str):
            return {entry}
        return set().union(*map(files, entry.values() if isinstance(entry, dict) else entry))

    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    docs = ROOT / "docs"
    assert files(nav) == {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")}


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_pictures_are_small(picture):
    assert picture.stat().st_size < 100_000


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if d.name != "CHANGELOG.md"], ids=name_of)
def test_files_that_are_named_exist(document):
    """Paths of sources in code type, by their ends: `graph/rewrites.py`, `kernels/finish.cl`."""
    named = re.findall(r"`([\w./]*\w\.(?:py|cl|h|json|ipynb|yml|toml))`", document.read_text())
    files = [path.relative_to(ROOT).as_posix() for folder in SOURCES for path in (ROOT / folder).rglob("*.*")]
    files += [path.name for path in ROOT.iterdir()]
    missing = {name for name in named if not any(f"/{file}".endswith(f"/{name}") for file in files)}
    assert missing <= EXAMPLES
