"""Fold BatchNormalization into the layer before it, for inference in other frameworks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from edgelearn.graph import Network, Node
from edgelearn.ops import BatchNormalization, Conv2D, Conv2DTranspose, Dense, DepthwiseConv2D


def fold_batchnorm(network: Network, weights: Mapping[str, np.ndarray]) -> tuple[Network, dict[str, np.ndarray]]:
    """The network without the BatchNormalization layers whose input a convolution or Dense alone gives, and weights
    with which it infers the same: kernels times the scale, and the shift as a bias."""
    norms = {node.inputs[0]: node for node in network.nodes.values() if _folds(network, node)}
    folded, found = Network(network.name, network.inputs), dict(weights)
    renamed: dict[str, str] = {}
    for node in network.nodes.values():
        op = node.op
        if node.name in norms:
            op = replace(op, use_bias=True)  # type: ignore[call-arg]  a LinearOp of the package
            _fold(found, node, norms[node.name])
        elif node.name in renamed:
            continue
        folded.add(node.name, op, *(renamed.get(name, name) for name in node.inputs))
        if node.name in norms:
            renamed[norms[node.name].name] = node.name
    folded.take_outputs(network, renamed)
    return folded, {name: found[name] for name in folded.parameters}


def _folds(network: Network, node: Node) -> bool:
    if type(node.op) is not BatchNormalization or node.inputs[0] not in network.nodes:
        return False
    before = network.nodes[node.inputs[0]]
    return (
        isinstance(before.op, Conv2D | Conv2DTranspose | DepthwiseConv2D | Dense)
        and network.consumers(before.name) == [node]
        and before.name not in network.outputs
    )


def _fold(weights: dict[str, np.ndarray], node: Node, norm: Node) -> None:
    gamma, beta, mean, variance = (
        weights[f"{norm.name}/{role}"] for role in ("gamma", "beta", "moving_mean", "moving_variance")
    )
    assert isinstance(norm.op, BatchNormalization)
    scale = gamma / np.sqrt(variance + gamma.dtype.type(norm.op.epsilon))
    kernel, bias = weights[f"{node.name}/kernel"], weights.get(f"{node.name}/bias", 0)
    by_kernel = scale.reshape(kernel.shape[2:]) if isinstance(node.op, DepthwiseConv2D) else scale
    weights[f"{node.name}/kernel"] = kernel * by_kernel
    weights[f"{node.name}/bias"] = (bias - mean) * scale + beta
