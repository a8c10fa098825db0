"""The graph of a model as a picture, laid out by the package fast-sugiyama."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Protocol

from edgelearn.ops.tensor import Shape

WIDTH, HEIGHT = 190, 34  # of a box, in pixels
SPACE = 16  # between boxes
Key = str | tuple[int, int]  # a box by its name, a turn of a line by part and number
COLORS = {"frozen": "#dfe7f3", "trained": "#f6ddc4", "plain": "#f4f4f4", "missing": "#f3c9c9"}


class Layer(Protocol):
    """Properties of a layer that are drawn."""

    @property
    def name(self) -> str: ...
    @property
    def op(self) -> str: ...
    @property
    def inputs(self) -> tuple[str, ...]: ...
    @property
    def shape(self) -> Shape | None: ...
    @property
    def forward(self) -> bool: ...
    @property
    def trainable(self) -> bool: ...
    @property
    def trained(self) -> bool: ...


def draw(layers: Sequence[Layer], inputs: Sequence[str]) -> str:
    """Return an SVG with a box a layer, from the inputs down; without the package, a line that names it."""
    try:
        from fast_sugiyama import from_edges
    except ModuleNotFoundError:
        return "<p>To see the graph drawn: pip install fast-sugiyama</p>"
    boxes = [(name, "input", "plain") for name in inputs]
    boxes += [(layer.name, f"{layer.op}{_size(layer.shape)}", _kind(layer)) for layer in layers]
    known = {name for name, _, _ in boxes}
    edges = [(i, layer.name) for layer in layers for i in layer.inputs if i in known]
    if not edges:
        return ""
    places: dict[Key, tuple[float, float]] = {}
    lines: list[tuple[Key, Key]] = []
    left = 0.0
    for number, (part, width, _, routed) in enumerate(
        from_edges(edges, vertex_spacing=WIDTH + SPACE, dummy_vertices=True, dummy_size=SPACE)
    ):
        rows = sorted({-y for _, (_, y) in part})
        row = {y: index * (HEIGHT + SPACE) + SPACE for index, y in enumerate(rows)}
        # nodes on the way of a long edge are numbered in each part anew
        places |= {_key(number, node): (left + x + WIDTH / 2 + SPACE, row[-y]) for node, (x, y) in part}
        lines += [(_key(number, a), _key(number, b)) for a, b in routed or ()]
        left += width + WIDTH + SPACE
    parts = [_line(places[a], places[b], isinstance(a, str), isinstance(b, str)) for a, b in lines]
    parts += [_box(places[name], name, text, kind) for name, text, kind in boxes if name in places]
    height = max(y for _, y in places.values()) + HEIGHT + SPACE
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{left + 2 * SPACE:.0f}' height='{height:.0f}' "
        f"font-family='sans-serif'>{''.join(parts)}</svg>"
    )


def _key(part: int, node: str | int) -> Key:
    return node if isinstance(node, str) else (part, node)


def _size(shape: Shape | None) -> str:
    return "" if shape is None else " · " + "×".join(map(str, shape))


def _kind(layer: Layer) -> str:
    if not layer.forward:
        return "missing"
    return "trained" if layer.trained else "frozen" if layer.trainable else "plain"


def _line(a: tuple[float, float], b: tuple[float, float], from_box: bool, to_box: bool) -> str:
    y1, y2 = a[1] + (HEIGHT if from_box else HEIGHT / 2), b[1] + (0 if to_box else HEIGHT / 2)
    return f"<path d='M{a[0]:.0f},{y1:.0f} L{b[0]:.0f},{y2:.0f}' stroke='#999' fill='none'/>"


def _box(place: tuple[float, float], name: str, text: str, kind: str) -> str:
    x, y = place
    middle = f"x='{x:.0f}' text-anchor='middle'"
    return (
        f"<rect x='{x - WIDTH / 2:.0f}' y='{y:.0f}' width='{WIDTH}' height='{HEIGHT}' rx='4' fill='{COLORS[kind]}' "
        f"stroke='#888'/><text {middle} y='{y + 14:.0f}' font-size='11'>{escape(name[:28])}</text>"
        f"<text {middle} y='{y + 27:.0f}' font-size='9' fill='#555'>{escape(text[:36])}</text>"
    )
