"""Small networks of activations, arithmetic and products of computed values."""

from edgelearn import ops
from edgelearn.graph import Network
from edgelearn.ops import Conv2D
from tests.networks import add

CLASSES = 5


def fused() -> Network:
    """Activations in the kernels before them."""
    net = Network("fused", (5, 6, 3))
    for number, op in enumerate((ops.ELU(), ops.Tanh(), ops.LeakyReLU(), ops.Clip(-1, 2))):
        net.add(f"conv{number}", Conv2D(20, 1))
        if number % 2:
            net.add(f"bn{number}", ops.BatchNormalization())
        net.add(f"activation{number}", op)
    return head(net)


def unfused() -> Network:
    """Activations with launches of their own."""
    net = Network("unfused", (5, 6, 3))
    first = (ops.SiLU(), ops.HardSwish(), ops.GELU(), ops.GELU(True), ops.Mish(), ops.Sigmoid(), ops.HardSigmoid())
    for number, op in enumerate(first):
        net.add(f"conv{number}", Conv2D(20, 1))
        net.add(f"activation{number}", op)
    net.add("conv", Conv2D(17, 1))
    net.add("softplus", ops.Softplus())
    functions = (ops.Log(), ops.Square(), ops.Abs(), ops.Rescaling(0.3, 1), ops.Sqrt(), ops.Reciprocal(), ops.Rsqrt())
    for number, op in enumerate((*functions, ops.Exp())):
        net.add(f"function{number}", op)
    return head(net)


def weighed() -> Network:
    """Squeeze-and-excitation, and operands and weights of every shape."""
    net = Network("weighed", (5, 6, 3))
    net.add("stem", Conv2D(20, 1))
    x = net.add("tanh", ops.Tanh())
    net.add("squeezed", ops.GlobalAveragePooling2D())
    net.add("pixel", ops.Reshape((1, 1, 20)))
    net.add("gate_conv", Conv2D(20, 1))
    gate = net.add("gate", ops.HardSigmoid())
    add(
        net, ("excited", ops.Multiply(), x, gate), ("map_conv", Conv2D(1, 1)), ("map", ops.Sigmoid()),
        ("attended", ops.Multiply(), "map", x), ("features", ops.Dense(20), "squeezed"),
        ("shifted", ops.Add(), "attended", "features", "excited"), ("less", ops.Subtract(), "shifted", "gate_conv"),
        ("larger", ops.Maximum(), "less", x), ("smaller", ops.Minimum(), "larger", "features"),
        ("positive", ops.Exp(), "gate_conv"), ("share", ops.Divide(), "smaller", "positive"),
    )  # fmt: skip
    weights = ops.Scale(), ops.Bias((1,)), ops.PReLU((1, 2)), ops.Scale((5, 6, 1)), ops.Bias((5, 1, 20))
    for number, op in enumerate((*weights, ops.PReLU())):
        net.add(f"weight{number}", op)
    return head(net)


def attended() -> Network:
    """Attention over pixels, values chosen by a comparison, and rows taken by number."""
    net = Network("attended", (4, 5, 3))
    net.add("stem", Conv2D(18, 1))
    rows = net.add("rows", ops.Reshape((20, 18)))
    net.add("keys", ops.Transpose((2, 1)))
    net.add("scores", ops.MatMul(), rows, "keys")
    net.add("scaled", ops.Rescaling(18**-0.5))
    net.add("attention", ops.Softmax())
    mixed = net.add("mixed", ops.MatMul(), "attention", rows)
    add(
        net, ("limit", ops.Constant((1, 18)), rows), ("above", ops.Greater(), mixed, "limit"),
        ("chosen", ops.Where(), "above", mixed, rows), ("below", ops.Less(), "chosen", mixed),
        ("weighed", ops.Multiply(), "chosen", "below"), ("sum", ops.Add(), "weighed", "chosen"),
        ("padded", ops.Pad(((2, 1), (0, 2)), "edge")), ("numbers", ops.Constant((5,))),
        ("taken", ops.Take(), "padded", "numbers"), ("mean", ops.Mean(1)), ("repeated", ops.BroadcastTo((5, 20))),
        ("product", ops.Multiply(), "taken", "repeated"), ("logarithms", ops.LogSoftmax()), ("flat", ops.Flatten()),
        ("dense", ops.Dense(CLASSES)),
    )  # fmt: skip
    return net.freeze("limit", "numbers")  # which have no gradient


def head(net: Network) -> Network:
    net.add("last", Conv2D(9, 1))
    net.add("flat", ops.Flatten())
    net.add("dense", ops.Dense(CLASSES))
    return net


POINTWISE = {f.__name__: f for f in (fused, unfused, weighed, attended)}
