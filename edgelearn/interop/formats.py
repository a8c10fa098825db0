"""The tables of file formats, and networks by what users call them.

`read_model` finds a file's format by its suffix or its first bytes, `write_model` a writer by the suffix. A format is
one file with one `register` or `register_writer` call:

>>> register(FileFormat("Keras HDF5", (".h5",), b"\\x89HDF", weights_of_a_network(read_weights)))
>>> register(graph_format("ONNX", (".onnx",), b"", GraphReader(read_graph, HANDLERS)))
>>> register_writer(Writer("TFLite", (".tflite",), write, ("int8",)))
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from edgelearn.errors import ExtensionError, FormatError, PlanError
from edgelearn.extensions import call, import_object, is_reference
from edgelearn.graph import Network
from edgelearn.models import named_network, network_names
from edgelearn.ops.tensor import Shape

from .safetensors import ModelFile
from .weights import Weights, check_fit, not_finite

if TYPE_CHECKING:
    from .builder import Handler, Translation
    from .canonical import ForeignGraph


# Modules with the package's own formats, imported when the table is first read: they take as long as the engine.
BUILT_IN = ("state_dict", "read_saved_model", "read_keras", "read_tflite", "keras_h5", "read_onnx", "llama")


Entry = TypeVar("Entry")


class Registry(Generic[Entry]):
    """Entries by name, in the order in which they were added.

    Arguments:
    - `function`: attribute of what an entry reads or writes with, which tells it from another one of the same name.
    - `built_in`: modules of edgelearn.interop that add the package's own entries; they are imported when the table is
      first read.
    """

    def __init__(self, function: str, built_in: tuple[str, ...] = ()) -> None:
        self._function, self._built_in, self._entries = function, built_in, dict[str, Any]()

    def _load(self) -> None:
        for module in self._built_in:
            import_module(f"edgelearn.interop.{module}")

    def _origin(self, entry: Any) -> str:
        """Module and name of an entry's function."""
        function = getattr(entry, self._function)
        return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"

    def add(self, entry: Any) -> Any:
        """Add an entry; one that isn't the package's own is found before those that are. An entry with the same
        function takes the place of itself. Raises ExtensionError if another one has the name."""
        own = self._origin(entry)
        is_foreign = not own.startswith("edgelearn.")
        if is_foreign:
            self._load()
        if own != (known := self._origin(self._entries.get(entry.name, entry))):
            raise ExtensionError(
                f"{own} can't be the format '{entry.name}': {known} is it already. Give yours another name; where "
                f"suffixes are the same, yours is found first."
            )
        self._entries.pop(entry.name, None)
        self._entries = {entry.name: entry} | self._entries if is_foreign else self._entries | {entry.name: entry}
        return entry

    def __iter__(self) -> Iterator[Entry]:
        self._load()
        return iter(list(self._entries.values()))

    def known(self) -> str:
        """Names and suffixes of all, for errors."""
        return "; ".join(f"{one.name} ({', '.join(one.suffixes)})" for one in self)  # type: ignore[attr-defined]


Reader = Callable[..., ModelFile]


@dataclass(frozen=True)
class GraphReader:
    """How a format's graphs become networks.

    Arguments:
    - `read`: reads a file as its format has it. Raises FormatError naming the file.
    - `handlers`: one function an operator, by the format's name for it: see edgelearn.interop.builder.
    - `nearest`: what works instead of operators without a handler (default nothing).
    - `run`: returns what the format's own runtime computes of examples, float32 (n, ...) for each output of inputs of
      the same kind; raises FormatError if it can't (default None: imports are not compared with one).
    """

    read: Callable[[Path], ForeignGraph]
    handlers: Mapping[str, Handler]
    nearest: Mapping[str, str] = field(default_factory=dict)
    run: Callable[[Path, Sequence[np.ndarray]], list[np.ndarray]] | None = None

    def translate(self, graph: ForeignGraph) -> Translation:
        """Translate what `read` returned. Raises UnsupportedError for operators without a handler."""
        from .builder import translate  # on first use: most programs read no such file

        return translate(graph, self.handlers, self.nearest)


@dataclass(frozen=True)
class FileFormat:
    """A format of model or weight files.

    Arguments:
    - `name`: what users call it.
    - `suffixes`: ends of file names, in lower case, such as (".h5", ".hdf5").
    - `signature`: first bytes of every such file; empty if it has none.
    - `read`: `read(path, network, skip)` returns a ModelFile. `network` is None if the caller has none; layers named in
      `skip` are left out. Raises FormatError naming the file.
    - `graph`: how its graphs become networks, if other frameworks write them (default None).
    - `options`: names of further arguments that `read` takes, such as "names" (default none).
    """

    name: str
    suffixes: tuple[str, ...]
    signature: bytes
    read: Reader
    graph: GraphReader | None = None
    options: tuple[str, ...] = ()


