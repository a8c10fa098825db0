"""LeNet-5 (LeCun et al. 1998, "Gradient-based learning applied to document recognition"), and the networks for digits
of two frameworks that used OpenCL: DeepCL (Perkins 2015, github.com/hughperkins/DeepCL) and TransferCL, on phones
(Valery et al. 2017, "CPU/GPU collaboration techniques for transfer learning on mobile devices")."""

from __future__ import annotations

from edgelearn.graph import Network
from edgelearn.ops import AveragePooling2D, Conv2D, Dense, Flatten, MaxPooling2D, ReLU, Softmax, Tanh


def lenet5(input_shape: tuple[int, int, int] = (28, 28, 1), classes: int = 10, softmax: bool = True) -> Network:
    """LeNet-5, figure 2 of the paper, as it is built today: C3 sees all channels, pooling has no weights, and the
    output is a dense layer. The paper's border of two pixels around 28 x 28 is padding.

    Arguments:
    - `classes`: units of the last layer, "output" (default 10).
    - `softmax`: end in a softmax instead of logits (default True).
    """
    network = Network(f"lenet5_{input_shape[0]}", input_shape)
    for name, filters, padding in (("c1", 6, "same"), ("c3", 16, "valid")):
        network.add(name, Conv2D(filters, 5, padding=padding))
        network.add(f"{name}_tanh", Tanh())
        network.add(f"s{int(name[1]) + 1}", AveragePooling2D(2))
    network.add("flatten", Flatten())
    for name, units in (("c5", 120), ("f6", 84)):
        network.add(name, Dense(units))
        network.add(f"{name}_tanh", Tanh())
    network.add("output", Dense(classes))
    if softmax:
        network.add("softmax", Softmax())
    return network


def lenet_deepcl(
    input_shape: tuple[int, int, int] = (28, 28, 1), classes: int = 10, softmax: bool = True, units: int = 150
) -> Network:
    """DeepCL's network for MNIST, 8c5z-relu-mp2-16c5z-relu-mp3-150n-tanh-10n in its words: 8 and 16 filters of 5 x 5,
    pooled by 2 and by 3, and 150 hidden units. Input: pixels less their mean, over their deviation.

    Arguments:
    - `classes`: units of the last layer, "output" (default 10).
    - `softmax`: end in a softmax instead of logits (default True).
    - `units`: of the hidden layer (default 150).
    """
    network = Network(f"lenet_deepcl_{units}_{input_shape[0]}", input_shape)
    for number, (filters, pool) in enumerate(((8, 2), (16, 3)), start=1):
        network.add(f"conv{number}", Conv2D(filters, 5, padding="same"))
        network.add(f"relu{number}", ReLU())
        network.add(f"pool{number}", MaxPooling2D(pool))
    network.add("flatten", Flatten())
    network.add("hidden", Dense(units))
    network.add("tanh", Tanh())
    network.add("output", Dense(classes))
    if softmax:
        network.add("softmax", Softmax())
    return network


def lenet_transfercl(
    input_shape: tuple[int, int, int] = (28, 28, 1), classes: int = 10, softmax: bool = True
) -> Network:
    """TransferCL's network for digits: `lenet_deepcl` with 152 hidden units, a multiple of 8."""
    return lenet_deepcl(input_shape, classes, softmax, units=152)
