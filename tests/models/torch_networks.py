"""Run by test_against_torch.py in a process of its own, where PyTorch may be imported.

    python torch_networks.py NETWORK FILE [WEIGHTS]

Computes BC-ResNet-1 ("bcresnet", parameters under the names of Qualcomm's state dicts) or DS-CNN-S ("ds_cnn", under
ours) in float64, with the weights of an .npz file or random ones, on three random examples. Writes to FILE: weights,
images, labels; logits with kept statistics; for kept and batch statistics, the first example and all of them: the mean
cross-entropy and its gradients; and the losses of five steps of gradient descent with momentum.
"""

import sys

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from edgelearn.experiments.keywords import torch_bcresnet

torch.set_num_threads(1)  # tests run side by side: threads would wait for each other
EXAMPLES, CLASSES, STEPS, RATE, MOMENTUM = 3, 12, 5, 0.005, 0.9
MARGIN = 5e-6  # float32 must not round any input of a ReLU across its corner: gradients would be off by 1e-2
SEED = 9
SHAPES = {"bcresnet": (40, 101), "ds_cnn": (49, 10)}


class Twin:
    """Layers by name. What `parameters` doesn't have yet is drawn when it is first asked for."""

    def __init__(self, parameters, rng):
        self.rng = rng
        self.parameters = {name: torch.tensor(np.float64(a), requires_grad=True) for name, a in parameters.items()}
        self.batch = False

    def get(self, name, shape, low, high):
        if name not in self.parameters:
            drawn = np.float32(self.rng.uniform(low, high, shape)).astype(np.float64)
            self.parameters[name] = torch.tensor(drawn, requires_grad=True)
        return self.parameters[name]

    def normalise(self, x, names, epsilon):
        channels = x.shape[1]
        scale = self.get(names[0], channels, 0.5, 1.5)
        shift = self.get(names[1], channels, -0.5, 0.5)
        mean = self.get(names[2], channels, -0.5, 0.5).detach().clone()
        variance = self.get(names[3], channels, 0.5, 1.5).detach().clone()
        return functional.batch_norm(x, mean, variance, scale, shift, training=self.batch, eps=epsilon)


class BCResNet(Twin, torch_bcresnet.BCResNet):
    name = "bcresnet"

    def kernel(self, name, shape):
        limit = (6 / (shape[1] * shape[2] * shape[3])) ** 0.5
        return self.get(name, shape, -limit, limit)

    def bias(self, name):
        return self.get(name, CLASSES, -0.5, 0.5)


class DSCNN(Twin):
    name = "ds_cnn"

    def unit(self, name, x, filters, size, stride=1, depthwise=False):
        """Padded as TensorFlow does for "same"."""
        total = [max((-(-n // stride) - 1) * stride + k - n, 0) for n, k in zip(x.shape[2:], size, strict=True)]
        x = functional.pad(x, (total[1] // 2, total[1] - total[1] // 2, total[0] // 2, total[0] - total[0] // 2))
        inputs = 1 if depthwise else x.shape[1]
        limit = (6 / (inputs * size[0] * size[1])) ** 0.5
        shape = (*size, filters, 1) if depthwise else (*size, inputs, filters)
        kernel = self.get(f"{name}/kernel", shape, -limit, limit).permute((2, 3, 0, 1) if depthwise else (3, 2, 0, 1))
        x = functional.conv2d(x, kernel, None, stride, groups=x.shape[1] if depthwise else 1)
        names = [f"{name}_bn/{role}" for role in ("gamma", "beta", "moving_mean", "moving_variance")]
        return torch.relu(self.normalise(x, names, 1e-3))

    def __call__(self, x):
        x = self.unit("conv", x.permute(0, 3, 1, 2), 64, (10, 4), 2)
        for block in (1, 2, 3, 4):
            x = self.unit(f"block{block}_depthwise", x, 64, (3, 3), depthwise=True)
            x = self.unit(f"block{block}_pointwise", x, 64, (1, 1))
        kernel = self.get("classifier/kernel", (64, CLASSES), -0.3, 0.3)
        return x.mean((2, 3)) @ kernel + self.get("classifier/bias", CLASSES, -0.5, 0.5)


class Corners(TorchFunctionMode):
    """How near to 0 inputs of ReLUs come."""

    nearest = np.inf

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.relu:
            self.nearest = min(self.nearest, args[0].abs().min().item())
        return function(*args, **(kwargs or {}))


def drawn_images(twin, rng, margin):
    """Such that with either statistics no input of a ReLU is within `margin` of its corner."""
    while True:
        images = torch.tensor(np.float32(rng.normal(-4, 3, (EXAMPLES, *SHAPES[twin.name], 1))).astype(np.float64))
        with torch.no_grad(), Corners() as corners:
            for twin.batch in (True, False):
                for n in (1, EXAMPLES):
                    twin(images[:n])
        if corners.nearest >= margin:
            return images


def gradients(twin, images, labels):
    """(loss, gradients; 0 for what has none, the moving statistics)"""
    loss = functional.cross_entropy(twin(images), labels)
    for parameter in twin.parameters.values():
        parameter.grad = None
    loss.backward()
    return loss.item(), {name: np.zeros(p.shape) if p.grad is None else p.grad.numpy().copy()
                         for name, p in twin.parameters.items()}  # fmt: skip


def losses(twin, images, labels):
    """Of steps that train with the batch's statistics."""
    found, velocity = [], dict.fromkeys(twin.parameters, 0.0)
    for _ in range(STEPS):
        loss, slopes = gradients(twin, images, labels)
        found.append(loss)
        for name, parameter in twin.parameters.items():
            velocity[name] = MOMENTUM * velocity[name] - RATE * slopes[name]
            parameter.data += torch.as_tensor(velocity[name])
    return found


def main(network, file, weights=None):
    arrays, rng = {}, np.random.default_rng(SEED)
    if weights:
        with np.load(weights, allow_pickle=False) as state:
            arrays = {name: state[name] for name in state.files if not name.endswith("num_batches_tracked")}
    twin = {kind.name: kind for kind in (BCResNet, DSCNN)}[network](arrays, rng)
    images = drawn_images(twin, rng, 0.0 if weights else MARGIN)  # trained ones leave no such images
    labels = torch.tensor(rng.integers(0, CLASSES, EXAMPLES))
    found = {"images": images.numpy(), "labels": labels.numpy(), "logits": twin(images).detach().numpy()}
    found |= {f"weight {name}": p.detach().numpy().copy() for name, p in twin.parameters.items()}
    for statistics in ("moving", "batch"):
        twin.batch = statistics == "batch"
        for n in (1, EXAMPLES):
            found[f"{statistics} loss {n}"], slopes = gradients(twin, images[:n], labels[:n])
            found |= {f"{statistics} gradient {n} {name}": slope for name, slope in slopes.items()}
    np.savez(file, losses=losses(twin, images, labels), **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
