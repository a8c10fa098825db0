"""Networks converted to other frameworks, in processes of their own, compared with the float64 references."""

import os

import numpy as np
from pointwise_networks import POINTWISE

from edgelearn import models, ops
from edgelearn.graph import Network, add_bidirectional
from edgelearn.interop.weights import fold_batchnorm
from edgelearn.models import language
from tests.networks import chain

STEP = 1e-8


def every_kind_of_padding() -> Network:
    net = chain(
        "padded", (9, 11, 4), conv=ops.Conv2D(8, 3, 2, ((1, 0), (0, 2)), groups=2),
        max=ops.MaxPooling2D(3, 2, ((0, 1), (1, 1))), average=ops.AveragePooling2D(2, 1, ((1, 0), (0, 1))),
        same=ops.AveragePooling2D(2, 1, "same"), zeros=ops.ZeroPadding2D(((1, 0), (0, 1))), more=ops.PadChannels(1, 3),
        some=ops.SliceChannels(1, 8),
    )  # fmt: skip
    net.add("both", ops.Concatenate(), "some", "zeros")
    net.add("flat", ops.Flatten())
    net.add("image", ops.Reshape((1, -1, 16)))
    net.add("mean", ops.Mean(2))
    net.add("again", ops.Flatten())
    net.add("dense", ops.Dense(5))
    net.add("softmax", ops.Softmax())
    return net


def of_the_last_axis() -> Network:
    """Dense layers on images and on sequences, alone and with what is fused into them."""
    net = Network("last axis", (4, 5, 6))
    net.add("pixels", ops.Dense(9))
    net.add("bn", ops.BatchNormalization())
    net.add("relu", ops.ReLU())
    net.add("sequence", ops.Reshape((20, 9)))
    net.add("wide", ops.Dense(18, use_bias=False))
    net.add("tanh", ops.Tanh())
    net.add("narrow", ops.Dense(1))
    net.add("flat", ops.Flatten())
    net.add("dense", ops.Dense(5))
    net.add("softmax", ops.Softmax())
    return net


def overwritten() -> Network:
    """A ReLU whose input is read by a shortcut, too."""
    net = chain(
        "shortcut", (4, 4, 4), conv=ops.Conv2D(4, 3, padding="same"), bn=ops.BatchNormalization(), relu=ops.ReLU()
    )
    net.add("add", ops.Add(), "bn", "relu")
    net.add("flat", ops.Flatten())
    net.add("dense", ops.Dense(3))
    return net


def rearranged(mirror: str = "symmetric") -> Network:
    """Axes in other orders, sliced, mirrored and reduced."""
    net = Network("rearranged", (5, 6, 4))
    net.add("conv", ops.Conv2D(8, 3))
    net.add("shuffle", ops.Reshape((3, 4, 2, 4)))
    net.add("shuffled", ops.Transpose((1, 2, 4, 3)))
    net.add("image", ops.Reshape((3, 4, 8)))
    net.add("turned", ops.Transpose((2, 1, 3)))
    net.add("framed", ops.Pad(((1, 2), (0, 2), (1, 0)), "reflect"))
    net.add("wider", ops.Pad(((0, 1), (2, 0), (0, 1)), mirror))
    net.add("padded", ops.Pad(((1, 0), (0, 1), (2, 0)), value=0.5))
    net.add("some", ops.Slice((5, 1, 1), (3, -1, 8), (-2, 2, 1)))
    net.add("softmax", ops.Softmax())
    net.add("sum", ops.Sum((1, 3), keepdims=False), "some")
    net.add("max", ops.Max(3, keepdims=False), "some")
    net.add("matrix", ops.Transpose((2, 1)))
    net.add("mean", ops.Mean(2, keepdims=False), "matrix")
    net.add("largest", ops.GlobalMaxPooling2D(), "softmax")
    net.add("all", ops.Concatenate(), "sum", "mean", "largest")
    net.add("dense", ops.Dense(5))
    return net


