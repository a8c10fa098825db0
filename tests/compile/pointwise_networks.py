"""Small networks of activations, arithmetic and products of computed values."""

from edgelearn.graph import Network
from edgelearn.ops import (
    ELU,
    GELU,
    Abs,
    Add,
    BatchNormalization,
    Bias,
    BroadcastTo,
    Clip,
    Constant,
    Conv2D,
    Dense,
    Divide,
    Exp,
    Flatten,
    GlobalAveragePooling2D,
    Greater,
    HardSigmoid,
    HardSwish,
    LeakyReLU,
    Less,
    Log,
    LogSoftmax,
    MatMul,
    Maximum,
    Mean,
    Minimum,
    Mish,
    Multiply,
    Pad,
    PReLU,
    Reciprocal,
    Rescaling,
    Reshape,
    Rsqrt,
    Scale,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Sqrt,
    Square,
    Subtract,
    Take,
    Tanh,
    Transpose,
    Where,
)

CLASSES = 5


def fused() -> Network:
    """Activations in the kernels before them."""
    net = Network("fused", (5, 6, 3))
    for number, op in enumerate((ELU(), Tanh(), LeakyReLU(), Clip(-1, 2))):
        net.add(f"conv{number}", Conv2D(20, 1))
        if number % 2:
            net.add(f"bn{number}", BatchNormalization())
        net.add(f"activation{number}", op)
    return head(net)


def unfused() -> Network:
    """Activations with launches of their own."""
    net = Network("unfused", (5, 6, 3))
    for number, op in enumerate((SiLU(), HardSwish(), GELU(), GELU(True), Mish(), Sigmoid(), HardSigmoid())):
        net.add(f"conv{number}", Conv2D(20, 1))
        net.add(f"activation{number}", op)
    net.add("conv", Conv2D(17, 1))
    net.add("softplus", Softplus())
    for number, op in enumerate((Log(), Square(), Abs(), Rescaling(0.3, 1), Sqrt(), Reciprocal(), Rsqrt(), Exp())):
        net.add(f"function{number}", op)
    return head(net)


def weighed() -> Network:
    """Squeeze-and-excitation, and operands and weights of every shape."""
    net = Network("weighed", (5, 6, 3))
    net.add("stem", Conv2D(20, 1))
    x = net.add("tanh", Tanh())
    net.add("squeezed", GlobalAveragePooling2D())
    net.add("pixel", Reshape((1, 1, 20)))
    net.add("gate_conv", Conv2D(20, 1))
    gate = net.add("gate", HardSigmoid())
    net.add("excited", Multiply(), x, gate)
    net.add("map_conv", Conv2D(1, 1))
    net.add("map", Sigmoid())
    net.add("attended", Multiply(), "map", x)
    net.add("features", Dense(20), "squeezed")
    net.add("shifted", Add(), "attended", "features", "excited")
    net.add("less", Subtract(), "shifted", "gate_conv")
    net.add("larger", Maximum(), "less", x)
    net.add("smaller", Minimum(), "larger", "features")
    net.add("positive", Exp(), "gate_conv")
    net.add("share", Divide(), "smaller", "positive")
    for number, op in enumerate((Scale(), Bias((1,)), PReLU((1, 2)), Scale((5, 6, 1)), Bias((5, 1, 20)), PReLU())):
        net.add(f"weight{number}", op)
    return head(net)


def attended() -> Network:
    """Attention over pixels, values chosen by a comparison, and rows taken by number."""
    net = Network("attended", (4, 5, 3))
    net.add("stem", Conv2D(18, 1))
    rows = net.add("rows", Reshape((20, 18)))
    net.add("keys", Transpose((2, 1)))
    net.add("scores", MatMul(), rows, "keys")
    net.add("scaled", Rescaling(18**-0.5))
    net.add("attention", Softmax())
    mixed = net.add("mixed", MatMul(), "attention", rows)
    net.add("limit", Constant((1, 18)), rows)
    net.add("above", Greater(), mixed, "limit")
    net.add("chosen", Where(), "above", mixed, rows)
    net.add("below", Less(), "chosen", mixed)
    net.add("weighed", Multiply(), "chosen", "below")
    net.add("sum", Add(), "weighed", "chosen")
    net.add("padded", Pad(((2, 1), (0, 2)), "edge"))
    net.add("numbers", Constant((5,)))
    net.add("taken", Take(), "padded", "numbers")
    net.add("mean", Mean(1))
    net.add("repeated", BroadcastTo((5, 20)))
    net.add("product", Multiply(), "taken", "repeated")
    net.add("logarithms", LogSoftmax())
    net.add("flat", Flatten())
    net.add("dense", Dense(CLASSES))
    return net.freeze("limit", "numbers")  # which have no gradient


def head(net: Network) -> Network:
    net.add("last", Conv2D(9, 1))
    net.add("flat", Flatten())
    net.add("dense", Dense(CLASSES))
    return net


POINTWISE = {f.__name__: f for f in (fused, unfused, weighed, attended)}
