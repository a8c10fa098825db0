"""A plan as one page of HTML that needs no network: layers, launches and the memory over a step, linked.

A click on a layer shows its tensors in the timeline; a click at a moment shows what is alive, and why. Two plans are
shown side by side by their differences only. The page (page.html) is a template without dependencies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

from edgelearn import atomic
from edgelearn.display import Displayed

TEMPLATE = Path(__file__).with_name("page.html")
BLOCK = re.compile(r"(.*?\d+)[_.]")  # "block_3" of "block_3_expand_BN"


@dataclass(frozen=True)
class LayerFacts:
    """A layer of the network.

    Arguments:
    - `name`, `op`: its name, and its op with all settings.
    - `block`: name of the block that it is part of; "" for none.
    - `inputs`: indices of the layers that it reads.
    - `shape`: of its output, without the batch.
    - `parameters`: bytes of its weights.
    - `state`: bytes of its gradients, optimizer state and statistics.
    """

    name: str
    op: str
    block: str
    inputs: tuple[int, ...]
    shape: tuple[int, ...]
    parameters: int
    state: int


@dataclass(frozen=True)
class LaunchFacts:
    """A launch of a step.

    Arguments:
    - `layer`: index of its layer; -1 for launches of all layers.
    - `phase`: 0 preparation, 1 forward, 2 backward, 3 update.
    - `predicted`, `measured`: seconds, None where unknown.
    """

    kernel: str
    layer: int
    phase: int
    flops: int
    bytes: int
    predicted: float | None
    measured: float | None


@dataclass(frozen=True)
class TensorFacts:
    """A temporary.

    Arguments:
    - `layer`: index of its layer, or -1.
    - `offset`: its place in the arena, in bytes.
    - `first`, `last`: indices of the launches that write it first and use it last.
    """

    name: str
    layer: int
    purpose: str
    bytes: int
    offset: int
    first: int
    last: int


@dataclass(frozen=True)
class Fusion:
    """Savings of a kind of fusion in a step of a plan.

    Arguments:
    - `kind`: one of `FUSIONS` in ops/emit.py.
    - `description`: which work is done along with another launch's.
    - `launches`: fewer launches of the step.
    - `nbytes`: fewer bytes that launches declare to move; below 0 where partial sums take more than they save.
    """

    kind: str
    description: str
    launches: int
    nbytes: int


@dataclass(frozen=True)
class PlanFacts:
    """Facts of a plan for its page.

    Arguments:
    - `name`: of the plan, where two are compared.
    - `headline`: network, batch size and bytes in words.
    - `roles`: planned bytes by role.
    - `arena`: bytes that the temporaries share.
    - `fusions`: what each kind saves.
    """

    name: str
    headline: str
    roles: Mapping[str, int]
    arena: int
    layers: Sequence[LayerFacts]
    launches: Sequence[LaunchFacts]
    tensors: Sequence[TensorFacts]
    fusions: Sequence[Fusion]


@dataclass(frozen=True, repr=False)
class PlanPage(Displayed):
    """The page of a plan, or of two plans side by side: a notebook shows it, `save` writes a file for a browser."""

    title: str
    plans: tuple[PlanFacts, ...]

    @property
    def html(self) -> str:
        data = json.dumps([asdict(plan) for plan in self.plans], separators=(",", ":")).replace("</", "<\\/")
        return TEMPLATE.read_text("utf-8").replace("__TITLE__", escape(self.title)).replace("__DATA__", data)

    def save(self, path: str | Path) -> None:
        """Write the page to `path`, a name that ends with .html."""
        atomic.write_bytes(Path(path), self.html.encode())

    @property
    def headline(self) -> str:
        return f"'{self.title}': a page for a notebook or, by save('plan.html'), for a browser"

    def _repr_html_(self) -> str:
        frame = 'style="width: 100%; height: 720px; border: 0"'
        return f'<iframe title="{escape(self.title)}" srcdoc="{escape(self.html)}" {frame}></iframe>'


def block_of(layer: str) -> str:
    """The block that a name tells: "block_3" of "block_3_expand", "stage1.0" of "stage1.0.conv"; "" for none."""
    if "/" in layer:
        return layer.rpartition("/")[0]
    if "." in layer:
        return layer.rpartition(".")[0]
    match = BLOCK.match(layer)
    return match[1] if match else ""