def enlarged() -> Network:
    """Transposed convolutions, depthwise ones that multiply channels, and every convention of resizing."""
    net = Network("enlarged", (4, 5, 3))
    net.add("same", ops.Conv2DTranspose(6, 3, 2, "same"))
    net.add("same_bn", ops.BatchNormalization())
    net.add("valid", ops.Conv2DTranspose(4, (2, 3), (1, 2), output_padding=(0, 1), use_bias=False))
    net.add("cut", ops.Conv2DTranspose(5, 3, (1, 2), ((1, 0), (0, 1)), (0, 1)))
    net.add("multiplied", ops.DepthwiseConv2D(3, 2, "same", depth_multiplier=2))
    net.add("multiplied_bn", ops.BatchNormalization())
    net.add("smaller", ops.AdaptiveAveragePooling2D((4, 5)))
    net.add("bilinear", ops.Resize((7, 3)))
    net.add("corners", ops.Resize((5, 6), coordinates="align_corners"))
    net.add("asymmetric", ops.Resize((7, 5), coordinates="asymmetric"))
    net.add("nearest", ops.Resize((3, 8), "nearest"))
    net.add("old_nearest", ops.Resize((5, 7), "nearest", "asymmetric", "floor"))
    net.add("onnx_nearest", ops.Resize((6, 6), "nearest", rounding="round_prefer_floor"))
    net.add("corner_nearest", ops.Resize((5, 9), "nearest", "align_corners", "round_prefer_ceil"))
    net.add("lower_nearest", ops.Resize((8, 6), "nearest", "half_pixel", "floor"))
    net.add("scaled", ops.Resize((7, 9), scale=(1.2, 1.6)))
    net.add("up", ops.UpSampling2D((2, 1)))
    net.add("up_bilinear", ops.UpSampling2D((1, 2), "bilinear"))
    net.add("flat", ops.Flatten())
    net.add("dense", ops.Dense(3))
    return net


def normalized() -> Network:
    """Normalisation of groups, layers and neighbouring channels."""
    net = Network("normalized", (4, 5, 3))
    net.add("conv", ops.Conv2D(12, 3, padding="same"))
    net.add("groups", ops.GroupNormalization(groups=3))
    net.add("each", ops.GroupNormalization(1e-5, scale=False, groups=-1))
    net.add("layer", ops.LayerNormalization())
    net.add("rows", ops.LayerNormalization(1e-5, center=False, axis=(-1, 2)))
    net.add("neighbours", ops.LocalResponseNormalization(5, 0.5, average=True))
    net.add("even", ops.LocalResponseNormalization(4, 0.2, 0.5, 2.0))
    net.add("all", ops.LayerNormalization(axis=(1, 2, 3)))
    net.add("matrix", ops.Reshape((20, 12)))
    net.add("matrix_groups", ops.GroupNormalization(groups=2))
    net.add("flat", ops.Flatten())
    net.add("vector", ops.LayerNormalization())
    net.add("dense", ops.Dense(3))
    return net


def over_steps() -> Network:
    """Convolutions, pooling and normalisation of sequences."""
    net = chain(
        "over steps", (24, 3), causal=ops.Conv1D(8, 3, padding="causal", dilation_rate=2), bn=ops.BatchNormalization(),
        relu=ops.ReLU(), strided=ops.Conv1D(6, 4, 2, "same", groups=2), each=ops.DepthwiseConv1D(3, padding=(0, 2)),
        root=ops.RMSNormalization(), max=ops.MaxPooling1D(2), wide=ops.Conv1DTranspose(5, 3, 2, (1, 0)),
        average=ops.AveragePooling1D(3, 2, "same"), twice=ops.UpSampling1D(),
    )  # fmt: skip
    net.add("mean", ops.GlobalAveragePooling1D())
    net.add("largest", ops.GlobalMaxPooling1D(), "twice")
    net.add("both", ops.Concatenate(), "mean", "largest")
    net.add("dense", ops.Dense(3))
    return net


def recurrent() -> Network:
    """LSTM and GRU in both directions, with a mask and a state to begin with, all computed from the input."""
    net = Network("recurrent", (7, 3))
    add_bidirectional(net, "both", ops.LSTM(5, return_sequences=True), "input")
    ones = net.add("ones", ops.Slice((0, 0), (-1, 1)), "input")
    above = net.add("above", ops.Flatten(), net.add("sure", ops.Square(), ones))
    zero = net.add("limit", ops.Constant((7,)), above)
    mask = net.add("mask", ops.Greater(), above, zero)
    state = net.add("state", ops.Slice((0, 0), (2, 4)), "both")
    net.add("all", ops.LSTM(4, True, True), "both", state)
    net.add("masked", ops.LSTM(4, True), "both", mask)
    net.add("gated", ops.GRU(6, True, use_bias=False), "masked", mask)
    net.add("last", ops.GRU(5, False, True))
    net.add("flat", ops.Flatten())
    net.add("more", ops.GRU(3, go_backwards=True), "all", net.add("row", ops.Slice((1, 0), (1, 3)), "all"))
    net.add("ends", ops.Concatenate(), "flat", "more")
    net.add("dense", ops.Dense(3))
    return net.freeze("limit")


