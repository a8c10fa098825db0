"""TensorFlow SavedModels become trainable networks without TensorFlow, and nothing that they hold is run.

The graph of a signature is taken apart: calls of functions become the operators in them, and variables become constants
with their values in the checkpoint. Initialisers, and what else TensorFlow would run, are read to refuse what they do.
Messages: tensorflow/core/protobuf/{saved_model,meta_graph,saver}.proto, core/framework/{function,op_def}.proto

The index of a checkpoint is a table of LevelDB (NAME.index), whose entries name places in files of values
(NAME.data-00000-of-00001). Every checksum is compared. Format: tensorflow/core/util/tensor_bundle,
tensorflow/core/protobuf/tensor_bundle.proto, https://github.com/google/leveldb/blob/main/doc/table_format.md
"""

from __future__ import annotations

import glob
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import numpy as np

from edgelearn.errors import FormatError

from . import read_graphdef
from .canonical import ForeignGraph
from .formats import GraphReader, graph_format, register
from .read_graphdef import (
    HANDLERS,
    NEAREST,
    NO_RESULT,
    SOURCES,
    TYPES,
    GraphDefReader,
    NodeDef,
    plain,
    read_shape,
)
from .wire import Message

FOOTER, MAGIC = 48, 0xDB4775248B80FB57
TRAILER = 5  # bytes after a block: its compression, and its checksum


class Checkpoint:
    """The variables of a checkpoint by key.

    Arguments:
    - `prefix`: path of its files without ".index".

    Raises FormatError if the index is missing or damaged.
    """

    def __init__(self, prefix: Path) -> None:
        self.prefix, self.path = prefix, prefix.with_name(prefix.name + ".index")
        data = self._bytes(self.path, 0, None)
        end = Message(memoryview(data)[-FOOTER:], str(self.path))
        if len(data) < FOOTER or struct.unpack("<Q", end.data[-8:])[0] != MAGIC:
            raise end.damaged("its last bytes aren't those of a table")
        _, _, offset, size = end.varints(4)
        self._entries: dict[str, Message] = {}
        for _, place in _entries(self._block(data, offset, size)):
            for key, entry in _entries(self._block(data, *place.varints(2))):
                self._entries[key.decode("utf-8", "replace")] = entry
        header = self._entries.pop("", None)
        shards, ends = header.fields(1, 2) if header else ([], [])
        if not shards or any(ends):
            raise end.damaged("it has no header, or is of a machine with another order of bytes")
        self._shards = end.integer(shards[-1])
        files = prefix.parent.glob(f"{glob.escape(prefix.name)}.data-*")
        self._room = 2 * sum(file.stat().st_size for file in files)  # bytes that all variables may take

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def read(self, key: str) -> np.ndarray:
        """The values of a variable. Raises FormatError if it is damaged, or divided into slices."""
        entry = self._entries[key]
        types, shapes, *numbers, sums, slices = entry.fields(1, 2, 3, 4, 5, 6, 7)
        shard, offset, size = (entry.integer(values[-1]) if values else 0 for values in numbers)
        kind = TYPES.get(entry.integer(types[-1]) if types else 0, "")
        shape = read_shape(entry.message(shapes[-1])) if shapes else ()
        if slices:
            raise FormatError(f"{self.path}: '{key:.200}' is divided into slices. Save the model without partitions.")
        if kind in ("", "string") or shape is None or min(shape, default=0) < 0:
            raise entry.damaged(f"'{key:.200}' has the type '{kind}' and the shape {shape}")
        stored = np.dtype("<u2" if kind == "bfloat16" else kind).newbyteorder("<")
        if prod(shape) * stored.itemsize != size:
            raise entry.damaged(f"'{key:.200}' of {kind} and shape {shape} has {size:,} bytes")
        self._room -= size
        if self._room < 0:
            raise entry.damaged("variables take more bytes than its files have")
        path = self.prefix.with_name(f"{self.prefix.name}.data-{shard:05d}-of-{self._shards:05d}")
        data = self._bytes(path, offset, size)
        if not sums or _masked(data) != struct.unpack("<I", entry.bytes(sums[-1]))[0]:
            raise entry.damaged(f"the values of '{key:.200}' don't fit their checksum")
        return plain(np.frombuffer(data, stored), kind).reshape(shape)

    def _block(self, data: bytes, offset: int, size: int) -> Message:
        end = offset + size
        block = Message(memoryview(data)[offset:end], str(self.path))
        if end + TRAILER > len(data):
            raise block.damaged(f"a block ends at byte {end:,} of {len(data):,}")
        if data[end]:
            raise block.damaged("a block is compressed, which TensorFlow doesn't do")
        if _masked(data[offset : end + 1]) != struct.unpack_from("<I", data, end + 1)[0]:
            raise block.damaged(f"the block at byte {offset:,} doesn't fit its checksum")
        return block

    def _bytes(self, path: Path, offset: int, size: int | None) -> bytes:
        """`size` bytes of a file from `offset` on; all of them for None."""
        try:
            there = path.stat().st_size
            if size is not None and not 0 <= offset <= there - size <= there:
                raise FormatError(f"{path} is damaged: it has {there:,} bytes, and {offset + size:,} are needed.")
            with path.open("rb") as file:
                file.seek(offset)
                return file.read(there if size is None else size)
        except OSError as error:
            raise FormatError(f"{path} can't be read ({error.strerror}): restore the SavedModel's folder.") from None


