"""What there is to choose: items, which are temporaries of the forward pass that launches can make once more, each with
its options. One is to keep it, the others are ways back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgelearn.launch import Buffer

from .activation_memory import ActivationMemory
from .strategies import Encoding, Recompute, Strategy

NOTHING = frozenset()


@dataclass(frozen=True)
class Option:
    """An item is kept, or comes back in a `way`: in `seconds`, made of the items that it `needs`, with `stored` bytes
    kept between the passes; the whole of it is there from launch `at` of the backward pass on. `streams`, from which
    the needed items are made, must not be recomputed, since that may need this one."""

    way: Strategy | None
    stored: int
    seconds: float
    at: int
    needs: frozenset[Buffer] = NOTHING
    streams: frozenset[Buffer] = NOTHING

    @property
    def recomputes(self) -> bool:
        return isinstance(self.way, Recompute)

    @property
    def masks(self) -> bool:
        """Whether only a mask comes back."""
        return isinstance(self.way, Encoding) and self.way.masks


@dataclass(frozen=True)
class Item:
    """`names` of layers whose tensor it is, in the network's order; without any it lies between them. The backward pass
    `reads` its values, or nothing but its `mask`, or neither. It would be brought back at launch `entry` of the
    backward pass, and is there until launch `last`."""

    buffer: Buffer
    names: tuple[str, ...]
    reads: bool
    mask: bool
    entry: int
    last: int
    options: tuple[Option, ...] = ()


@dataclass(frozen=True)
class Candidates:
    """`items`, by buffer. `stored` bytes are kept besides, and `live` is what else is there at each launch of the
    backward pass. Blocks end with `ends`: where all these are there, each block can be brought back by itself."""

    items: dict[Buffer, Item]
    stored: int
    live: list[int]
    ends: list[Item]

    def activation_memory(self, chosen: Mapping[Buffer, Option]) -> ActivationMemory:
        """The choice of a plan, by layer: of layers that share a tensor the last one, which gives it, has the way. What
        nothing was chosen for is needed by nothing."""
        found: dict[str, Strategy] = {}
        for buffer, item in self.items.items():
            way = chosen[buffer].way if buffer in chosen else Recompute()
            if way and item.names:
                found |= dict.fromkeys(item.names, Recompute()) | {item.names[-1]: way}
        return found
