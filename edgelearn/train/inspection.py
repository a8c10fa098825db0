"""Report what is in a model, operator by operator, before anything runs: a table, a drawing, and JSON."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from edgelearn.compile import Request, explain, make_plan
from edgelearn.display import Recorded, megabytes, plural
from edgelearn.errors import DeviceError, EdgelearnError
from edgelearn.graph import Network, Node
from edgelearn.interop import find_format, import_graph, read_model
from edgelearn.interop.builder import Translation
from edgelearn.interop.canonical import Problem, StoredIntegers
from edgelearn.ops import SGD, BatchNormalization, LinearOp, Op, SoftmaxCrossEntropy
from edgelearn.ops.tensor import Shape
from edgelearn.runtime import choose_device

from .model import Model

BOX_WIDTH, BOX_HEIGHT = 190, 34  # of a box, in pixels
SPACE = 16  # between boxes
Key = str | tuple[int, int]  # a box by its name, a turn of a line by part and number
COLORS = {"frozen": "#dfe7f3", "trained": "#f6ddc4", "plain": "#f4f4f4", "missing": "#f3c9c9"}


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


def draw(layers: Sequence[LayerReport], inputs: Sequence[str]) -> str:
    """Return an SVG with a box a layer, from the inputs down; without the package, a line that names it."""
    try:
        from fast_sugiyama import from_edges
    except ModuleNotFoundError:
        return "<p>To see the graph drawn: pip install fast-sugiyama</p>"
    boxes = [(name, "input", "plain") for name in inputs]
    boxes += [
        (layer.name, f"{layer.op} · {'×'.join(map(str, layer.shape))}" if layer.shape else layer.op, _kind(layer))
        for layer in layers
    ]
    known = {name for name, _, _ in boxes}
    edges = [(i, layer.name) for layer in layers for i in layer.inputs if i in known]
    if not edges:
        return ""
    places: dict[Key, tuple[float, float]] = {}
    lines: list[tuple[Key, Key]] = []
    left = 0.0
    for number, (part, width, _, routed) in enumerate(
        from_edges(edges, vertex_spacing=BOX_WIDTH + SPACE, dummy_vertices=True, dummy_size=SPACE)
    ):
        rows = sorted({-y for _, (_, y) in part})
        row = {y: index * (BOX_HEIGHT + SPACE) + SPACE for index, y in enumerate(rows)}
        # nodes on the way of a long edge are numbered in each part anew
        places |= {_key(number, node): (left + x + BOX_WIDTH / 2 + SPACE, row[-y]) for node, (x, y) in part}
        lines += [(_key(number, a), _key(number, b)) for a, b in routed or ()]
        left += width + BOX_WIDTH + SPACE
    parts = [_line(places[a], places[b], isinstance(a, str), isinstance(b, str)) for a, b in lines]
    parts += [_box(places[name], name, text, kind) for name, text, kind in boxes if name in places]
    height = max(y for _, y in places.values()) + BOX_HEIGHT + SPACE
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{left + 2 * SPACE:.0f}' height='{height:.0f}' "
        f"font-family='sans-serif'>{''.join(parts)}</svg>"
    )


BLOCKS = 12  # rows of a folded drawing; a network of as many layers is drawn unfolded
_FIND = (  # unfolds the blocks that have what is searched for, and prints it in bold
    "for (const block of this.closest('div').querySelectorAll('details')) { block.open = false;"
    "for (const text of block.querySelectorAll('text')) {"
    "const found = this.value && text.textContent.toLowerCase().includes(this.value.toLowerCase());"
    "text.style.fontWeight = found ? 'bold' : ''; block.open ||= !!found; } }"
)


def draw_folded(layers: Sequence[LayerReport], inputs: Sequence[str]) -> str:
    """Return the drawing as at most BLOCKS blocks below each other, which a click or a search unfolds."""
    blocks = list(_blocks(layers))
    if len(layers) <= BLOCKS or len(blocks) < 2:
        return draw(layers, inputs)
    rows = []
    for block in blocks:
        last, own = block[-1], {layer.name for layer in block}
        ends = last.name if len(block) == 1 else f"{block[0].name} to {last.name}"
        shape = "×".join(map(str, last.shape or ()))
        count = sum(layer.parameters for layer in block)
        text = f"{ends}: {plural(len(block), 'layer')}, {plural(count, 'parameter')}{f', gives {shape}' * bool(shape)}"
        kinds = {_kind(layer) for layer in block}
        color = COLORS[next(kind for kind in ("missing", "trained", "frozen", "plain") if kind in kinds)]
        sources = dict.fromkeys(name for layer in block for name in layer.inputs if name not in own)
        look = f"background: {color}; color: #212121; cursor: pointer; padding: 0.15em 0.6em"
        rows.append(
            f"<details style='margin: 2px 0'><summary style='{look}'>{escape(text)}</summary>"
            f"{draw(block, tuple(sources))}</details>"
        )
    search = f'<label>Search layers <input type="search" oninput="{_FIND}"></label>'
    scroll = "max-height: 32em; max-width: 44em; overflow: auto"
    region = f"role='region' tabindex='0' aria-label='Graph, {plural(len(rows), 'block')}' style='{scroll}'"
    return f"<div>{search}<section {region}>{''.join(rows)}</section></div>"


def _blocks(layers: Sequence[LayerReport]) -> Iterator[list[LayerReport]]:
    """Parts of about as many layers each, from which one tensor leads to the next, or two where there is none for long,
    as between the streams of a reversible network."""
    last = {name: place for place, layer in enumerate(layers) for name in layer.inputs}
    least = len(layers) / (BLOCKS - 1)
    block: list[LayerReport] = []
    open_until: dict[str, int] = {}
    for place, layer in enumerate(layers):
        block.append(layer)
        open_until[layer.name] = last.get(layer.name, place)
        open_until = {name: end for name, end in open_until.items() if end > place}
        if (len(open_until) <= 1 and len(block) >= least) or (len(open_until) == 2 and len(block) >= 2 * least):
            yield block
            block = []
    if block:
        yield block


def _key(part: int, node: str | int) -> Key:
    return node if isinstance(node, str) else (part, node)


def _kind(layer: LayerReport) -> str:
    if not layer.forward:
        return "missing"
    return "trained" if layer.trained else "frozen" if layer.trainable else "plain"


def _line(a: tuple[float, float], b: tuple[float, float], from_box: bool, to_box: bool) -> str:
    y1, y2 = a[1] + (BOX_HEIGHT if from_box else BOX_HEIGHT / 2), b[1] + (0 if to_box else BOX_HEIGHT / 2)
    return f"<path d='M{a[0]:.0f},{y1:.0f} L{b[0]:.0f},{y2:.0f}' stroke='#999' fill='none'/>"


def _box(place: tuple[float, float], name: str, text: str, kind: str) -> str:
    x, y = place
    middle = f"x='{x:.0f}' text-anchor='middle'"
    return (
        f"<rect x='{x - BOX_WIDTH / 2:.0f}' y='{y:.0f}' width='{BOX_WIDTH}' height='{BOX_HEIGHT}' rx='4' "
        f"fill='{COLORS[kind]}' stroke='#888'/>"
        f"<text {middle} y='{y + 14:.0f}' font-size='11'>{escape(name[:28])}</text>"
        f"<text {middle} y='{y + 27:.0f}' font-size='9' fill='#555'>{escape(text[:36])}</text>"
    )


WIDTH = 80  # of the text


@dataclass(frozen=True, repr=False)
class Inspection(Recorded):
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

    entries = (
        "name", "source", "supported", "inputs", "outputs", "parameters", "multiply_adds", "saved_bytes", "layers",
        "problems", "notes",
    )  # fmt: skip

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
        return f"{plural(self.parameters, 'parameter')}, {self.multiply_adds / 1e6:,.2f} M multiply-adds{kept}"

    def _repr_html_(self) -> str:
        header = (*HEADER[:4], "multiply-adds", "saved bytes", "forward", "backward", "trainable")
        cells = "".join(f"<th>{escape(text)}</th>" for text in header)
        rows = "".join(f"<tr>{''.join(f'<td>{escape(t)}</td>' for t in _row(layer))}</tr>" for layer in self.layers)
        problems = "".join(f"<li>{escape(str(problem))}</li>" for problem in self.problems)
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return (
            f"<p><b>{escape(self._title())}</b><br>{escape(self._totals())}</p>"
            f"<div>{draw_folded(self.layers, tuple(self.inputs))}</div>"
            f"<details><summary>{plural(len(self.layers), 'layer')}</summary>"
            f"<table><tr>{cells}</tr>{rows}</table></details>"
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


EXAMPLES, SEED = 8, 0


def difference(path: Path, translation: Translation) -> str:
    """Return a sentence on how far predictions are from those of the format's runtime, for random examples; "" for a
    file whose activations are floats, or of a format without a runtime."""
    found = find_format(path).graph
    tensors = translation.graph.tensors
    computed = [tensors[name] for o in translation.graph.operators for name in o.outputs if name in tensors]
    if found is None or found.run is None or not any(info.quantization for info in computed):
        return ""
    try:
        file, rng = translation.model_file(), np.random.default_rng(SEED)
        inputs = {
            name: _examples(rng, shape, translation.quantization.get(name))
            for name, shape in file.network.inputs.items()
        }
        theirs = found.run(path, list(inputs.values()))
        predicted = Model(file.network, file.weights).predict(inputs if len(inputs) > 1 else inputs.popitem()[1])
    except EdgelearnError as error:
        return f"Difference of predictions to the file's integers: unknown. {error}"
    ours = [y.reshape(EXAMPLES, -1) for y in (predicted.values() if isinstance(predicted, dict) else [predicted])]
    if [y.shape for y in ours] != [y.shape for y in theirs]:
        return "Difference of predictions to the file's integers: unknown, since outputs have other shapes."
    worst = max(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30) for a, b in zip(ours, theirs, strict=True))
    same = int((ours[0].argmax(1) == theirs[0].argmax(1)).sum())
    return (
        f"Predictions differ from those of the file's integers by at most {worst:.2%} of the largest value, for "
        f"{EXAMPLES} random examples (seed {SEED}); the largest output is the same in {same}."
    )


def _examples(rng: np.random.Generator, shape: tuple[int, ...], quantization: StoredIntegers | None) -> np.ndarray:
    """Values that the input's integers can have, each as likely; of the normal distribution without integers."""
    if quantization is None:
        return rng.standard_normal((EXAMPLES, *shape)).astype(np.float32)
    limits = np.iinfo(quantization.dtype)
    integers = rng.integers(limits.min, limits.max, (EXAMPLES, *shape), endpoint=True)
    return ((integers - quantization.zero_point[0]) * quantization.scale[0]).astype(np.float32)