def _entries(block: Message) -> Iterator[tuple[bytes, Message]]:
    """(key, value) of a block; a key is written as what differs from the one before."""
    if len(block.data) < 4:
        raise block.damaged("a block has no end")
    restarts = 4 * (struct.unpack("<I", block.data[-4:])[0] + 1)
    rest, key = Message(block.data[: max(0, len(block.data) - restarts)], block.what), b""
    place = 0
    while place < len(rest.data):
        shared, place = rest.varint(place)
        added, place = rest.varint(place)
        size, place = rest.varint(place)
        if shared > len(key) or place + added + size > len(rest.data):
            raise block.damaged("an entry is longer than its block")
        key = key[:shared] + bytes(rest.data[place : place + added])
        place += added
        yield key, Message(rest.data[place : place + size], block.what)
        place += size


def _table() -> np.ndarray:
    numbers = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        numbers = (numbers >> np.uint32(1)) ^ (numbers & np.uint32(1)) * np.uint32(0x82F63B78)
    return numbers


_TABLE = _table()


def _next(sums: np.ndarray, values: np.ndarray | np.uint8) -> np.ndarray:
    """The sums with one more byte each."""
    return _TABLE[sums.astype(np.uint8) ^ values] ^ (sums >> np.uint32(8))


def _applied(matrix: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """A matrix of bits times `sums`."""
    found = np.zeros_like(sums)
    for bit in range(32):
        found ^= matrix[bit] * ((sums >> np.uint32(bit)) & np.uint32(1))
    return found


def crc32c(data: bytes) -> int:
    """Checksum of Castagnoli: of pieces side by side, joined two by two."""
    values = np.frombuffer(data, np.uint8)
    pieces = 1 << max(0, len(values).bit_length() // 2)
    length = -(-max(len(values), 4) // pieces)
    padded = np.zeros(pieces * length, np.uint8)  # zeros in front change nothing
    padded[len(padded) - len(values) :] = values
    sums = np.zeros(pieces, np.uint32)
    if len(values) < 4:
        sums = np.full(1, 0xFFFFFFFF, np.uint32)
        for value in values:
            sums = _next(sums, value)
        return int(sums[0]) ^ 0xFFFFFFFF
    padded[len(padded) - len(values) :][:4] ^= 255  # the sum begins with ones
    for column in np.ascontiguousarray(padded.reshape(pieces, length).T):
        sums = _next(sums, column)
    shift = power = _next(np.uint32(1) << np.arange(32, dtype=np.uint32), np.uint8(0))  # a zero after a piece
    for digit in bin(length)[3:]:
        power = _applied(power, power)
        power = _applied(shift, power) if digit == "1" else power
    while len(sums) > 1:
        sums = _applied(power, sums[::2]) ^ sums[1::2]
        power = _applied(power, power)
    return int(sums[0]) ^ 0xFFFFFFFF


def _masked(data: bytes) -> int:
    """The checksum as TensorFlow writes it."""
    found = crc32c(data)
    return ((found >> 15 | found << 17) + 0xA282EAD8) & 0xFFFFFFFF


FILE = "saved_model.pb"
SIGNATURE, INITIALISER = "serving_default", "__saved_model_init_op"
INITIALISERS = ("saved_model_main_op", "legacy_init_op")  # collections of TensorFlow 1
CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
VARIABLES = {"VarHandleOp", "Variable", "VariableV2"}
TABLES = {"HashTable", "HashTableV2", "InitializeTable", "InitializeTableFromTextFile", "InitializeTableFromTextFileV2",
          "InitializeTableV2", "LookupTableImportV2", "MutableHashTableV2"}  # fmt: skip
ASSIGNMENTS = {"Assign", "AssignVariableOp"}
CONDITIONS = {"All", "Any", "Equal", "Greater", "GreaterEqual", "Less", "LessEqual", "LogicalAnd", "LogicalNot",
              "LogicalOr", "NotEqual", "Rank", "Size", "StringFormat"}  # fmt: skip
# Operators that initialisers and everything else beside a signature may hold: none acts outside of the graph
ALLOWED = {*HANDLERS, *SOURCES, *NO_RESULT, *CALLS, *VARIABLES, *TABLES, *ASSIGNMENTS, *CONDITIONS, "Const",
           "ReadVariableOp"}  # fmt: skip
RESULTS = {f"FusedBatchNorm{version}": ("y", "batch_mean", "batch_variance", "reserve_space_1", "reserve_space_2",
                                        "reserve_space_3") for version in ("", "V2", "V3")}  # fmt: skip
MOST_NODES, DEPTH = 100_000, 64  # of a graph whose calls are taken apart


def read(path: Path) -> ForeignGraph:
    """Read a signature of a SavedModel: "serving_default", else the first by name.

    `path`: its folder, or the file saved_model.pb in it. Raises FormatError if it is no SavedModel or damaged, or would
    run what isn't part of the network, such as writing a file.
    """
    folder = path if path.is_dir() else path.parent
    if not (folder / FILE).is_file():
        raise FormatError(f"{folder} has no {FILE}. Give the folder of a SavedModel.")
    data = (folder / FILE).read_bytes()
    reader = GraphDefReader(folder, max(1 << 24, 8 * len(data)))
    graph = _SavedModel(folder, _meta_graph(Message(memoryview(data), str(folder / FILE)))).graph(reader)
    return replace(graph, format="TensorFlow SavedModel", name=folder.name)


def _meta_graph(root: Message) -> Message:
    """The graph for serving."""
    graphs = root.messages(2)
    serving = [each for each in graphs if any("serve" in info.texts(4) for info in each.messages(1))]
    if not graphs:
        raise FormatError(f"{root.what} is not a SavedModel, or is damaged: it has no graph. Export it again.")
    return (serving or graphs)[0]


@dataclass(frozen=True)
class _Function:
    """The body of a function; the graph itself counts as one without arguments.

    Arguments:
    - `nodes`: by name.
    - `arguments`: names, in order (default none).
    - `results`: what it returns, in order, each written as a node's input (default none).
    - `effects`: names of nodes that run, or may run, though no result needs them (default none).
    """

    nodes: dict[str, NodeDef]
    arguments: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()

    @classmethod
    def of(cls, message: Message) -> _Function:
        signatures, nodes = message.messages(1), _nodes(message.messages(3))
        arguments, results = ([_name(each) for one in signatures for each in one.messages(field)] for field in (2, 3))
        returned, effects = (
            {key: str(text.data, "utf-8", "replace") for key, text in message.mapping(field).items()}
            for field in (4, 6)
        )
        texts = [*returned.values(), *(text for node in nodes.values() for text in node.inputs)]
        unread = nodes.keys() - {text.removeprefix("^").partition(":")[0] for text in texts}
        made = tuple(returned.get(name, "") for name in results)
        return cls(nodes, tuple(arguments), made, tuple(sorted({*effects.values()} | unread)))


@dataclass(frozen=True)
class _Scope:
    """A function that is called, or the graph itself.

    Arguments:
    - `function`: its body.
    - `prefix`: of the names of its nodes (default none).
    - `caller`, `inputs`: where it is called, and with what (default: it is the graph itself).
    - `depth`: number of calls around it (default 0).
    """

    function: _Function
    prefix: str = ""
    caller: _Scope | None = None
    inputs: tuple[str, ...] = ()
    depth: int = 0


Place = tuple[_Scope, str]  # what a node of the scope reads, as it is written
Found = dict[str, tuple[_Scope, NodeDef]]  # nodes by their names with all calls taken apart


class _SavedModel:
    def __init__(self, folder: Path, meta: Message) -> None:
        self.folder, self.meta = folder, meta
        graph = (meta.messages(2) or [Message(memoryview(b""), meta.what)])[-1]
        functions = [function for library in graph.messages(2) for function in library.messages(1)]
        self._functions = {_name(one): function for function in functions for one in function.messages(1)}
        self._bodies: dict[str, _Function] = {}
        self._scopes: dict[str, _Scope] = {}
        self._entered: list[_Scope] = []
        self.main = _Scope(_Function(_nodes(graph.messages(1))))

    def graph(self, reader: GraphDefReader) -> ForeignGraph:
        """The graph of the signature. `reader`: gets its nodes."""
        signatures = self.meta.mapping(5)
        chosen = SIGNATURE if SIGNATURE in signatures else min({*signatures} - {INITIALISER}, default="")
        if not chosen:
            raise FormatError(f"{self.folder} has no signature. Save the model with signatures=….")
        inputs, outputs = (
            {key: _name(info) for key, info in sorted(signatures[chosen].mapping(field).items())} for field in (1, 2)
        )
        found: Found = {}
        beside = self._walk([(self.main, text) for text in (*inputs.values(), *outputs.values())], found)
        self._refuse_effects(beside, found, signatures)
        ends = [self._resolved((self.main, text)) for text in outputs.values()]
        own = {
            key: name for name, text in inputs.items() if (key := self._key((self.main, text))) == f"{chosen}_{name}"
        }
        names = self._names(found, own, {_outermost(scope).prefix for scope, *_ in ends})
        values = self._values([key for key, (_, node) in found.items() if node.kind in VARIABLES])
        for key, (scope, node) in found.items():
            if key in values:
                reader.add_constant(names[key], values[key])
                continue
            sources = [self._resolved((scope, text)) for text in node.inputs if text[:1] != "^"]
            reads = tuple(f"{names[one.prefix + other.name]}:{index}" for one, other, index in sources)
            kind = "Identity" if node.kind == "ReadVariableOp" else node.kind
            reader.add(NodeDef(names[key], kind, reads, node.message))
        return reader.graph(tuple(f"{names[one.prefix + node.name]}:{index}".removesuffix(":0")
                                  for one, node, index in ends))  # fmt: skip

    def _names(self, found: Found, inputs: dict[str, str], outer: set[str]) -> dict[str, str]:
        """Names of the nodes: of inputs as the signature has them; without the call that a signature consists of."""
        names, taken = {}, set(found)
        prefix = outer.pop() if len(outer) == 1 else ""
        for key in found:
            name = inputs.get(key) or key.removeprefix(prefix)
            names[key] = key if name in taken else name
            taken.add(names[key])
        return names

    def _refuse_effects(self, beside: list[Place], found: Found, signatures: dict[str, Message]) -> None:
        """Refuse what isn't part of the network and would run when it is loaded or used."""
        starts = (
            [_name(info) for info in signatures[INITIALISER].mapping(2).values()] if INITIALISER in signatures else []
        )
        for name, collection in self.meta.mapping(4).items():
            if name in INITIALISERS:
                starts += [text for nodes in collection.messages(1) for text in nodes.texts(1)]
        initial = self._effects([(self.main, f"^{text.partition(':')[0]}") for text in starts], {})
        for key, (scope, node) in {**initial, **self._effects(beside, found)}.items():
            if node.kind not in ALLOWED:
                raise FormatError(
                    f"{self.folder}: node '{key:.200}' ({node.kind:.60}) would run beside the network when TensorFlow "
                    f"loads or uses the model: it may print, write or delete files. Nothing was run. Export the model "
                    f"without it."
                )
            if node.kind in ASSIGNMENTS and self._key((scope, node.inputs[0])) in found:
                raise FormatError(
                    f"{self.folder}: node '{key:.200}' ({node.kind:.60}) changes a variable of the network beside what "
                    f"the checkpoint has. Export the model without it."
                )

    def _values(self, variables: list[str]) -> dict[str, np.ndarray]:
        """Values of variables, by the keys of the checkpoint from which the file's own saver restores them."""
        if not variables:
            return {}
        starts = [text for saver in self.meta.messages(3) for text in saver.texts(3)]
        restoring = list(self._effects([(self.main, f"^{text.partition(':')[0]}") for text in starts], {}).values())
        copying = [(self.main, node) for node in self.main.function.nodes.values()]
        keys, names, copies = dict[str, str](), dict[str, list[str]](), dict[str, str]()
        for scope, node in (*restoring, *copying):
            if node.kind not in ASSIGNMENTS or len(node.inputs) < 2:
                continue
            target, (one, source, index) = self._key((scope, node.inputs[0])), self._resolved((scope, node.inputs[1]))
            while source.kind == "Identity" and source.inputs:
                one, source, index = self._resolved((one, source.inputs[0]))
            if source.kind == "RestoreV2" and len(source.inputs) > 1:
                place = one.prefix + source.name
                names[place] = names.get(place) or self._texts((one, source.inputs[1]))
                keys[target] = names[place][index] if index < len(names[place]) else ""
            elif source.kind == "ReadVariableOp" and source.inputs:  # Keras saves copies of the variables that it reads
                copies[self._key((one, source.inputs[0]))] = target
        checkpoint, found = Checkpoint(self.folder / "variables" / "variables"), {}
        for name in variables:
            key = keys.get(name) or keys.get(copies.get(name, ""), "")
            if key not in checkpoint:
                raise FormatError(
                    f"{self.folder}: the variable '{name:.200}' has no value in the checkpoint. Export it again."
                )
            found[name] = checkpoint.read(key)
        return found

    def _texts(self, place: Place) -> list[str]:
        """The texts of a constant."""
        _, node, _ = self._resolved(place)
        value = node.attributes().get("value")
        return [text for tensor in (value.messages(8) if value else []) for text in tensor.texts(8)]

    def _walk(self, waiting: list[Place], found: Found) -> list[Place]:
        """Add the nodes whose results are needed to `found`. Returns what runs beside them, as control inputs."""
        beside = []
        while waiting:
            scope, text = waiting.pop()
            if text[:1] == "^":
                beside.append((scope, text))
                continue
            scope, node, _ = self._resolved((scope, text))
            key = scope.prefix + node.name
            if key not in found:
                found[key] = scope, node
                waiting += [(scope, name) for name in node.inputs]
            if len(found) > MOST_NODES:
                raise FormatError(f"{self.folder}: the graph has more than {MOST_NODES:,} nodes.")
        beside += [(scope, f"^{name}") for scope in self._entered for name in scope.function.effects]
        self._entered.clear()
        return beside

    def _effects(self, waiting: list[Place], known: Found) -> Found:
        """The nodes that run because of control inputs, and those that they need, except the `known` ones."""
        found, calls = dict(known), set[str]()
        while waiting:
            scope, text = waiting.pop()
            node = self._node(scope, text[1:])
            called = self._called(scope, node)
            if called is None:
                waiting += self._walk([(scope, text[1:])], found)
            elif called.prefix not in calls:
                calls.add(called.prefix)
                waiting += [(called, f"^{name}") for name in called.function.effects]
                waiting += [(scope, name) for name in node.inputs if name[:1] == "^"]
        return {key: place for key, place in found.items() if key not in known}

    def _key(self, place: Place) -> str:
        scope, node, _ = self._resolved(place)
        return scope.prefix + node.name

    def _resolved(self, place: Place) -> tuple[_Scope, NodeDef, int]:
        """The node that makes what is read, and the number of its result, through arguments and calls."""
        scope, text = place
        for _ in range(MOST_NODES):
            name, _, rest = text.partition(":")
            if not rest and name in scope.function.arguments and scope.caller:
                number = scope.function.arguments.index(name)
                scope, text = scope.caller, scope.inputs[number] if number < len(scope.inputs) else ""
                continue
            node = self._node(scope, name)
            result, _, number = rest.rpartition(":")
            index = int(number) if number.isdecimal() else 0
            if result in RESULTS.get(node.kind, ()):
                index += RESULTS[node.kind].index(result)
            called = self._called(scope, node)
            if called is None:
                return scope, node, index
            scope, text = called, called.function.results[index] if index < len(called.function.results) else ""
        raise FormatError(f"{self.folder} is damaged: '{place[1]:.200}' leads in a circle. Export it again.")

    def _node(self, scope: _Scope, name: str) -> NodeDef:
        node = scope.function.nodes.get(name)
        if node is None:
            raise FormatError(f"{self.folder} is damaged: it has no node '{scope.prefix}{name:.200}'. Export it again.")
        return node

    def _called(self, scope: _Scope, node: NodeDef) -> _Scope | None:
        """The function that a node calls; None if it is an operator."""
        prefix, name = f"{scope.prefix}{node.name}/", node.kind
        if prefix not in self._scopes:
            if node.kind in CALLS:
                function = node.attributes().get("f")
                name = (function.messages(10) or [function])[-1] if function else ""
                name = _name(name) if isinstance(name, Message) else ""
            if name not in self._functions:
                if node.kind in CALLS:
                    raise FormatError(f"{self.folder} is damaged: '{prefix:.200}' calls '{name:.200}', which it lacks.")
                return None
            if scope.depth == DEPTH:
                raise FormatError(f"{self.folder}: functions call each other more than {DEPTH} deep.")
            if name not in self._bodies:
                self._bodies[name] = _Function.of(self._functions[name])
            inputs = tuple(text for text in node.inputs if text[:1] != "^")
            called = _Scope(self._bodies[name], prefix, scope, inputs, scope.depth + 1)
            self._scopes[prefix] = called
            self._entered.append(called)
        return self._scopes[prefix]


def _nodes(messages: list[Message]) -> dict[str, NodeDef]:
    return {node.name: node for node in map(NodeDef.of, messages)}


def _name(message: Message) -> str:
    """The text of field 1, in which most messages have their name."""
    return (message.texts(1) or [""])[-1]


def _outermost(scope: _Scope) -> _Scope:
    """The call in the graph itself inside which a scope lies."""
    while scope.caller and scope.caller.caller:
        scope = scope.caller
    return scope


_saved = GraphReader(read, HANDLERS, NEAREST)
register(graph_format("TensorFlow SavedModel", (FILE,), b"", _saved))  # before the other .pb
register(graph_format("TensorFlow GraphDef", (".pb",), b"", GraphReader(read_graphdef.read, HANDLERS, NEAREST)))
