"""A workbench for on-device learning: an OpenCL training engine, with experiments on top.

>>> import edgelearn as el
>>> network = el.models.mobilenet_v1(classes=5)
>>> network.freeze().unfreeze("conv_pw_13", "dense")
>>> model = el.Model(network).compile(el.SGD(0.003, momentum=0.9))
>>> print(model.plan(batch_size=163, micro_batch=1))
>>> model.fit(x, y, batch_size=163, micro_batch=1, epochs=100)
"""

from . import models, ops
from .device import choose_device, list_devices
from .errors import EdgelearnError
from .graph import Network, Plan, Precision
from .launch import self_test
from .ops import SGD, Adam, AdamW
from .train import Model

__version__ = "0.1.0"
__all__ = [
    "SGD", "Adam", "AdamW", "EdgelearnError", "Model", "Network", "Plan", "Precision", "choose_device", "list_devices",
    "models", "ops", "self_test", "tune",
]  # fmt: skip


def __getattr__(name: str):
    """`tune`, and with it the search and the benchmarks, is imported when it is first used."""
    if name == "tune":
        from .tuning import tune

        return tune
    raise AttributeError(f"module 'edgelearn' has no attribute '{name}'")
