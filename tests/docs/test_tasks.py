"""Questions of a new user are answered under headings that search finds: every word of the question is in it."""

import pytest

from .pages import ROOT, prose, slugs

QUESTIONS = {
    "freeze all but BatchNorm": "how-do-i.md",
    "use my GPU": "how-do-i.md",
    "gradients": "how-do-i.md",
    "save and load": "how-do-i.md",
    "custom loop": "how-do-i.md",
    "my own op": "how-do-i.md",
    "plan fits 20 MB": "how-do-i.md",
    "peak mean": "how-do-i.md",
    "resume after crash": "how-do-i.md",
    "export for a phone": "how-do-i.md",
    "convert a model": "how-do-i.md",
    "a model from elsewhere": "how-do-i.md",
    "compare on my own network": "how-do-i.md",
    "federated learning": "how-do-i.md",
}


@pytest.mark.parametrize(("question", "page"), QUESTIONS.items())
def test_a_heading_answers(question, page):
    words = question.lower().split()
    assert any(set(words) <= set(slug.split("-")) for slug in slugs(ROOT / "docs" / page))


@pytest.mark.parametrize("word", ["estimator", "stash", "quantise", "kept statistics", "ways back"])
def test_old_words_are_gone(word):
    pages = sorted((ROOT / "docs").rglob("*.md"))
    found = [page.name for page in pages if page.name != "changelog.md" and word in prose(page).lower()]
    assert not found