def heads() -> Network:
    """Attention of several heads with rotary positions, shared keys and a mask."""
    net = Network("heads", (6, 5))
    net.add("query", ops.Dense(16))
    net.add("key", ops.Dense(8), "input")
    net.add("value", ops.Dense(8), "input")
    net.add("turned", ops.RotaryEmbedding(4), net.add("placed", ops.Bias((6, 16)), "query"))
    net.add("turned_key", ops.RotaryEmbedding(2), "key")
    net.add("causal", ops.Attention(4, 2, causal=True), "turned", "turned_key", "value")
    row = net.add(
        "row", ops.Flatten(), net.add("squares", ops.Square(), net.add("one", ops.Slice((0, 0), (-1, 1)), "input"))
    )
    mask = net.add("mask", ops.Greater(), row, net.add("limit", ops.Constant((6,)), row))
    net.add("masked", ops.Attention(2, scale=0.3), "causal", "causal", "causal", mask)
    net.add("neighbours", ops.RotaryEmbedding(2, 100.0, True, 3))
    net.add("flat", ops.Flatten())
    net.add("dense", ops.Dense(3))
    return net.freeze("limit")


def grouped() -> Network:
    """Layers that Keras doesn't have: transposed convolutions in groups."""
    return chain(
        "grouped", (4, 5, 6), transposed=ops.Conv2DTranspose(9, 3, 2, "same", groups=3), flat=ops.Flatten(),
        dense=ops.Dense(3),
    )  # fmt: skip


LANGUAGE = {  # which read numbers of words
    "gpt": lambda: language.gpt(9, 5, 1, 2, 8),
    "bert": lambda: language.bert(language.BertSizes(9, 2, 2, 8, 12, 6), 5, 3, 0.0, 1),
    "llama": lambda: language.llama(language.LlamaSizes(9, 1, 12, 10, 3, 1), 5),
}
NETWORKS = {
    **LANGUAGE,
    "grouped": grouped,
    "over steps": over_steps,
    "recurrent": recurrent,
    "heads": heads,
    **POINTWISE,
    "normalized": normalized,
    "enlarged": enlarged,
    "last axis": of_the_last_axis,
    "rearranged": rearranged,
    "padded": every_kind_of_padding,
    "shortcut": overwritten,
    "mobilenet_v1": lambda: models.mobilenet_v1((32, 32, 3), 0.25, 5),
    "bcresnet": lambda: models.bcresnet(dropout=0.0),
    "mobilenet_v2_reversible": lambda: models.mobilenet_v2_reversible((32, 32, 3), 0.25, 5),
}


def reference(network: Network, weights, x, batchnorm: str) -> np.ndarray:
    values = {"input": x}
    for node in network.nodes.values():
        own = {name.split("/")[1]: array for name, array in weights.items() if name.startswith(f"{node.owner}/")}
        options = {"batch": batchnorm == "batch"} if isinstance(node.op, ops.BatchNormalization) else {}
        values[node.name] = node.op.reference_forward([values[name] for name in node.inputs], own, **options)
    return values[network.output.name]


