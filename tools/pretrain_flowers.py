"""Train the package's sample network for pictures, MobileNet V1 0.25/96, from scratch on drawings of other kinds.

The file that it writes is in the repository, so this is run again only when the network or the drawings change. The
same arguments give the same bits with the same kernels on the same device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
from drawn_shapes import pretraining_pictures
from pretraining import parse

from edgelearn import atomic
from edgelearn.data.pictures import ImageDataset, load_images, normalize
from edgelearn.experiments.flowers import SAMPLE_WEIGHTS
from edgelearn.graph import Network
from edgelearn.interop import safetensors
from edgelearn.models import mobilenet_v1
from edgelearn.ops import AdamW
from edgelearn.train import Callback, CosineDecay, History, Model, ProgressBar
from edgelearn.train.trainer import mini_batches

EPOCHS, PICTURES, SIZE, BATCH_SIZE, LEARNING_RATE, WEIGHT_DECAY = 30, 320, 96, 32, 2e-3, 0.02
_PURPOSE = 12  # keeps this random stream apart from others of the same seed


class Augmented:
    """Square uint8 pictures (n, size, size, 3), each time in one of the square's eight positions, shifted by up to a
    tenth of the size (mirrored beyond the edge), and with its colors in one of their six orders.

    A Source; its choices follow from the seed and the calls before.
    """

    def __init__(self, pictures: np.ndarray, seed: int) -> None:
        self.pictures, self.shape = pictures, pictures.shape
        self.reach = self.shape[1] // 10
        self.rng = np.random.default_rng([seed, _PURPOSE])

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        return normalize(np.stack([self._vary(self.pictures[i]) for i in indices]))

    def _vary(self, picture: np.ndarray) -> np.ndarray:
        size, reach, rng = self.shape[1], self.reach, self.rng
        wide = np.pad(picture, ((reach, reach), (reach, reach), (0, 0)), "reflect")
        top, left = rng.integers(0, 2 * reach + 1, 2)
        varied = wide[top : top + size, left : left + size, rng.permutation(3)]
        varied = np.rot90(varied, rng.integers(4))
        return varied[:, ::-1] if rng.integers(2) else varied


def pretrain(
    epochs: int = EPOCHS,
    pictures: int = PICTURES,
    seed: int = 0,
    size: int = SIZE,
    device: str | None = None,
    callbacks: Sequence[Callback] = (),
    track: Callable[[Sequence], Iterable] = iter,
) -> tuple[dict[str, np.ndarray], History]:
    """Train on `pictures` drawings of each class, `size` pixels wide, watched with a sixteenth as many others. `track`
    goes through the drawing's parts and may show them. Returns the weights below the head, and the history."""
    drawn, held_out = pretraining_pictures(pictures, seed), pretraining_pictures(-(-pictures // 16), seed + 1)
    network = mobilenet_v1((size, size, 3), 0.25, len(drawn.class_names))
    model = Model(network, beginning(network, seed), device, seed)
    steps = epochs * -(-len(drawn) // BATCH_SIZE)
    warmup = steps // 20
    rate = CosineDecay(LEARNING_RATE, steps - warmup, warmup_steps=warmup)
    model.compile(AdamW(rate, WEIGHT_DECAY), batchnorm="batch")
    train = Augmented(draw(drawn, size, track), seed)
    test = normalize(draw(held_out, size, track))
    history = model.fit(
        train, drawn.labels, BATCH_SIZE, epochs, validation_data=(test, held_out.labels), callbacks=callbacks
    )
    return {name: array for name, array in model.weights.items() if not name.startswith("dense/")}, history


def beginning(network: Network, seed: int) -> dict[str, np.ndarray]:
    """Fresh weights from which a deep narrow network learns sooner than from Keras's: depthwise kernels that nearly
    pass their input on, and ReLU6 in the middle of its straight part, so that pictures stay apart through 27 layers."""
    rng = np.random.default_rng([seed, _PURPOSE, 1])
    weights = network.initialize(seed)
    for name, array in weights.items():
        if name.startswith("conv_dw_") and name.endswith("/kernel"):
            array[:] = rng.normal(0, 0.2, array.shape)
            array[1, 1] += 1
        elif name.endswith("_bn/beta"):
            array[:] = 1
    return weights


def draw(dataset: ImageDataset, size: int, track: Callable[[Sequence], Iterable]) -> np.ndarray:
    """All pictures, uint8 (n, size, size, 3). Drawing takes longer than training, so it is done once."""
    pictures = np.empty((len(dataset), size, size, 3), np.uint8)
    for part in track(list(mini_batches(np.arange(len(dataset)), 500))):
        load_images(dataset, part, size, pictures[part[0] : part[-1] + 1])
    return pictures


def main(arguments: Sequence[str] | None = None) -> None:
    from rich.progress import track

    counts = {
        "epochs": (EPOCHS, ""),
        "pictures": (PICTURES, "drawings of each class"),
        "size": (SIZE, "of the pictures"),
    }
    asked = parse("python tools/pretrain_flowers.py", __doc__ or "", counts, SAMPLE_WEIGHTS, arguments)
    drawing = partial(track, description="drawing")
    weights, history = pretrain(**asked.settings, callbacks=[ProgressBar()], track=drawing)
    metadata = {
        "command": asked.command,
        "seed": str(asked.settings["seed"]),
        "held-out accuracy": f"{history.history['val_accuracy'][-1]:.4f}",
    }
    data = safetensors.to_bytes(weights, metadata)
    atomic.write_bytes(asked.output, data)
    print(f"{asked.output}: {len(data) / 1e3:.0f} kB, accuracy on held-out drawings {metadata['held-out accuracy']}")


if __name__ == "__main__":
    main()
