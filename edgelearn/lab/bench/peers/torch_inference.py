"""How a network of PyTorch infers fastest."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def inference(net: nn.Module, inputs: torch.Tensor, variant: str) -> Callable[[], torch.Tensor]:
    """What runs `net` on `inputs`: traced and frozen for `jit`, compiled for `compile`, else as it is."""
    net.requires_grad_(False)
    with torch.no_grad():
        if variant == "jit":
            net = torch.jit.optimize_for_inference(torch.jit.freeze(torch.jit.trace(net, inputs)))
        elif variant == "compile":
            net = torch.compile(net, options={"freezing": True})

    def infer() -> torch.Tensor:
        # A compiled, frozen network is for no_grad; elsewhere inference_mode is the quicker one.
        with torch.no_grad() if variant == "compile" else torch.inference_mode():
            return net(inputs)

    return infer
