"""The report on a model: rows for its layers, problems of a file, as text, JSON and HTML."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from edgelearn.interop.canonical import Problem
from edgelearn.ops.tensor import Shape
from edgelearn.units import megabytes

from .svg import draw

WIDTH = 80  # of the text


@dataclass(frozen=True)
class LayerReport:
    """A layer, or an operator of a file that has no counterpart.

    Arguments:
    - `name`, `op`: its name and its operation.
    - `inputs`: names of the layers that it reads.
    - `shape`: of its output, without the batch; None if it isn't known.
    - `parameters`: number of its values.
    - `multiply_adds`: of the forward pass of one example.
    - `saved_bytes`: of its activations that the backward pass of one example reads, with all layers trained; None if
      there is no such plan.
    - `forward`, `backward`: True if the engine has that pass.
    - `trainable`: True if it has parameters that can be trained.
    - `trained`: True if some of them are.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    shape: Shape | None
    parameters: int = 0
    multiply_adds: int = 0
    saved_bytes: int | None = None
    forward: bool = True
    backward: bool = True
    trainable: bool = False
    trained: bool = False


@dataclass(frozen=True, repr=False)
class Inspection:
    """The operators of a model. It prints as a table of 80 columns; a notebook also draws the graph.

    Arguments:
    - `name`: of the network.
    - `source`: the file, or "" for a network in memory.
    - `inputs`, `outputs`: shapes by name, without the batch.
    - `layers`: a report for each layer; for a file with problems, for each of its operators.
    - `problems`: operators of the file that edgelearn doesn't have, each with its attributes and what works instead.
    - `notes`: oddities of the file and how they were read; what could not be found out, and why.
    """

    name: str
    source: str
    inputs: dict[str, Shape]
    outputs: dict[str, Shape | None]
    layers: tuple[LayerReport, ...]
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def parameters(self) -> int:
        """All values of all parameters."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of the forward pass of one example."""
        return sum(layer.multiply_adds for layer in self.layers)

    @property
    def saved_bytes(self) -> int | None:
        """Activations that the backward pass of one example reads, with all layers trained."""
        found = [layer.saved_bytes for layer in self.layers]
        return None if None in found or not found else sum(n or 0 for n in found)

    @property
    def supported(self) -> bool:
        """True if the engine has everything."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "name": self.name, "source": self.source, "supported": self.supported,
            "inputs": {name: list(shape) for name, shape in self.inputs.items()},
            "outputs": {name: shape and list(shape) for name, shape in self.outputs.items()},
            "parameters": self.parameters, "multiply_adds": self.multiply_adds, "saved_bytes": self.saved_bytes,
            "layers": [asdict(layer) for layer in self.layers],
            "problems": [
                {"kind": p.kind, "name": p.name, "attributes": {k: repr(v)[:200] for k, v in p.attributes.items()},
                 "reason": p.reason, "nearest": p.nearest}
                for p in self.problems
            ],
            "notes": list(self.notes),
        }  # fmt: skip

    def __str__(self) -> str:
        return "\n".join(self._lines())

    __repr__ = __str__

    def _lines(self) -> Iterator[str]:
        yield self._title()[:WIDTH]
        yield self._totals()
        rows = [HEADER, *(_cells(layer) for layer in self.layers)]
        widths = [22, 18, 11, 6, 6, 6, 5]
        for row in rows:
            name, op, shape, *numbers, marks = (_cut(c, w) for c, w in zip(row, widths, strict=True))
            counts = "".join(f"{number:>7}" for number in numbers)
            yield f"{name:<22} {op:<18} {shape:<11}{counts} {marks:>5}".rstrip()
        yield "saved: bytes for the backward pass, of one example; f: forward, b: backward,"
        yield "t: trainable; -: no."
        yield from self.notes
        if self.problems:
            yield f"{len(self.problems)} operators can't be imported:"
            yield from (f"  {problem}" for problem in self.problems)

    def _title(self) -> str:
        source = f" of {self.source}" if self.source else ""
        return f"'{self.name}'{source}: {_shapes(self.inputs)} -> {_shapes(self.outputs)}"

    def _totals(self) -> str:
        saved = self.saved_bytes
        kept = "" if saved is None else f", {megabytes(saved)} saved for the backward pass"
        return f"{self.parameters:,} parameters, {self.multiply_adds / 1e6:,.2f} M multiply-adds{kept}"

    def _repr_html_(self) -> str:
        header = (*HEADER[:4], "multiply-adds", "saved bytes", "forward", "backward", "trainable")
        cells = "".join(f"<th>{escape(text)}</th>" for text in header)
        rows = "".join(f"<tr>{''.join(f'<td>{escape(t)}</td>' for t in _row(layer))}</tr>" for layer in self.layers)
        problems = "".join(f"<li>{escape(str(problem))}</li>" for problem in self.problems)
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return (
            f"<p><b>{escape(self._title())}</b><br>{escape(self._totals())}</p>"
            f"<div style='max-height:30em;overflow:auto'>{draw(self.layers, tuple(self.inputs))}</div>"
            f"<details><summary>{len(self.layers)} layers</summary><table><tr>{cells}</tr>{rows}</table></details>"
            f"{notes}{f'<p>Missing:</p><ul>{problems}</ul>' if problems else ''}"
        )


HEADER = ("layer", "op", "output", "params", "madds", "saved", "f b t")


def _cells(layer: LayerReport) -> tuple[str, ...]:
    marks = (("f", layer.forward), ("b", layer.backward), ("t", layer.trainable))
    return (
        layer.name, layer.op, _shape(layer.shape),
        *map(_short, (layer.parameters, layer.multiply_adds, layer.saved_bytes or 0)),
        " ".join(letter if value else "-" for letter, value in marks),
    )  # fmt: skip


def _row(layer: LayerReport) -> list[str]:
    saved = "" if layer.saved_bytes is None else f"{layer.saved_bytes:,}"
    answers = ("yes" if value else "no" for value in (layer.forward, layer.backward, layer.trainable))
    return [layer.name, layer.op, _shape(layer.shape), f"{layer.parameters:,}", f"{layer.multiply_adds:,}", saved,
            *answers]  # fmt: skip


def _short(number: int) -> str:
    """A count in at most five characters: 950, 12.3k, 1.25M."""
    for factor, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= factor:
            return f"{number / factor:.3g}{letter}"
    return str(number) if number else ""


def _shape(shape: Shape | None) -> str:
    return "?" if shape is None else "x".join(map(str, shape))


def _shapes(shapes: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_shape(shape)}" for name, shape in shapes.items())


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
