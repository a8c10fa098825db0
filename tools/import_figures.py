"""Import torchvision's networks, by torch.export and from ONNX, and compare outputs and gradients with PyTorch's.

    python tools/import_figures.py [NETWORK …] [--seed 2]

Weights are random, statistics of BatchNorm too. PyTorch computes in float64. An error is the largest difference by the
largest value: of all logits, and of each weight's gradient. An input near the corner of a ReLU, or near a tie of a
maximum, passes on one side in float32 and not on the other in float64: try another seed there. It needs PyTorch,
torchvision and onnx; networks are written to ONNX by the exporter of PyTorch that needs no other package.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
import torchvision

import edgelearn as el
from edgelearn.errors import UnsupportedError
from edgelearn.ops import DepthwiseConv2D, Flatten

SIZES = {
    "resnet18": 64, "resnet50": 64, "mobilenet_v2": 64, "mobilenet_v3_small": 64, "mobilenet_v3_large": 64,
    "shufflenet_v2_x1_0": 64, "squeezenet1_1": 64, "efficientnet_b0": 64, "mnasnet1_0": 64, "densenet121": 64,
    "regnet_y_400mf": 64, "alexnet": 224,
}  # fmt: skip
ROLES = {"kernel": "weight", "gamma": "weight", "bias": "bias", "beta": "bias"}
CLASSES = 10


def make(name: str) -> torch.nn.Module:
    """The network with random weights and statistics, without dropout."""
    torch.manual_seed(0)
    module = getattr(torchvision.models, name)(weights=None, num_classes=CLASSES)
    generator = torch.Generator().manual_seed(1)
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.1, generator=generator)
            part.running_var.uniform_(0.5, 1.5, generator=generator)
            part.weight.data.uniform_(0.5, 1.5, generator=generator)
            part.bias.data.normal_(0, 0.1, generator=generator)
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return module.eval()


def imported(module: torch.nn.Module, x: torch.Tensor, source: str, folder: Path) -> el.Model:
    """The model by `source`, "torch.export" or "ONNX"."""
    if source == "torch.export":
        return el.from_torch(module, x[:1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (x[:1],), folder / "network.onnx", dynamo=False, opset_version=17, do_constant_folding=False,
            training=torch.onnx.TrainingMode.EVAL,
        )  # fmt: skip
    return el.load(folder / "network.onnx")


def errors(model: el.Model, module: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float, int]:
    """(of the logits, the largest of all weights' gradients, number of weights)."""
    exact = copy.deepcopy(module).double()
    logits = exact(x.double())
    torch.nn.functional.cross_entropy(logits, y).backward()
    expected = {name: parameter.grad.numpy() for name, parameter in exact.named_parameters()}
    most = max(np.abs(gradient).max() for gradient in expected.values())
    image, scores = np.ascontiguousarray(x.numpy().transpose(0, 2, 3, 1)), logits.detach().numpy()
    forward = np.abs(model.predict(image, batch_size=len(image)) - scores).max() / np.abs(scores).max()
    worst, found = 0.0, model.gradients(image, y.numpy())
    for name, gradient in found.items():
        layer, _, role = name.rpartition("/")
        theirs = as_here(expected[f"{layer}.{ROLES[role]}"], model.network, layer)
        # A gradient that is nothing but rounding, such as a bias's in front of BatchNorm, is measured by the others.
        worst = max(worst, float(np.abs(gradient - theirs).max() / max(np.abs(theirs).max(), 1e-3 * most)))
    return float(forward), worst, len(found)


def as_here(gradient: np.ndarray, network: el.Network, layer: str) -> np.ndarray:
    """PyTorch's gradient in edgelearn's order of axes."""
    node = network.nodes[layer]
    if gradient.ndim == 4:
        return gradient.transpose((2, 3, 0, 1) if isinstance(node.op, DepthwiseConv2D) else (2, 3, 1, 0))
    if gradient.ndim == 1:
        return gradient
    before = network.nodes.get(node.inputs[0])
    if before is None or not isinstance(before.op, Flatten):
        return gradient.T
    height, width, channels = network.shape_of(before.inputs[0])  # the features are those of a flattened image
    rows = gradient.T.reshape(channels, height, width, -1)
    return rows.transpose(1, 2, 0, 3).reshape(gradient.T.shape)


def row(name: str, seed: int) -> str:
    """A line of the table for a network."""
    module, n = make(name), SIZES[name]
    x = torch.randn(2, 3, n, n, generator=torch.Generator().manual_seed(seed))
    cells, parameters = [], sum(p.numel() for p in module.parameters())
    for source in ("torch.export", "ONNX"):
        with tempfile.TemporaryDirectory() as folder:
            try:
                forward, backward, count = errors(
                    imported(module, x, source, Path(folder)), module, x, torch.tensor([3, 7])
                )
            except UnsupportedError as error:
                kinds = sorted({problem.kind for problem in error.problems})
                cells += ["no", f"missing: {', '.join(kinds)}"]
            else:
                cells += [f"{forward:.0e}", f"{backward:.0e} ({count})"]
    return f"| {name} | {parameters / 1e6:.1f} M | {n} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=list(SIZES), metavar="NETWORK")
    parser.add_argument("--seed", type=int, default=2, help="of the pictures")
    arguments = parser.parse_args()
    for name in arguments.networks:
        print(row(name, arguments.seed), flush=True)


if __name__ == "__main__":
    main()
