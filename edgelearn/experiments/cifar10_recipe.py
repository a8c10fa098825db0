"""CIFAR-10 from scratch on 20,000 pictures with at most 0.5 million parameters, as a user would write it, or with a
larger network.

`train_torch` trains the same network in PyTorch, from the same weights, on the same examples in the same order.
Settings are chosen by `for_validation`, which trains on four fifths of the training pictures and tests on the others;
the test pictures are for the last run alone.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np

from edgelearn import atomic
from edgelearn.data.cifar10 import CLASSES, DEVIATION, MEAN, SIZE, load_cifar10, standardized
from edgelearn.data.draws import FlipAndCrop, Padding, epoch_order, stratified_split
from edgelearn.data.pictures import ImageDataset, load_images
from edgelearn.graph import Network
from edgelearn.models import mobilenet_v2_cifar, resnet18_cifar
from edgelearn.ops import (
    SGD,
    Add,
    BatchNormalization,
    Conv2D,
    Dense,
    GlobalAveragePooling2D,
    ReLU,
    Softmax,
    SoftmaxCrossEntropy,
)
from edgelearn.train import CosineDecay, Model, PictureSource, VariedSource
from edgelearn.train.trainer import ahead, mini_batches

EPOCHS, BATCH_SIZE, RATE, WEIGHT_DECAY, SMOOTHING = 60, 128, 0.1, 5e-3, 0.1
STAGES = ((32, 2), (64, 2), (128, 1))  # channels and residual blocks


@dataclass(frozen=True)
class Pictures:
    """Decoded pictures, uint8 (n, 32, 32, 3), and labels, of the training and of the test side."""

    train: np.ndarray
    train_labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray


def network() -> Network:
    """A residual network (He et al. 2016) of 0.4 million parameters, wide and shallow: a step has few launches."""
    net = Network("cifar10_recipe", (SIZE, SIZE, 3))

    def convolution(name: str, channels: int, size: int = 3, strides: int = 1, *inputs: str) -> str:
        sides = (size // 2, size // 2)
        op = Conv2D(channels, size, strides, (sides, sides), use_bias=False, kernel_initializer="he_normal")
        net.add(f"{name}_conv", op, *inputs)
        return net.add(f"{name}_bn", BatchNormalization(momentum=0.9, epsilon=1e-5))

    convolution("stem", STAGES[0][0])
    last = net.add("stem_relu", ReLU())
    for stage, (channels, blocks) in enumerate(STAGES, 1):
        for block in range(1, blocks + 1):
            name, strides = f"stage{stage}_block{block}", 2 if block == 1 and stage > 1 else 1
            shortcut = convolution(f"{name}_0", channels, 1, strides, last) if strides == 2 else last
            convolution(f"{name}_1", channels, 3, strides, last)
            net.add(f"{name}_1_relu", ReLU())
            residual = convolution(f"{name}_2", channels)
            net.add(f"{name}_add", Add(), shortcut, residual)
            last = net.add(f"{name}_relu", ReLU())
    net.add("pool", GlobalAveragePooling2D())
    net.add("classes", Dense(len(CLASSES)))
    net.add("softmax", Softmax())
    return net


NETWORKS: dict[str, Callable[[], Network]] = {
    "small": network, "resnet18_cifar": resnet18_cifar, "mobilenet_v2_cifar": mobilenet_v2_cifar,
}  # fmt: skip


def optimizer(pictures: int, epochs: int) -> SGD:
    """Momentum, weight decay, and a rate that grows for two epochs and then falls to 0 along a cosine, where an average
    of the weights would be the weights. The decay isn't part of the gradient: PyTorch's 5e-4 at momentum 0.9 is 5e-3.
    """
    steps = ceil(pictures / BATCH_SIZE)
    warmup = min(2, epochs - 1) * steps
    rate = CosineDecay(RATE, max(1, epochs * steps - warmup), warmup_steps=warmup)
    return SGD(rate, momentum=0.9, nesterov=True, weight_decay=WEIGHT_DECAY)


def train(
    pictures: Pictures, seed: int, epochs: int, device: str | None = None, padding: Padding = "constant",
    compute: str = "fp32", models: Path | None = None, name: str = "small",
) -> dict:  # fmt: skip
    """Train with one seed; returns accuracy and times. `padding`: the mode of FlipAndCrop; `compute`: as in
    Model.compile; `models`: a folder to save the network in, as cifar10_SEED.safetensors; `name`: of NETWORKS."""
    if models:  # before an hour of training, not after it
        models.mkdir(parents=True, exist_ok=True)
    model = Model(NETWORKS[name](), device=device, seed=seed)
    model.compile(optimizer(len(pictures.train), epochs), SoftmaxCrossEntropy(SMOOTHING), compute=compute)
    # Mirrored and shifted, anew in each epoch.
    examples = VariedSource(pictures.train, FlipAndCrop(seed, mode=padding), standardized)
    start = time.perf_counter()
    history = model.fit(examples, pictures.train_labels, BATCH_SIZE, epochs).history
    seconds = time.perf_counter() - start
    test = PictureSource(len(pictures.test), SIZE, lambda indices, size: pictures.test[indices], standardized)
    accuracy = model.evaluate(test, pictures.test_labels, 500)["accuracy"]
    if models:
        model.class_names, model.preprocessing = CLASSES, {"size": SIZE, "mean": MEAN, "deviation": DEVIATION}
        model.save(models / f"cifar10_{seed}.safetensors")
    steps = ceil(len(pictures.train) / BATCH_SIZE)
    return {
        "seed": seed, "accuracy": accuracy, "loss": history["loss"], "seconds": seconds, "device": model.device.id,
        "ms_per_step": 1e3 * float(np.median(history["seconds"])) / steps, "parameters": model.network.count(),
    }  # fmt: skip


def train_torch(pictures: Pictures, seed: int, epochs: int, device: str | None = None, name: str = "small") -> dict:
    """The same training in PyTorch: network, weights, examples in their order, and update; returns as `train`."""
    import torch
    from torch.nn import functional as F

    from edgelearn.interop.to_torch import TorchNetwork

    torch.backends.cudnn.allow_tf32 = False  # float32, as there
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    net = NETWORKS[name]()
    module = TorchNetwork(net, net.initialize(seed), batchnorm="batch", logits=True).to(where)
    rule, count, updates = optimizer(len(pictures.train), epochs), len(pictures.train), 0
    parameters = [(name, module.tensor(name)) for name in sorted(net.trainable)]
    velocities = [torch.zeros_like(tensor) for _, tensor in parameters]
    examples = VariedSource(pictures.train, FlipAndCrop(seed), standardized)
    losses, times = [], []
    start = time.perf_counter()
    for epoch in range(epochs):
        began, total = time.perf_counter(), torch.zeros((), device=where)
        source, order = examples.at_epoch(epoch), epoch_order(count, seed, epoch)
        for part, x in ahead(mini_batches(order, BATCH_SIZE), source.__getitem__):
            logits = module(module.encode(x).to(where))
            labels = torch.from_numpy(pictures.train_labels[part].astype(np.int64)).to(where)
            loss = F.cross_entropy(logits, labels, label_smoothing=SMOOTHING)
            module.zero_grad(set_to_none=True)
            loss.backward()
            rate = rule.learning_rate(updates)
            with torch.no_grad():
                for (name, w), v in zip(parameters, velocities, strict=True):
                    v.mul_(rule.momentum).sub_(w.grad, alpha=rate)
                    decay = rule.weight_decay if net.parameters[name].weight.decays else 0.0
                    w.mul_(1 - rate * decay).add_(v, alpha=rule.momentum).sub_(w.grad, alpha=rate)
                total += loss * len(part)
            updates += 1
        losses.append(float(total) / count)  # waits for the device
        times.append(time.perf_counter() - began)
    seconds = time.perf_counter() - start
    module.batchnorm, correct = "moving", 0
    with torch.no_grad():
        for part in mini_batches(np.arange(len(pictures.test)), 500):
            predicted = module(module.encode(standardized(pictures.test[part])).to(where)).argmax(1).cpu().numpy()
            correct += int((predicted == pictures.test_labels[part]).sum())
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else str(where)
    return {
        "seed": seed, "accuracy": correct / len(pictures.test), "loss": losses, "seconds": seconds,
        "device": f"{name}, PyTorch {torch.__version__}", "parameters": net.count(),
        "ms_per_step": 1e3 * float(np.median(times)) / ceil(count / BATCH_SIZE),
    }  # fmt: skip


def write(path: str) -> None:
    """Write the pictures of EDGELEARN_DATA, as encoded there, and the labels into one file without code."""
    arrays = {}
    for side in ("train", "test"):
        dataset = load_cifar10(side, download=False)
        items = [item for item in dataset.items if isinstance(item, bytes)]
        arrays[f"{side}_bytes"] = np.frombuffer(b"".join(items), np.uint8)
        arrays[f"{side}_ends"] = np.cumsum([len(item) for item in items])
        arrays[f"{side}_labels"] = dataset.labels.astype(np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    atomic.write_bytes(path, buffer.getvalue())


def read(path: str | None) -> Pictures:
    """Read that file, or EDGELEARN_DATA without one, and decode the pictures once."""
    sides: list[np.ndarray] = []
    for side in ("train", "test"):
        dataset = load_cifar10(side, download=False) if path is None else _encoded(path, side)
        sides += [load_images(dataset, range(len(dataset)), SIZE), dataset.labels]
    return Pictures(*sides)


def _encoded(path: str, side: str) -> ImageDataset:
    with np.load(path, allow_pickle=False) as file:
        ends, data = file[f"{side}_ends"], file[f"{side}_bytes"].tobytes()
        items = [data[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
        return ImageDataset("cifar10", "folder", f"CIFAR-10 of {path}", CLASSES, file[f"{side}_labels"], items)


def for_validation(pictures: Pictures) -> Pictures:
    """Four fifths of the training pictures to train with, the others to test with."""
    first, second = stratified_split(pictures.train_labels, 0.8)
    x, y = pictures.train, pictures.train_labels
    return Pictures(x[first], y[first], x[second], y[second])
