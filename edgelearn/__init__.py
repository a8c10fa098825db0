"""A workbench for on-device learning: an OpenCL training engine, with experiments on top.

>>> import edgelearn as el
>>> network = el.models.mobilenet_v1(classes=5)
>>> network.freeze().unfreeze("conv_pw_13", "dense")
>>> model = el.Model(network).compile(el.SGD(0.003, momentum=0.9))
>>> print(model.plan(batch_size=163, micro_batch=1))
>>> model.fit(x, y, batch_size=163, micro_batch=1, epochs=100)
"""

from importlib import import_module
from typing import Any

from . import models, ops
from .compile import Combination, Plan, Precision, explain
from .errors import EdgelearnError
from .graph import Network
from .ops import LAMB, SGD, Adam, AdamW, Compute, Lion, RMSprop, SoftmaxCrossEntropy, losses
from .runtime import choose_device, list_devices, self_test
from .train import Model, Trainer, from_torch, load, load_published, metrics
from .train.inspection import inspect
from .train.loading import combined
from .train.planning import plan_for
from .train.rate_finder import find_learning_rate

__version__ = "0.1.0"  # which pyproject.toml repeats

__all__ = [
    "LAMB", "SGD", "Adam", "AdamW", "Board", "Combination", "Compute", "EdgelearnError", "Lion", "Model", "Network",
    "Plan", "Precision", "RMSprop", "SoftmaxCrossEntropy", "Trainer", "adapt", "bundle", "choose_device",
    "combined", "compare", "explain", "find_learning_rate", "finetune", "from_torch", "home", "inspect", "lab",
    "list_devices", "load", "load_published", "losses", "metrics", "models", "ops", "plan_for", "plan_for_board",
    "runs", "self_test", "tradeoff", "tune",
]  # fmt: skip


HIGHER = {
    "Board": "bundles:Board", "adapt": "experiments.language:adapt", "bundle": "bundles:bundle",
    "compare": "experiments.combinations:compare", "finetune": "experiments.finetune:finetune",
    "home": "workbench.home:home", "plan_for_board": "bundles:plan_for_board", "runs": "lab.runs:RunStore",
    "tradeoff": "lab.runs.tradeoff:tradeoff", "tune": "lab.tuning:tune",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import what lies higher, and with it much more, when it is first used."""
    if name == "lab":
        return import_module(".lab", __name__)
    if name not in HIGHER:
        raise AttributeError(f"module 'edgelearn' has no attribute '{name}'")
    module, _, found = HIGHER[name].partition(":")
    return getattr(import_module(f".{module}", __name__), found)
