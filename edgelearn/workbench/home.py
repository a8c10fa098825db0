"""The home page's contents, for a browser and for a notebook: JSON that home.js draws; and its cards, one for each
experiment."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from edgelearn.display import Displayed
from edgelearn.errors import RunError
from edgelearn.lab.runs import RunStore
from edgelearn.lab.runs.page import bundle, row
from edgelearn.tables import Table

from . import facts
from .jobs import Jobs

CHECKOUT = Path(__file__).resolve().parents[2]
_ZEN4 = "s on two Zen 4 cores, 28 November 2026"


@dataclass(frozen=True)
class Card:
    """An experiment.

    Arguments:
    - `title`: its name.
    - `shows`: what one sees.
    - `takes`: how long the notebook runs with the embedded sample, where and when, as docs/guides/notebooks.md says.
    - `notebook`: the end of its notebook's name, after the number.
    - `guide`: its page in docs/.
    - `sample`: words of the command that trains the embedded sample; () for none.
    """

    title: str
    shows: str
    takes: str
    notebook: str
    guide: str
    sample: tuple[str, ...] = ()

    @property
    def path(self) -> Path | None:
        """The notebook's file, None where there is none: the package alone has no notebooks."""
        return next(iter(sorted(CHECKOUT.glob(f"notebooks/[0-9][0-9]_{self.notebook}.ipynb"))), None)


CARDS = (
    Card(
        "Start here", "A device, a small network, the plan of a training step, and what micro-batches, freezing and "
        "the feature cache change.", f"15 {_ZEN4}", "start_here", "get-started.md",
    ),
    Card(
        "Flowers", "Fine-tune a pretrained MobileNet on five kinds of flowers: Qualcomm's published example, or its "
        "small copy on drawings.", f"13 {_ZEN4}", "flowers", "guides/fine-tune.md", ("flowers", "--sample"),
    ),
    Card(
        "Speed", "A training step beside PyTorch and Keras, each kernel beside the limits of the device, and "
        "predictions for phones.", f"35 {_ZEN4}", "speed", "guides/speed.md",
    ),
    Card(
        "Models", "Bring a TFLite model, give it a new classifier, train it within 20 MB, take it back, run it with "
        "LiteRT.", f"17 {_ZEN4}", "models", "guides/bring-a-model.md",
    ),
    Card(
        "Depth of training", "The last layers, biases, sparse updates, adapters, all layers or from scratch: accuracy "
        "beside memory.", f"64 {_ZEN4}", "depth_of_training", "guides/depth.md",
    ),
    Card(
        "Precision", "Train with weights, activations and gradients of few bits: accuracy, data movement, and the "
        "published claims.", f"63 {_ZEN4}", "precision", "guides/precision.md", ("precision", "train"),
    ),
    Card(
        "Memory", "Plans that recompute, invert, offload or compress activations, within a budget that you choose.",
        f"50 {_ZEN4}", "memory", "guides/memory.md", ("memory", "train"),
    ),
    Card(
        "Keywords", "Teach a network words of your own from a few clips, and detect them in a recording or at the "
        "microphone.", f"15 {_ZEN4}", "keywords", "guides/keywords.md", ("keywords", "train"),
    ),
    Card(
        "Federated learning", "Many clients, one network: accuracy against bytes, what the server sees, and a real "
        "deployment.", f"97 {_ZEN4}", "federated", "guides/federated.md", ("federated", "run"),
    ),
    Card(
        "On the device", "A training as C sources: built, run beside Python, and its size on a microcontroller.",
        f"27 {_ZEN4}", "device", "guides/bundle.md",
    ),
    Card(
        "Personalisation", "A model that adapts to noise and night without labels, asks for the labels that help most, "
        "and learns each answer at once without forgetting.", f"46 {_ZEN4}", "personalisation", "guides/adapt.md",
    ),
    Card(
        "Sequences", "Activities from motion sensors, for people whom the network doesn't know, the next character, "
        "and backpropagation through time within a budget.", f"34 {_ZEN4}", "sequences", "guides/sequences.md",
        ("activity", "train"),
    ),
)  # fmt: skip


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