_formats: Registry[FileFormat] = Registry("read", BUILT_IN)


def register(file_format: FileFormat) -> FileFormat:
    """Add a format to the table; yours are found before those of the package. Raises ExtensionError if another one has
    its name."""
    return _formats.add(file_format)


def find_format(path: str | Path) -> FileFormat:
    """Return the format of a file, by its suffix, else by its first bytes. Raises FormatError for an unknown one."""
    path = Path(path)
    path = path / "saved_model.pb" if (path / "saved_model.pb").is_file() else path  # TensorFlow's folder
    for file_format in _formats:
        if path.name.lower().endswith(file_format.suffixes):
            return file_format
    try:
        with path.open("rb") as file:
            start = file.read(64)
    except OSError as error:
        raise FormatError(
            f"{path} can't be read ({error.strerror}). Give the path of a model or weight file."
        ) from None
    for file_format in _formats:
        if file_format.signature and start.startswith(file_format.signature):
            return file_format
    raise FormatError(f"{path} has no known format. Known: {_formats.known()}.")


def read_model(
    path: str | Path, network: Network | None = None, skip: tuple[str, ...] = (), *, inputs: tuple[str, ...] = (),
    outputs: tuple[str, ...] = (), input_shape: Shape | None = None, constants: Mapping[str, Any] | None = None,
    names: Mapping[str, str] | None = None,
) -> ModelFile:  # fmt: skip
    """Read a model, or weights of `network`, from a file of any registered format.

    Arguments:
    - `path`: the file.
    - `network`: the graph that the weights are for; not needed for formats that hold the graph.
    - `skip`: layers whose weights are left out, such as a classifier for other classes.
    - `inputs`, `outputs`, `input_shape`, `constants`: as of `import_graph`.
    - `names`: for PyTorch's state dicts, modules of the file by layer, such as {"stem": "features.0"}.

    Warns of weights that hold a NaN or an infinity.
    Raises FormatError if the file is damaged, of an unknown format or another network, or if a graph is needed;
    UnsupportedError, which lists all of them, if it has operators that have no counterpart here.
    """
    found, options = find_format(path), {"names": names} if names else {}
    if names and "names" not in found.options:
        raise FormatError(f"{path} ({found.name}) takes no names=…: it says itself which weights a layer has.")
    if inputs or outputs or input_shape is not None or constants:
        translation = import_graph(
            path, inputs=inputs, outputs=outputs, input_shape=input_shape, constants=constants
        )  # fmt: skip
        file = _chosen(translation.model_file(), network, tuple(skip))
    else:
        file = found.read(Path(path), network, tuple(skip), **options)
    if network is not None:
        check_fit(path, network, file.weights, skip, factors_may_be_missing=True)
    if problem := not_finite(file.weights):
        warnings.warn(f"{path}: {problem}", stacklevel=2)
    return file


def import_graph(
    path: str | Path, *, inputs: tuple[str, ...] = (), outputs: tuple[str, ...] = (), input_shape: Shape | None = None,
    constants: Mapping[str, Any] | None = None, open_size: int | None = None,
) -> Translation:  # fmt: skip
    """Translate a file of another framework, whether all of its operators can be translated or not.

    Arguments:
    - `path`: the file.
    - `inputs`, `outputs`: names of the tensors between which the network lies (default: the file's own).
    - `input_shape`: of an example in the order of edgelearn, (height, width, channels) for an image; for files that
      leave it open, or to have another size (default: the file's). With as many numbers as the file's input has axes,
      and channels last there, an example is the whole input: what the file has as its batch is time, for example.
    - `constants`: values of inputs that are the same for all examples, such as {"sr": 16000}: they are no inputs of the
      network, and choose between branches of the file (default none).
    - `open_size`: stands for each size that is still open then, to look at the network; a note says so (default None:
      an open size is an error).

    Raises FormatError if the file is damaged, or of a format without a graph.
    """
    found = find_format(path)
    if found.graph is None:
        raise FormatError(f"{path} ({found.name}) holds no graph of another framework: read it with edgelearn.load.")
    with _naming(path):
        graph = found.graph.read(Path(path)).between(inputs, outputs, input_shape, constants)
        return found.graph.translate(graph if open_size is None else graph.closed(open_size))


def graph_format(name: str, suffixes: tuple[str, ...], signature: bytes, graph: GraphReader) -> FileFormat:
    """Make a format whose files hold a graph with its weights; arguments as of FileFormat."""

    @wraps(graph.read)  # the table of formats tells one from another by this name
    def read_file(path: Path, network: Network | None, skip: tuple[str, ...]) -> ModelFile:
        with _naming(path):
            return _chosen(graph.translate(graph.read(path).between()).model_file(), network, skip)

    return FileFormat(name, suffixes, signature, read_file, graph)


