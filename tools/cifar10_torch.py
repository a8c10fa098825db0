"""The recipe of cifar10_recipe.py in PyTorch: the same network, weights, examples in the same order, and update."""

from __future__ import annotations

import time
from math import ceil

import cifar10_recipe as recipe
import numpy as np
import torch
from torch.nn import functional as F

from edgelearn.data.cifar10 import standardized
from edgelearn.data.draws import FlipAndCrop, epoch_order, mini_batches
from edgelearn.interop.to_torch import TorchNetwork
from edgelearn.train import VariedSource
from edgelearn.train.trainer import ahead


def train(pictures: recipe.Pictures, seed: int, epochs: int, device: str | None = None) -> dict:
    """Train with one seed; returns accuracy and times, as recipe.train."""
    torch.backends.cudnn.allow_tf32 = False  # float32, as there
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    network = recipe.network()
    module = TorchNetwork(network, network.initialize(seed), batchnorm="batch", logits=True).to(where)
    rule, count, updates = recipe.optimizer(len(pictures.train), epochs), len(pictures.train), 0
    parameters = [(name, module.tensor(name)) for name in sorted(network.trainable)]
    velocities = [torch.zeros_like(tensor) for _, tensor in parameters]
    examples = VariedSource(pictures.train, FlipAndCrop(seed), standardized)
    losses, times = [], []
    start = time.perf_counter()
    for epoch in range(epochs):
        began, total = time.perf_counter(), torch.zeros((), device=where)
        source, order = examples.at_epoch(epoch), epoch_order(count, seed, epoch)
        for part, x in ahead(mini_batches(order, recipe.BATCH_SIZE), source.__getitem__):
            logits = module(module.encode(x).to(where))
            labels = torch.from_numpy(pictures.train_labels[part].astype(np.int64)).to(where)
            loss = F.cross_entropy(logits, labels, label_smoothing=recipe.SMOOTHING)
            module.zero_grad(set_to_none=True)
            loss.backward()
            rate = rule.learning_rate(updates)
            with torch.no_grad():
                for (name, w), v in zip(parameters, velocities, strict=True):
                    v.mul_(rule.momentum).sub_(w.grad, alpha=rate)
                    decay = rule.weight_decay if network.parameters[name].weight.decays else 0.0
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
        "device": f"{name}, PyTorch {torch.__version__}", "parameters": network.count(),
        "ms_per_step": 1e3 * float(np.median(times)) / ceil(count / recipe.BATCH_SIZE),
    }  # fmt: skip
