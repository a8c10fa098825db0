"""Kernel launches as data: buffers, launches, transfers and the bytes they move."""

from .buffers import Buffer, Role
from .launch import Access, Decision, In, InMask, InOut, KernelConfig, Launch, Many, Out
from .traffic import Moved, Traffic
from .transfer import Await, Transfer

__all__ = [
    "Access", "Await", "Buffer", "Decision", "In", "InMask", "InOut", "KernelConfig", "Launch", "Many", "Moved", "Out",
    "Role", "Traffic", "Transfer",
]  # fmt: skip
