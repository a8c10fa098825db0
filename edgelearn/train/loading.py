"""Make models: from files, from weights that others publish for networks of edgelearn.models, from PyTorch's modules,
and from a combination of precision, memory and layers. Nothing is downloaded here: an address stands in the message of
a file that is missing."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypedDict

from edgelearn import models, records
from edgelearn.compile.memory import Encoding
from edgelearn.compile.planner import Combination
from edgelearn.device import Device
from edgelearn.errors import DataError, FormatError, UsageError
from edgelearn.extensions import check_name
from edgelearn.graph import Network
from edgelearn.interop import ModelFile, find_network, read_model
from edgelearn.interop.builder import translate
from edgelearn.ops import Loss, Losses, Optimizer
from edgelearn.ops.tensor import Shape

from .model import Model
from .state import TrainingState

TORCHVISION = "https://download.pytorch.org/models/"
KERAS = "https://storage.googleapis.com/tensorflow/keras-applications/"


@dataclass(frozen=True)
class PublishedWeights:
    """A file of weights of ImageNet's 1,000 classes.

    Arguments:
    - `network`: name of the network in edgelearn.models.
    - `url`: address of the file.
    - `checksum`: "sha256:DIGITS" or "md5:DIGITS", in hexadecimal, as the publisher states it; of torchvision's files
      the first digits, which their names have. None where none is stated: any file is then accepted that fits.
    - `settings`: arguments of the network's function, such as its width (default none).
    """

    network: str
    url: str
    checksum: str | None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def file_name(self) -> str:
        return self.url.rpartition("/")[-1]

    @property
    def folders(self) -> list[Path]:
        """Folders in which the file is looked for: EDGELEARN_DATA's, and where PyTorch and Keras keep theirs."""
        home, data = Path.home(), os.environ.get("EDGELEARN_DATA")
        found = [Path(data).expanduser() / "weights"] if data else []
        found.append(Path(os.environ.get("TORCH_HOME") or home / ".cache" / "torch") / "hub" / "checkpoints")
        return [*found, Path(os.environ.get("KERAS_HOME") or home / ".keras") / "models"]

    def find(self, path: str | Path | None = None) -> Path:
        """The file, once its checksum is compared. `path`: of the file (default: it is looked for in `folders`).

        Raises DataError, which says where to get it, if it is missing or another file.
        """
        places = [Path(path)] if path else [folder / self.file_name for folder in self.folders]
        found = next((place for place in places if place.is_file()), None)
        if found is None:
            raise DataError(
                f"{' and '.join(map(str, places))} {'is' if len(places) == 1 else 'are'} not there. Get {self.url} and "
                f"give its path, or put it into a folder 'weights' in EDGELEARN_DATA."
            )
        if self.checksum:
            algorithm, _, digits = self.checksum.partition(":")
            with found.open("rb") as file:
                actual = hashlib.file_digest(file, algorithm).hexdigest()
            if not actual.startswith(digits):
                raise DataError(
                    f"{found} is not the published file: its {algorithm} is {actual[: len(digits)]}, that of "
                    f"{self.url} {digits}. Get it again; el.load reads other files."
                )
        return found


# torchvision 0.29: names end in the first digits of the SHA-256. Keras 3: MD5, where keras.applications compares one.
PUBLISHED: dict[str, PublishedWeights] = {
    "alexnet_one_column": PublishedWeights(
        "alexnet_one_column", f"{TORCHVISION}alexnet-owt-7be5be79.pth", "sha256:7be5be79"
    ),
    "squeezenet": PublishedWeights("squeezenet", f"{TORCHVISION}squeezenet1_1-b8a52dc0.pth", "sha256:b8a52dc0"),
    "resnet18": PublishedWeights("resnet18", f"{TORCHVISION}resnet18-f37072fd.pth", "sha256:f37072fd"),
    "resnet34": PublishedWeights("resnet34", f"{TORCHVISION}resnet34-b627a593.pth", "sha256:b627a593"),
    "resnet50": PublishedWeights("resnet50", f"{TORCHVISION}resnet50-0676ba61.pth", "sha256:0676ba61"),
    "shufflenet_v2": PublishedWeights(
        "shufflenet_v2", f"{TORCHVISION}shufflenetv2_x1-5666bf0f80.pth", "sha256:5666bf0f80"
    ),
    "mobilenet_v1": PublishedWeights("mobilenet_v1", f"{KERAS}mobilenet/mobilenet_1_0_224_tf.h5", None),
    "mobilenet_v1_025": PublishedWeights(  # the digits are those of a copy of the file
        "mobilenet_v1", f"{KERAS}mobilenet/mobilenet_2_5_224_tf.h5",
        "sha256:eab6eaac7b8f7c2f13007ff9240ed516d6406b395004d43fe13c8cba549c422c", {"alpha": 0.25},
    ),
    "mobilenet_v2": PublishedWeights(
        "mobilenet_v2", f"{KERAS}mobilenet_v2/mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_224.h5", None
    ),
    "mobilenet_v3_small": PublishedWeights(
        "mobilenet_v3_small", f"{KERAS}mobilenet_v3/weights_mobilenet_v3_small_224_1.0_float.h5",
        "md5:8768d4c2e7dee89b9d02b2d03d65d862",
    ),
    "mobilenet_v3_large": PublishedWeights(
        "mobilenet_v3_large", f"{KERAS}mobilenet_v3/weights_mobilenet_v3_large_224_1.0_float.h5",
        "md5:59e551e166be033d707958cf9e29a6a7",
    ),
    "vgg16": PublishedWeights(
        "vgg16", f"{KERAS}vgg16/vgg16_weights_tf_dim_ordering_tf_kernels.h5", "md5:64373286793e3c8b2b4e3219cbf3544b"
    ),
}  # fmt: skip


