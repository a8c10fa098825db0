"""The table of file formats: `read_model` finds a file's format by its suffix or its first bytes.

A format is one file with one `register` call:

>>> register(Format("Keras HDF5", (".h5",), b"\\x89HDF", weights_of_a_network(read_weights)))
>>> register(graph_format("ONNX", (".onnx",), b"", GraphReader(read_graph, HANDLERS)))
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgelearn.errors import FormatError
from edgelearn.graph import Network
from edgelearn.ops.tensor import Shape

from .model_file import ModelFile
from .table import Table
from .weights import Weights, check_fit, not_finite

if TYPE_CHECKING:
    from .builder import Handler, Translation
    from .canonical import ForeignGraph

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
class Format:
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

    @property
    def function(self) -> Callable:
        """As of a table's entry."""
        return self.read


_formats: Table[Format] = Table()


def register(file_format: Format) -> Format:
    """Add a format to the table; yours are found before those of the package. Raises ExtensionError if another one has
    its name."""
    return _formats.add(file_format)


def find_format(path: str | Path) -> Format:
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
    known = "; ".join(f"{f.name} ({', '.join(f.suffixes)})" for f in _formats)
    raise FormatError(f"{path} has no known format. Known: {known}.")


def read_model(
    path: str | Path, network: Network | None = None, skip: tuple[str, ...] = (), *, inputs: tuple[str, ...] = (),
    outputs: tuple[str, ...] = (), input_shape: Shape | None = None, names: Mapping[str, str] | None = None,
) -> ModelFile:  # fmt: skip
    """Read a model, or weights of `network`, from a file of any registered format.

    Arguments:
    - `path`: the file.
    - `network`: the graph that the weights are for; not needed for formats that hold the graph.
    - `skip`: layers whose weights are left out, such as a classifier for other classes.
    - `inputs`, `outputs`, `input_shape`: as of `import_graph`.
    - `names`: for PyTorch's state dicts, modules of the file by layer, such as {"stem": "features.0"}.

    Warns of weights that hold a NaN or an infinity.
    Raises FormatError if the file is damaged, of an unknown format or another network, or if a graph is needed;
    UnsupportedError, which lists all of them, if it has operators that have no counterpart here.
    """
    found, options = find_format(path), {"names": names} if names else {}
    if names and "names" not in found.options:
        raise FormatError(f"{path} ({found.name}) takes no names=…: it says itself which weights a layer has.")
    if inputs or outputs or input_shape is not None:
        translation = import_graph(path, inputs=inputs, outputs=outputs, input_shape=input_shape)
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
    open_size: int | None = None,
) -> Translation:  # fmt: skip
    """Translate a file of another framework, whether all of its operators can be translated or not.

    Arguments:
    - `path`: the file.
    - `inputs`, `outputs`: names of the tensors between which the network lies (default: the file's own).
    - `input_shape`: of an example in the order of edgelearn, (height, width, channels) for an image; for files that
      leave it open, or to have another size (default: the file's).
    - `open_size`: stands for each size that is still open then, to look at the network; a note says so (default None:
      an open size is an error).

    Raises FormatError if the file is damaged, or of a format without a graph.
    """
    found = find_format(path)
    if found.graph is None:
        raise FormatError(f"{path} ({found.name}) holds no graph of another framework: read it with edgelearn.load.")
    with _naming(path):
        graph = found.graph.read(Path(path)).between(inputs, outputs, input_shape)
        return found.graph.translate(graph if open_size is None else graph.closed(open_size))


def graph_format(name: str, suffixes: tuple[str, ...], signature: bytes, graph: GraphReader) -> Format:
    """Make a format whose files hold a graph with its weights; arguments as of Format."""

    @wraps(graph.read)  # the table of formats tells one from another by this name
    def read_file(path: Path, network: Network | None, skip: tuple[str, ...]) -> ModelFile:
        with _naming(path):
            return _chosen(graph.translate(graph.read(path).between()).model_file(), network, skip)

    return Format(name, suffixes, signature, read_file, graph)


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
