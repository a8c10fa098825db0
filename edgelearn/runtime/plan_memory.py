"""The memory of a plan: a buffer per role on the device, and pages outside it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from edgelearn.compile.plan import Plan
from edgelearn.errors import DeviceError
from edgelearn.launch import Buffer, Role
from edgelearn.launch.buffers import words_of

from .context import Context
from .pages import Pages

SENT = 4  # copies of inputs that may be on their way while the host goes on


class PlanMemory:
    """Allocates exactly the bytes that `plan` states, and copies between the host and planned buffers.

    Raises DeviceError if the device has too little memory, PagingError if there is no room for pages.
    """

    def __init__(self, plan: Plan, context: Context) -> None:
        self.plan, self.context = plan, context
        self.by_role = {role: context.allocate(size, role.value) for role, size in plan.bytes_by_role.items()}
        self._sent: deque[Any] = deque()  # copies of inputs on their way
        self._pages: Pages | None = None
        if plan.paged_bytes:
            offload = plan.offload
            self._pages = Pages(plan.paged_bytes, offload.folder if offload else None)

    def at(self, buffer: Buffer) -> tuple[Any, int]:
        """Return the cl.Buffer, or the array of pages, in which a planned buffer lies, and its offset in bytes."""
        if buffer.role is Role.PAGED and self._pages is not None:
            return self._pages.words, self.plan.offsets[buffer]
        return self.by_role[buffer.role].handle, self.plan.offsets[buffer]

    def write(self, buffer: Buffer, array: np.ndarray) -> None:
        """Copy an array to the device."""
        self._copy(buffer, array).wait()

    def send(self, buffer: Buffer, array: np.ndarray) -> None:
        """Copy an array to the device, but return while the copy is still on its way."""
        self._sent.append(self._copy(buffer, array))
        if len(self._sent) > SENT:
            self._sent.popleft().wait()

    def read(self, buffer: Buffer) -> np.ndarray:
        """Copy a buffer from the device, as one flat array of its data type; bfloat16 as float32."""
        return self.read_all([buffer])[0]

    def read_all(self, buffers: Sequence[Buffer]) -> list[np.ndarray]:
        """Copy buffers from the device as `read` does. The wait is for all of them: one each takes longer than small
        copies do."""
        found = []
        for buffer in buffers:
            words = np.empty(buffer.nbytes // words_of(buffer.dtype).itemsize, words_of(buffer.dtype))
            last = buffer is buffers[-1]
            found.append(self.context.read(self.by_role[buffer.role].handle, words, self.plan.offsets[buffer], last))
        return [
            (words.astype(np.uint32) << 16).view(np.float32) if buffer.dtype == "bfloat16" else words
            for buffer, words in zip(buffers, found, strict=True)
        ]

    def read_role(self, role: Role) -> np.ndarray:
        """Copy all of a role's memory from the device, float32; empty if the plan has none."""
        memory = self.by_role.get(role)
        words = np.empty(memory.nbytes // 4 if memory else 0, np.float32)
        return self.context.read(memory.handle, words, 0) if memory else words

    def write_role(self, role: Role, words: np.ndarray) -> None:
        """Copy back what `read_role` returned."""
        if words.size:
            self.context.write(self.by_role[role].handle, words)

    def fill_zero(self, role: Role) -> None:
        """Fill a role's memory with zeros, if the plan has any."""
        if memory := self.by_role.get(role):
            self.context.fill_zero(memory.handle, memory.nbytes)

    @property
    def allocated_bytes(self) -> int:
        """Device memory held, as the buffers themselves count it."""
        return sum(memory.nbytes for memory in self.by_role.values())

    @property
    def paged_bytes(self) -> int:
        """Bytes held outside the device."""
        return self._pages.nbytes if self._pages else 0

    def release_temporaries(self) -> None:
        """Give back activations, workspace and pages."""
        if arena := self.by_role.pop(Role.TEMPORARY, None):
            arena.release()
        self._pages = None

    def release(self) -> None:
        """Give everything back."""
        self._sent.clear()
        for memory in self.by_role.values():
            memory.release()
        self._pages = None

    def _copy(self, buffer: Buffer, array: np.ndarray) -> Any:
        array = np.ascontiguousarray(array)
        if array.nbytes > buffer.nbytes:
            raise DeviceError(f"{array.nbytes:,} bytes do not fit '{buffer.name}' of {buffer.nbytes:,}.")
        return self.context.copy(self.by_role[buffer.role].handle, array, self.plan.offsets[buffer])