OPEN_SIZE = 96  # of what a file leaves open


def inspect(
    model: Model | Network | str | Path, network: Network | None = None, *, inputs: tuple[str, ...] = (),
    outputs: tuple[str, ...] = (), input_shape: Shape | None = None, constants: Mapping[str, Any] | None = None,
) -> Inspection:  # fmt: skip
    """Report what is in a model, operator by operator, before anything runs.

    >>> print(el.inspect("mobilenet.onnx"))

    Arguments:
    - `model`: a Model, a Network, or a file of any format that is read.
    - `network`: the graph, for files that hold weights alone.
    - `inputs`, `outputs`, `input_shape`, `constants`: as in edgelearn.load.

    A file with operators that edgelearn doesn't have is reported, too: all of them, with their attributes and what
    works instead. Where a file leaves sizes open, 96 stands for each, and a note says so. Raises FormatError for a
    damaged file.
    """
    if isinstance(model, Model):
        return _inspect(model.network, "")
    if isinstance(model, Network):
        return _inspect(model, "")
    if network is not None or find_format(model).graph is None:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            file = read_model(model, network)
        return _inspect(file.network, Path(model).name, tuple(str(each.message) for each in said))
    translation = import_graph(
        model, inputs=inputs, outputs=outputs, input_shape=input_shape, constants=constants, open_size=OPEN_SIZE
    )  # fmt: skip
    if translation.network is None:
        return _problems(translation, Path(model).name)
    notes = translation.notes
    if not (inputs or outputs or input_shape or constants) and (note := difference(Path(model), translation)):
        notes = (*notes, note)
    return _inspect(translation.network, Path(model).name, notes)


