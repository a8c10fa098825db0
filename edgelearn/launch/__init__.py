"""Read, build, cache and launch the kernels of `kernels/`."""

from .buffers import Buffer, Role
from .launch import Access, Choice, Decision, In, InMask, InOut, Launch, Many, Out
from .program import Kernels
from .runner import Runner
from .self_test import SelfTest, self_test
from .traffic import Moved, Traffic
from .transfer import Await, Transfer, bytes_per_second

__all__ = [
    "Access", "Await", "Buffer", "Choice", "Decision", "In", "InMask", "InOut", "Kernels", "Launch", "Many", "Moved",
    "Out", "Role", "Runner", "SelfTest", "Traffic", "Transfer", "bytes_per_second", "self_test",
]  # fmt: skip