def find_published(name: str) -> PublishedWeights:
    """The published weights of that name. Raises UsageError for another name."""
    check_name(name, PUBLISHED, "published weights")
    return PUBLISHED[name]


def from_torch(
    module: Any, example: Any, *, name: str = "", device: str | Device | None = None, seed: int = 0
) -> Model:  # fmt: skip
    """Make a model of a PyTorch module, with its weights, by torch.export. It needs PyTorch.

    >>> model = edgelearn.from_torch(torchvision.models.mobilenet_v2(), torch.zeros(1, 3, 224, 224))

    BatchNorm keeps its scale, bias and statistics, and dropout its rate. Inputs and outputs of the model have channels
    last.

    Arguments:
    - `module`: a torch.nn.Module; it is left as it is.
    - `example`: an input, or a tuple of them: tensors with the batch as first axis; images are (n, channels, height,
      width). States of LSTM and GRU are (layers, n, units) here, and (n, layers, units) in the model.
    - `name`: of the network (default the module's class).
    - `device`, `seed`: as in Model.

    Raises FormatError if PyTorch can't export the module; UnsupportedError, which lists all of them, if it has
    operators that edgelearn doesn't have.
    """
    from edgelearn.interop.read_torch import HANDLERS, NEAREST, graph_of_module

    file = translate(graph_of_module(module, example, name), HANDLERS, NEAREST).model_file()
    model = Model(file.network, file.weights, device, seed)
    model.metadata = dict(file.metadata)
    return model


class _Saved(TypedDict, total=False):
    """Entries of a file's position besides the training's own."""

    seed: int
    batchnorm: Literal["auto", "moving", "batch"]


def load(
    path: str | Path, network: Network | None = None, *, device: str | Device | None = None, seed: int | None = None,
    skip: tuple[str, ...] = (), inputs: tuple[str, ...] = (), outputs: tuple[str, ...] = (),
    input_shape: Shape | None = None, constants: Mapping[str, Any] | None = None,
    names: Mapping[str, str] | None = None, optimizer: Optimizer | None = None, **settings,
) -> Model:  # fmt: skip
    """Read a model from a file that `Model.save` or another framework wrote, or weights of a network.

    >>> model = edgelearn.load("flowers.safetensors")
    >>> model = edgelearn.load("squeezenet.onnx")
    >>> model = edgelearn.load("mobilenet_1_0_224_tf.h5", el.models.mobilenet_v1(classes=5), skip=("dense",))
    >>> model = edgelearn.load("resnet18.pth", el.models.resnet18(classes=5), skip=("predictions",))

    Arguments:
    - `path`: the file; for the formats see edgelearn.interop.
    - `network`: the graph that the weights are for; not needed for files that hold a graph. Weights of PyTorch are put
      onto it by their names, else by the order of their modules: see the manual, "Bring a model".
    - `device`: as in Model.
    - `seed`: as in Model (default: the file's, else 0).
    - `skip`: layers whose weights are not read but drawn anew, such as a classifier for other classes; and what the
      file has besides.
    - `inputs`, `outputs`: names of tensors of another framework's file, between which the network lies (default: the
      file's own). An audio front end can so stay outside.
    - `input_shape`: of an example, (height, width, channels) for an image, where such a file leaves it open, or to have
      another size (default: the file's). With as many numbers as the file's input has axes, and channels last there, an
      example is the whole input: what the file has as its batch is time, for example.
    - `constants`: values of such a file's inputs that are the same for all examples, such as {"sr": 16000}: they are no
      inputs of the model, and choose between branches of the file (default none).
    - `names`: for PyTorch's state dicts, modules of the file by layer, such as {"stem": "features.0"} (default none).
    - `optimizer`, and `settings` of Model.compile: compile the model with these, and continue the training that the
      file holds (default: don't).

    Raises FormatError if the file is damaged, of an unknown format or of another network or training, saying which
    weights it lacks or has besides, or if it holds no graph and `network` is missing. Raises UnsupportedError, which
    lists all of them, if the file has operators that edgelearn doesn't have; and UsageError for `settings` without an
    optimizer.
    """
    if settings and optimizer is None:
        raise UsageError(
            f"load takes no {', '.join(settings)}, which compile does together with an optimizer: give that, too, as "
            f"in load(path, optimizer=edgelearn.SGD(0.01)), or leave {'them' if len(settings) > 1 else 'it'} out."
        )
    file: ModelFile = read_model(
        path, network, tuple(skip), inputs=inputs, outputs=outputs, input_shape=input_shape, constants=constants,
        names=names,
    )  # fmt: skip
    try:
        position: dict[str, Any] = dict(records.convert(dict(file.position), _Saved))
    except records.RecordError as error:
        raise FormatError(f"{path}: 'position' is damaged ({error}). Restore it from a backup.") from None
    saved_seed, batchnorm = position.pop("seed", 0), position.pop("batchnorm", "auto")
    chosen_seed: int = saved_seed if seed is None else seed
    model = Model(file.network, file.network.initialize(chosen_seed) | file.weights, device, chosen_seed)
    model.preprocessing, model.class_names, model.metadata = (
        dict(file.preprocessing),
        file.class_names,
        dict(file.metadata),
    )
    if optimizer is not None:
        model.compile(optimizer, **{"batchnorm": batchnorm} | settings)
        if position:
            changing = {name: file.weights[name] for name in model.changing}
            tensors, _ = TrainingState(changing, file.optimizer, file.ranges).to_tensors()
            model.restore(tensors, position)
    return model