@contextmanager
def _naming(path: str | Path) -> Iterator[None]:
    """Put the file's name into errors that lack it."""
    try:
        yield
    except FormatError as error:
        if str(path) not in str(error):
            error.args = (f"{path}: {error}",)
        raise


def _chosen(file: ModelFile, network: Network | None, skip: tuple[str, ...]) -> ModelFile:
    """The file for `network`, without the weights of the layers in `skip`."""
    kept = {name: array for name, array in file.weights.items() if name.partition("/")[0] not in skip}
    return replace(file, network=network or file.network, weights=kept)


def weights_of_a_network(read: Callable[..., Weights]) -> Reader:
    """Make a reader for a format that holds weights alone: it asks the caller for the network. `read(path, network,
    skip)` returns the weights by "layer/role"; it takes the format's options, too."""

    @wraps(read)
    def read_file(path: Path, network: Network | None, skip: tuple[str, ...], **options: Any) -> ModelFile:
        if network is None:
            raise FormatError(f"{path} holds weights without a graph: say of which network, with network=….")
        return ModelFile(network, read(path, network, skip, **options))

    return read_file


@dataclass(frozen=True)
class Written:
    """A written file: its size, types and the layers left in float32.

    Arguments:
    - `types`: bytes of the weights and other constants by type, such as {"int8": 21910, "int32": 160}.
    - `float32`: layers that integers were asked for and that stay float32, with the reason (default none).
    - `path`, `format`, `bytes`: the file or folder, its format and its size; `write_model` fills them in.
    """

    types: Mapping[str, int]
    float32: Mapping[str, str] = field(default_factory=dict)
    path: Path = Path()
    format: str = ""
    bytes: int = 0

    def __str__(self) -> str:
        types = ", ".join(f"{kind} {count:,}" for kind, count in self.types.items())
        lines = [f"{self.path}: {self.format}, {self.bytes:,} bytes; weights and constants: {types}"]
        return "\n".join(lines + [f"float32: {layer}, because {reason}" for layer, reason in self.float32.items()])


def constant_bytes(arrays: Iterable[np.ndarray | None]) -> dict[str, int]:
    """Bytes of arrays by type, most first."""
    found: Counter[str] = Counter()
    for array in arrays:
        if array is not None:
            found[str(array.dtype)] += array.nbytes
    return dict(found.most_common())


def to_float16(name: str, array: np.ndarray) -> np.ndarray:
    """The weight `name` in float16, rounded to nearest even. Raises FormatError for a value that float16 can't hold."""
    largest, limit = float(np.abs(array).max(initial=0)), float(np.finfo(np.float16).max)
    if largest > limit:
        raise FormatError(f"'{name}' has {largest:.3g}, but float16 ends at {limit:.0f}: write it in float32.")
    return array.astype(np.float16)


@dataclass(frozen=True)
class Writer:
    """A format that models are written in.

    Arguments:
    - `name`: what users call it.
    - `suffixes`: ends of file names, in lower case, such as (".tflite",).
    - `write`: `write(path, file, **options)` writes a ModelFile, and may return `Written`. Raises FormatError if the
      format can't hold it.
    - `options`: names of the options that `write` takes, such as "int8" (default none).
    """

    name: str
    suffixes: tuple[str, ...]
    write: Callable[..., Written | None]
    options: tuple[str, ...] = ()


_writers: Registry[Writer] = Registry("write")


def register_writer(writer: Writer) -> Writer:
    """Add a writer to the table. Raises ExtensionError if another one has its name."""
    return _writers.add(writer)


def find_writer(path: str | Path) -> Writer:
    """Return the writer of a format by the file's suffix. Raises FormatError for an unknown one."""
    for writer in _writers:
        if Path(path).name.lower().endswith(writer.suffixes):
            return writer
    raise FormatError(f"{path}: the suffix names no format that is written. Known: {_writers.known()}.")


def _later(place: str) -> Callable[..., Written | None]:
    """A function "MODULE:NAME" of edgelearn.interop, imported when it is called: packages of other frameworks may be
    missing."""

    def write(path: Path, file: ModelFile, **options: Any) -> Written | None:
        module, _, name = place.partition(":")
        return getattr(import_module(f"edgelearn.interop.{module}"), name)(path, file, **options)

    return write


for _writer in (
    Writer("edgelearn model", (".safetensors",), _later("safetensors:write_model_file")),
    Writer("TFLite", (".tflite",), _later("tflite_writer:write"), ("int8", "float16", "full_integer")),
    Writer("ONNX", (".onnx",), _later("onnx_writer:write"), ("int8", "float16")),
    Writer("Keras", (".keras",), _later("to_keras:write_keras")),
    Writer("Keras weights", (".weights.h5",), _later("to_keras:write_keras")),
    Writer("PyTorch state dict", (".pt", ".pth"), _later("to_torch:write_state_dict")),
    Writer("QFP32", (".qfp32",), _later("qfp:write_qfp32")),
    Writer("QFP16", (".qfp16",), _later("qfp:write_qfp16")),
):
    register_writer(_writer)


