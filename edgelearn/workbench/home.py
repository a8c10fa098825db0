"""The home page's contents, for a browser and for a notebook: JSON that home.js draws."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from edgelearn.display import Displayed
from edgelearn.errors import RunError
from edgelearn.lab.runs import RunStore
from edgelearn.lab.runs.page import row
from edgelearn.lab.runs.widget import bundle
from edgelearn.tables import Table

from . import facts
from .cards import CARDS, CHECKOUT, Card
from .jobs import Jobs

SCRIPT = Path(__file__).with_name("home.js")
RECENT = 8  # runs


class Home(Displayed):
    """Devices, data, experiments, runs, and what trains now. A notebook shows it as the page that `make notebooks`
    opens.

    Arguments:
    - `store`: the runs (default: that of the working folder).
    - `root`: folder that addresses of files begin at, the server's (default: the checkout).
    """

    def __init__(self, store: RunStore | None = None, root: Path = CHECKOUT) -> None:
        self.store, self.root = store or RunStore(), root
        self._testing = threading.Lock()
        self._devices: list[dict[str, Any]] | None = None

    @cached_property
    def jobs(self) -> Jobs:
        """The trainings that this page starts."""
        return Jobs(self.store)

    @property
    def headline(self) -> str:
        return f"{len(CARDS)} experiments, {self.store.headline.removeprefix('of ')}"

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a request of a page: {"do": …} and its arguments. Raises EdgelearnError if it can't be."""
        match dict(request):
            case {"do": "home"}:
                return self.contents()
            case {"do": "devices", **options}:
                return {"devices": self.devices(bool(options.get("again")))}
            case {"do": "sample", "title": str(title)}:
                card = next((card for card in CARDS if card.title == title and card.sample), None)
                if card is None:
                    raise RunError(f"There is no experiment '{title:.40}' with a sample.")
                return {"number": self.jobs.add(f"{card.title}, sample", card.sample).number}
            case {"do": "resume", "id": str(name)}:
                run = self.store.find(name)
                return {"number": self.jobs.add(f"{run}, continued", ("runs", "resume", run)).number}
            case {"do": "again", "id": str(name), "changes": dict(changes)}:
                run = self.store.find(name)
                words = [f"{key}={_word(value)}" for key, value in changes.items()]
                return {"number": self.jobs.add(f"{run}, again", ("runs", "rerun", run, *words)).number}
            case {"do": "stop", "number": int(number)}:
                return {"said": self.jobs.stop(number)}
            case {"do": "stop", "id": str(name)}:
                return {"said": self.jobs.stop(run=name)}
        return self.store.answer(request)

    def contents(self) -> dict[str, Any]:
        """Everything but the devices, which take a while."""
        newest = self.store.newest(RECENT)
        running = [each for each in self.store.list() if each.status == "running"]
        return {
            "load": facts.load(), "sources": facts.sources(), "cards": [self._card(card) for card in CARDS],
            "recent": [row(each) for each in newest], "running": [row(each) for each in running],
            "jobs": self.jobs.entries(), "store": str(self.store.root),
        }  # fmt: skip

    def devices(self, again: bool = False) -> list[dict[str, Any]]:
        """The devices with their self-tests, which are run once, or `again`. Raises DeviceError if that fails."""
        with self._testing:
            if self._devices is None or again:
                self._devices = facts.devices()
            return self._devices

    def _card(self, card: Card) -> dict[str, Any]:
        return {
            "title": card.title, "shows": card.shows, "takes": card.takes, "sample": bool(card.sample),
            "notebook": self._address(card.path), "guide": self._address(CHECKOUT / "docs" / card.guide),
        }  # fmt: skip

    def _address(self, path: Path | None) -> str:
        """The path of a file below the server's folder, "" for one that isn't there."""
        if path is None or not path.exists() or not path.is_relative_to(self.root):
            return ""
        return path.relative_to(self.root).as_posix()

    def _repr_html_(self) -> str:
        found = self.contents()
        cards = Table(
            ["experiment", "what it shows", "takes"], [(c["title"], c["shows"], c["takes"]) for c in found["cards"]]
        )
        sources = [(each["name"], each["use"], each["found"] or each["remedy"]) for each in found["sources"]]
        parts = ["<h3>Experiments</h3>", cards.to_html(), "<h3>Runs</h3>", self.store.newest(RECENT)._repr_html_(),
                 "<h3>Data and weights</h3>", Table(["name", "for", "where"], sources).to_html()]  # fmt: skip
        return "".join(parts)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        return bundle(self.answer, {"home": True}, self._repr_html_(), repr(self), scripts=(SCRIPT,), jobs=True)


def _word(value: Any) -> str:
    """A value of a form as `edgelearn runs rerun RUN NAME=VALUE` takes it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(part.strip() for part in str(value).split(",")) or "none"


def home() -> Home:
    """The workbench's home in a notebook."""
    return Home()
