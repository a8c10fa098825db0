"""Read, build, cache and launch the kernels of `kernels/`."""

from .buffers import Buffer, Role
from .launch import Choice, Decision, In, InOut, Launch, Out
from .program import Kernels
from .runner import Runner
from .self_test import SelfTest, self_test

__all__ = [
    "Buffer",
    "Choice",
    "Decision",
    "In",
    "InOut",
    "Kernels",
    "Launch",
    "Out",
    "Role",
    "Runner",
    "SelfTest",
    "self_test",
]