class Converted:
    """Compares outputs, weights and gradients; subclasses convert."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def inputs(self, name: str, count: int) -> np.ndarray:
        """Examples of a network; of words some end in zeros."""
        shape = (count, *NETWORKS[name]().input_shape)
        if name not in LANGUAGE:
            return self.rng.standard_normal(shape)
        words = self.rng.integers(1, 9, shape)
        words[0, -2:] = 0
        return words

    def outputs(self, text: str, seed: int, x: dict[str, list], logits: bool) -> dict[str, list]:
        """Outputs of a network with several of them, by name; `seed` draws its weights."""
        network = Network.from_json(text)
        arrays = {name: np.float32(array) for name, array in x.items()}
        found = self.several(network, network.initialize(seed), arrays, logits)
        return {name: np.asarray(array).tolist() for name, array in found.items()}

    def refused(self) -> None:
        network = Network("unknown", (2, 2, 1))
        network.add("unknown", Unknown())
        self.run(network, {}, np.zeros((1, 2, 2, 1)), np.zeros((1, 4)), "moving")

    def errors(self, name: str, batchnorm: str) -> dict[str, float]:
        """Largest differences: outputs, also after folding BatchNormalization, weights read back, and directional
        derivatives of a scalar by all weights at once."""
        network, self.rng = NETWORKS[name](), np.random.default_rng(0)  # the same, whatever was called before
        weights = {k: a.astype(np.float64) for k, a in network.initialize(0).items()}
        moved = {k for k, a in weights.items() if a.ndim < 3 or not k.endswith("/kernel")}
        weights = {k: a + 0.1 * self.rng.random(a.shape) if k in moved else a for k, a in weights.items()}
        x = self.inputs(name, 3)
        y = reference(network, weights, x, batchnorm)
        dy = self.rng.standard_normal(y.shape)
        outputs, gradients, read = self.run(network, weights, x, dy, batchnorm)
        found = {"outputs": np.abs(outputs - y).max(), "names": float(set(gradients) != network.trainable)}
        kept = [n for n in read if batchnorm == "moving" or not n.split("/")[1].startswith("moving")]
        found["weights"] = max(np.abs(read[n] - weights[n]).max() for n in kept)
        if "reversible" not in name:  # what is rounded has steps
            slope = {k: self.rng.standard_normal(a.shape) for k, a in weights.items() if k in network.trainable}
            moved = [{k: a + s * STEP * slope.get(k, 0) for k, a in weights.items()} for s in (1, -1)]
            up, down = (float((reference(network, w, x, batchnorm) * dy).sum()) for w in moved)
            expected, actual = (up - down) / (2 * STEP), sum(float((gradients[k] * s).sum()) for k, s in slope.items())
            found["gradients"] = abs(actual - expected) / abs(expected)
        if batchnorm == "moving":
            folded = fold_batchnorm(network, weights)
            found["folded"] = np.abs(reference(*folded, x, batchnorm) - y).max()
        return {key: float(value) for key, value in found.items()}


class Unknown(ops.Flatten):
    """An op that no converter knows."""


class Torch(Converted):
    mirrored = False

    def run(self, network, weights, x, dy, batchnorm):
        import torch

        from edgelearn.interop.to_torch import to_torch

        net = to_torch(network, weights, batchnorm=batchnorm, mirrored=self.mirrored).train()
        y = net(net.encode(x))
        (y * torch.from_numpy(dy)).sum().backward()
        return net.decode(y), net.gradients(), net.weights()

    def several(self, network, weights, x, logits):
        import torch

        from edgelearn.interop.to_torch import TorchNetwork

        twin = TorchNetwork(network, weights, logits=logits)
        with torch.no_grad():
            return {name: twin.decode(y) for name, y in twin({name: twin.encode(a) for name, a in x.items()}).items()}


class MirroredTorch(Torch):
    mirrored = True


class Keras(Converted):
    file = ""  # that the model is written to and read from before it is run

    def file_errors(self, name: str, path: str) -> dict[str, float]:
        """As `errors`, after a way through the file, beside which PATH.npz has inputs, outputs and weights."""
        self.file = path
        try:
            return self.errors(name, "batch")
        finally:
            self.file = ""

    def _through_the_file(self, network, weights, x):
        import keras

        from edgelearn.interop.to_keras import to_keras

        to_keras(network, weights, "batch", portable=True).save(self.file)
        model = keras.models.load_model(self.file)
        np.savez(
            f"{self.file}.npz", x=x, y=np.asarray(model(x)), **{k.replace("/", "|"): a for k, a in weights.items()}
        )
        return model

    def exported(self, name: str, path: str) -> float:
        """Largest difference of a network's outputs after a way through a .keras file."""
        import keras

        from edgelearn.interop import ModelFile, write_model

        network = NETWORKS[name]()
        weights = network.initialize(0)
        write_model(path, ModelFile(network, weights, class_names=("a", "b")))
        x = self.rng.standard_normal((2, *network.input_shape))
        y = keras.models.load_model(path).predict(x, verbose=0)
        return float(np.abs(y - reference(network, weights, x, "moving")).max())

    def __init__(self) -> None:
        super().__init__()
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        import keras

        keras.backend.set_floatx("float64")

    def several(self, network, weights, x, logits):
        from edgelearn.interop.to_keras import to_keras

        made = to_keras(network, weights, logits=logits)
        return {name: np.asarray(y) for name, y in made(x).items()}

    def run(self, network, weights, x, dy, batchnorm):
        import tensorflow as tf

        from edgelearn.interop.to_keras import keras_variables, to_keras
        from edgelearn.interop.weights import in_keras_order

        model = self._through_the_file(network, weights, x) if self.file else to_keras(network, weights, batchnorm)
        variables = keras_variables(model, network)
        trained = {name: variables[name] for name in variables if name in network.trainable}
        with tf.GradientTape() as tape:
            y = model(x, training=True)
            total = tf.reduce_sum(y * dy)
        gradients = tape.gradient(total, [variable.value for variable in trained.values()])

        def ours(name, array):
            array = in_keras_order(network, name, tf.convert_to_tensor(array).numpy())
            return np.reshape(array, network.parameters[name].weight.shape)

        found = {name: ours(name, gradient) for name, gradient in zip(trained, gradients, strict=True)}
        return y.numpy(), found, {name: ours(name, variable) for name, variable in variables.items()}
