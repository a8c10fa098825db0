"""BC-ResNet-1 (Kim et al. 2021, "Broadcasted residual learning for efficient keyword spotting") as PyTorch computes it
in float64, with the arrays of a state dict of Qualcomm's published network.

python -m edgelearn.experiments.keywords.torch_bcresnet WEIGHTS FEATURES FILE

writes the logits (n, classes) of features (n, bands, frames, 1) to FILE, all of them .npz or .npy. It is a process of
its own, so that PyTorch is never loaded beside an OpenCL driver.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import numpy as np
import torch
from torch.nn import functional

from edgelearn.interop.state_dict import read_arrays

STAGES = (8, 2, 1), (12, 2, 2), (16, 4, 2), (20, 4, 1)  # channels, blocks, stride of the first


class BCResNet:
    """The network, with kept statistics."""

    def __init__(self, parameters: Mapping[str, np.ndarray]) -> None:
        self.parameters = {name: torch.tensor(np.float64(array)) for name, array in parameters.items()}

    def kernel(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return self.parameters[name].reshape(shape)

    def normalise(self, x: torch.Tensor, names: list[str], epsilon: float) -> torch.Tensor:
        scale, shift, mean, variance = (self.parameters[name] for name in names)
        return functional.batch_norm(x, mean, variance, scale, shift, eps=epsilon)

    def convolve(self, name, x, filters, size, stride=(1, 1), pad=(0, 0), dilation=1, depthwise=False):
        inputs = 1 if depthwise else x.shape[1]
        kernel = self.kernel(f"{name}.weight", (filters, inputs, *size))
        return functional.conv2d(x, kernel, None, stride, pad, (1, dilation), x.shape[1] if depthwise else 1)

    def norm(self, name, x):
        return self.normalise(x, [f"{name}.{p}" for p in ("weight", "bias", "running_mean", "running_var")], 1e-5)

    def sub_spectral_norm(self, name, x, bands=5):
        """Each band of the frequency is a channel of its own."""
        n, c, f, t = x.shape
        return self.norm(name, x.reshape(n, c * bands, f // bands, t)).reshape(n, c, f, t)

    def block(self, name, x, filters, stride, dilation):
        y, changes = x, x.shape[1] != filters
        if changes:
            y = self.convolve(f"{name}.f2.0.block.0", y, filters, (1, 1))
            y = torch.relu(self.norm(f"{name}.f2.0.block.1", y))
        place = f"{name}.f2.{int(changes)}.block"
        y = self.convolve(f"{place}.0", y, filters, (3, 1), (stride, 1), (1, 0), depthwise=True)
        y = self.sub_spectral_norm(f"{place}.1.ssnorm", y)
        z = y.mean(2, keepdim=True)
        z = self.convolve(f"{name}.f1.0.block.0", z, filters, (1, 3), (1, 1), (0, dilation), dilation, True)
        z = functional.silu(self.norm(f"{name}.f1.0.block.1", z))
        z = self.convolve(f"{name}.f1.1", z, filters, (1, 1))
        return torch.relu(y + z if changes else y + z + x)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = x.permute(0, 3, 1, 2)
        x = torch.relu(self.norm("cnn_head.1", self.convolve("cnn_head.0", x, 16, (5, 5), (2, 1), (2, 2))))
        for stage, (filters, count, stride) in enumerate(STAGES):
            for number in range(count):
                first = number == 0
                x = self.block(f"BCBlocks.{stage}.{number}", x, filters, stride if first else 1, 2**stage)
        x = self.convolve("classifier.0", x, 20, (5, 5), pad=(0, 2), depthwise=True)
        x = torch.relu(self.norm("classifier.2", self.convolve("classifier.1", x, 32, (1, 1))))
        bias = self.bias("classifier.5.bias")
        x = self.convolve("classifier.5", x.mean((2, 3), keepdim=True), len(bias), (1, 1))
        return x.flatten(1) + bias

    def bias(self, name: str) -> torch.Tensor:
        return self.parameters[name]


def main(weights: str, features: str, file: str) -> None:
    with torch.no_grad():
        np.save(file, BCResNet(read_arrays(weights))(torch.tensor(np.float64(np.load(features)))).numpy())


if __name__ == "__main__":
    main(*sys.argv[1:])