def _inspect(network: Network, source: str, remarks: tuple[str, ...] = ()) -> Inspection:
    saved, notes = _saved_bytes(network)
    layers = tuple(_layer(network, node, saved) for node in network.nodes.values())
    outputs: dict[str, Shape | None] = {name: network.shape_of(name) for name in network.outputs}
    return Inspection(network.name, source, dict(network.inputs), outputs, layers, (), (*remarks, *notes))


def _layer(network: Network, node: Node, saved: Counter[str] | None) -> LayerReport:
    names = network.weights_of(node)
    trainable = [name for name in names if network.parameters[name].weight.trainable]
    return LayerReport(
        node.name, type(node.op).__name__, node.inputs, node.shape, 0 if node.shares else network.count(names),
        node.op.flops(*network.input_shapes(node.inputs)) // 2, None if saved is None else saved[node.name], True,
        has_backward(node.op), bool(trainable), any(name in network.trainable for name in names),
    )  # fmt: skip


def has_backward(op: Op) -> bool:
    """True if the engine can train through an op."""
    own = type(op).emit_backward is not Op.emit_backward
    return own or isinstance(op, LinearOp | BatchNormalization)


def _saved_bytes(network: Network) -> tuple[Counter[str] | None, tuple[str, ...]]:
    """Bytes of activations that the backward pass of one example reads, by layer, with all layers trained."""
    trained = Network.from_json(network.to_json()).unfreeze() if network.parameters else network
    try:
        loss = SoftmaxCrossEntropy()
        device = choose_device(None).device
        plan = make_plan(Request(trained, 1, 1, SGD(0.1), "moving", loss), device)
        activations = explain(plan).activations
    except DeviceError:
        return None, ("Bytes saved for the backward pass: unknown without an OpenCL device.",)
    except EdgelearnError as error:
        return None, (f"Bytes saved for the backward pass: unknown, since there is no plan to train it: {error}",)
    saved = Counter[str]()
    for activation in activations:
        saved[activation.layer] += activation.nbytes
    return saved, ()


def _problems(translation: Translation, source: str) -> Inspection:
    """A row for each operator of the file."""
    graph = translation.graph
    missing = {problem.name for problem in translation.problems}
    made = {name: operator.name for operator in graph.operators for name in operator.outputs}
    begins = {info.name: tuple(n or 1 for n in info.example) for info in graph.inputs}
    layers = []
    for operator in graph.operators:
        reads = tuple(made.get(name, name) for name in operator.inputs if name in made or name in begins)
        known = graph.tensors.get(operator.outputs[0]) if operator.outputs else None
        shape = tuple(n or 1 for n in known.example) if known and known.shape else None
        supported = operator.name not in missing
        layers.append(LayerReport(operator.name, operator.kind, reads, shape, forward=supported, backward=supported))
    note = "Rows are the file's operators: sizes are known once all of them can be imported."
    outputs: dict[str, Shape | None] = dict.fromkeys(graph.outputs)
    notes = (*translation.notes, note)
    return Inspection(graph.name, source, begins, outputs, tuple(layers), translation.problems, notes)