def write_model(path: str | Path, file: ModelFile, **options: Any) -> Written:
    """Write a model in the format that the suffix of `path` names. Return what was written.

    Arguments:
    - `path`: the file to write; a folder for formats with several files.
    - `file`: the model.
    - `options`: of the format, such as `int8=True`; those that are None or False count as not given.

    Raises FormatError for an unknown suffix or option, for a model that the format can't hold, or if a package is
    missing; RunError if the file can't be written.
    """
    writer, given = find_writer(path), {k: v for k, v in options.items() if v is not None and v is not False}
    if unknown := sorted(set(given) - set(writer.options)):
        takes = f"It takes {', '.join(writer.options)}." if writer.options else "It takes none."
        raise FormatError(f"{path}: {writer.name} has no option '{unknown[0]}'. {takes}")
    path = Path(path)
    try:
        written = writer.write(path, file, **given) or Written(constant_bytes(file.weights.values()))
    except ModuleNotFoundError as error:
        raise FormatError(
            f"{path}: to write {writer.name}, install the Python package '{error.name}': pip install {error.name}."
        ) from None
    size = sum(part.stat().st_size for part in (path, *path.rglob("*")) if part.is_file())
    return replace(written, path=path, format=writer.name, bytes=size)


def find_network(name: str | Network, alpha: float = 1.0, **settings: Any) -> ModelFile:
    """Find a network, with the weights and the preprocessing that come with it.

    >>> find_network("mobilenet_v2", alpha=0.5).network
    >>> find_network("squeezenet.onnx").preprocessing
    >>> find_network("my_nets.py:tiny").network

    Arguments:
    - `name`: a network of edgelearn.models; the path of a model file, of any format that holds a graph;
      MODULE:FUNCTION, a function that returns a Network or a Model, whose module is imported; or a Network.
    - `alpha`: width multiplier, for networks that have one (default 1).
    - `settings`: arguments of the network's function, such as classes=5; unknown ones are ignored.

    Weights are empty where only the graph is known.
    Raises RunError for an unknown name, with the nearest ones; FormatError for a file that can't be read;
    ExtensionError for a function that can't be imported or returns something else; PlanError for a width that isn't to
    be had.
    """
    if isinstance(name, Network):
        return ModelFile(name, {})
    if name in network_names():
        return ModelFile(named_network(name, alpha, **settings), {})
    if alpha != 1 and not is_reference(name):
        check_network_name(name)
        raise PlanError(f"'{name}' is a file, whose width is fixed: omit alpha.")
    if is_reference(name):
        return _call(name, settings | ({"alpha": alpha} if alpha != 1 else {}))
    check_network_name(name)
    return read_model(name)


def check_network_name(name: str) -> None:
    """Raises RunError, FormatError or ExtensionError if `find_network` would find nothing. Files aren't read yet."""
    if name in network_names():
        return
    if is_reference(name):
        if not callable(import_object(name)):
            raise ExtensionError(f"'{name}' is no function: name one that returns a network.")
    elif Path(name).exists():
        find_format(name)
    else:
        if Path(name).suffix or len(Path(name).parts) > 1:
            raise FormatError(
                f"There is no file {name}. Give a model file, a name of edgelearn.models or MODULE:FUNCTION."
            )
        named_network(name)  # names the nearest


def _call(reference: str, settings: dict[str, Any]) -> ModelFile:
    function = import_object(reference)
    if not callable(function):
        raise ExtensionError(f"'{reference}' is no function: name one that returns a network.")
    try:
        known = signature(function).parameters
    except (TypeError, ValueError):
        known = {}
    required = [name for name, each in known.items() if each.default is Parameter.empty and each.kind in _NAMED]
    if missing := [name for name in required if name not in settings]:
        raise ExtensionError(f"'{reference}' needs a value for '{missing[0]}': give it a default.")
    if "alpha" in settings and "alpha" not in known:
        raise PlanError(f"'{reference}' has no width multiplier: omit alpha.")
    made = call(reference, function, **{name: value for name, value in settings.items() if name in known})
    if isinstance(made, Network | ModelFile):
        return made if isinstance(made, ModelFile) else ModelFile(made, {})
    if not isinstance(network := getattr(made, "network", None), Network):
        raise ExtensionError(f"'{reference}' returned {made!r:.80}, not a Network or a Model.")
    preprocessing = getattr(made, "preprocessing", None) or {}
    return ModelFile(network, dict(getattr(made, "weights", {})), preprocessing=preprocessing)


_NAMED = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