def load_published(
    name: str, weights: str | Path | None = None, *, classes: int | None = None, device: str | Device | None = None,
    seed: int = 0, **settings: Any,
) -> Model:  # fmt: skip
    """Make a model of a network of el.models with weights that others publish, once their checksum is compared.

    >>> model = edgelearn.load_published("alexnet_one_column", "alexnet-owt-7be5be79.pth", classes=5)

    Arguments:
    - `name`: one of edgelearn.train.loading.PUBLISHED.
    - `weights`: the file (default: it is looked for in EDGELEARN_DATA/weights and where PyTorch and Keras keep theirs).
      Nothing is downloaded.
    - `classes`: of a new last layer, which is drawn from `seed` (default: the published one of 1,000).
    - `device`, `seed`: as in Model.
    - `settings`: arguments of the network's function, such as input_shape=(160, 160, 3).

    Raises UsageError for an unknown name, DataError, which says where to get it, for a file that is missing or another
    one, FormatError for a damaged one.
    """
    published = find_published(name)
    path = published.find(weights)
    settings = {**published.settings, **settings, **({"classes": classes} if classes else {})}
    network = models.named_network(published.network, **settings)
    head = [parameter.layer for parameter in network.parameters.values() if parameter.role == "kernel"][-1]
    return load(path, network, device=device, seed=seed, skip=(head,) if classes else ())


NetworkLike = Network | Model | str | Path


def as_network(network: NetworkLike, alpha: float = 1.0) -> Network | Model:
    """A Network or a Model as it is; what `find_network` finds by other names, a Model if it has weights.

    Arguments:
    - `alpha`: width multiplier of a network of el.models (default 1).

    Raises RunError for an unknown name, FormatError for a file that can't be read, ExtensionError for a function.
    """
    if isinstance(network, Network | Model):
        return network
    file = find_network(str(network), alpha)
    return Model(file.network, file.network.initialize() | file.weights) if file.weights else file.network


def combined(
    network: NetworkLike,
    combination: Combination | Mapping[str, Any] = Combination(),  # noqa: B008
    optimizer: Optimizer | str | None = None,
    loss: Loss | Losses | None = None,
    *,
    batchnorm: str = "auto",
    allow: Sequence[Encoding] = (),
    metrics: Any = (),
    device: str | Device | None = None,
    seed: int | None = None,
    share_with: Model | None = None,
) -> Model:
    """Make a compiled model of a copy of a network, with the precision, activation memory and trained layers of a
    combination. Its `fit_arguments` are for `fit`, which chooses micro-batch and budget.

    Arguments:
    - `network`: a Network, whose weights are drawn; a Model, whose weights and settings are taken; or what
      `find_network` takes: the name of one of el.models, a model file, "MODULE:FUNCTION".
    - `combination`: a Combination, or a dictionary of its arguments (default: float32, everything stored).
    - `optimizer`, `loss`, `batchnorm`, `allow`, `metrics`: as in Model.compile (default: the model's, or SGD()).
    - `device`, `seed`, `share_with`: as in Model (default: the model's).

    Raises PlanError for a combination that this network can't have.
    """
    network, combination = as_network(network), Combination.of(combination)
    if isinstance(network, Network):
        model = Model(combination.network(network), None, device, seed or 0, share_with)
    else:
        share_with = share_with or (None if device else network)
        own = combination.network(network.network)
        model = Model(own, network.weights, device, network.seed if seed is None else seed, share_with)
        batchnorm = network.batchnorm if batchnorm == "auto" else batchnorm
    given = network if isinstance(network, Model) else model
    model.compile(
        optimizer or given.optimizer, loss or given.loss, metrics=metrics, batchnorm=batchnorm,
        precision=combination.formats, activation_memory=combination.policy, allow=tuple(allow) or given.settings.allow,
    )  # fmt: skip
    return model
