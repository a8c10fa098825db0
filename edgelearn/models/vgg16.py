"""VGG16 (Simonyan and Zisserman 2015, arXiv 1409.1556), with the layer names of keras.applications."""

from __future__ import annotations

from edgelearn.graph import Network
from edgelearn.ops import Conv2D, Dense, Dropout, Flatten, LinearOp, MaxPooling2D, ReLU, Softmax

STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # filters, convolutions


def vgg16(
    input_shape: tuple[int, int, int] = (224, 224, 3),
    alpha: float = 1.0,
    classes: int = 1000,
    softmax: bool = True,
    units: int = 4096,
    dropout: float = 0.0,
) -> Network:
    """VGG16, configuration D of table 1 of the paper. Kernels are initialised as in He et al. 2015, so that the whole
    network can be trained at once. Input: RGB minus each channel's mean (Keras's weights were trained on BGR in
    0..255).

    Arguments:
    - `input_shape`: height and width are multiples of 32.
    - `alpha`: width multiplier of the convolutions (default 1).
    - `classes`: units of the last layer, "predictions" (default 1000).
    - `softmax`: end in a softmax instead of logits (default True).
    - `units`: of each of the two hidden dense layers (default 4096).
    - `dropout`: rate after these layers; 0.5 in section 3.1 of the paper; 0 (default, as in Keras): no Dropout layers.
    """
    network = Network(f"vgg16_{alpha:g}_{input_shape[0]}", input_shape)

    def rectified(name: str, op: LinearOp) -> None:
        network.add(name, op)
        network.add(f"{name}_relu", ReLU())

    for stage, (filters, convolutions) in enumerate(STAGES, start=1):
        for number in range(1, convolutions + 1):
            name = f"block{stage}_conv{number}"
            rectified(name, Conv2D(int(filters * alpha), 3, padding="same", kernel_initializer="he_normal"))
        network.add(f"block{stage}_pool", MaxPooling2D())
    network.add("flatten", Flatten())
    for name in ("fc1", "fc2"):
        rectified(name, Dense(units, kernel_initializer="he_normal"))
        if dropout:
            network.add(f"{name}_dropout", Dropout(dropout))
    network.add("predictions", Dense(classes))
    if softmax:
        network.add("softmax", Softmax())
    return network
