"""Compiled kernels of one context, shared by launches with the same source and macros."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from edgelearn.display import Displayed
from edgelearn.errors import KernelError
from edgelearn.launch.launch import Launch

from . import source
from .build import build
from .context import Context
from .faults import POCL

Progress = Callable[[int, int, str], None]
_in_use: WeakValueDictionary[tuple, Any] = WeakValueDictionary()  # programs by context, text and key


class Kernels(Displayed):
    """The compiled programs of a context. Compiled code is kept on disk between processes; a program that is in use
    elsewhere in this process is shared.

    Arguments:
    - `context`: the device in use.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self._programs: dict[tuple, Any] = {}
        self._unused: dict[tuple, list[Any]] = {}
        self._declares = context.device.platform == POCL

    @property
    def headline(self) -> str:
        return f"of {len(self._programs)} programs on {self.context.device.id}"

    def compile(self, launches: Iterable[Launch], progress: Progress | None = None) -> None:
        """Build the programs of `launches`; `progress(done, total, name)` is called before each one and at the end."""
        missing = {_key(run): run for run in launches if run.source and _key(run) not in self._programs}
        for done, (key, launch) in enumerate(missing.items()):
            if progress:
                progress(done, len(missing), launch.kernel)
            text = source.read(launch.source, launch.kernel)
            shared = self.context.cl_context.int_ptr, text, *key
            program = _in_use.get(shared)
            if program is None:
                _in_use[shared] = program = self._build(launch, text)
            self._programs[key] = program
        if progress and missing:
            progress(len(missing), len(missing), "")

    def kernel(self, launch: Launch) -> Any:
        """Return a cl.Kernel for exclusive use by this launch, its arguments unset. Returned kernels are reused, since
        creating one takes PyOpenCL a millisecond."""
        import pyopencl as cl

        self.compile([launch])
        if unused := self._unused.get(_key(launch)):
            return unused.pop()
        return cl.Kernel(self._programs[_key(launch)], launch.kernel)

    def give_back(self, launch: Launch, kernel: Any) -> None:
        """Return a kernel obtained from `kernel` for reuse. Everything enqueued with it must have finished."""
        self._unused.setdefault(_key(launch), []).append(kernel)

    def _build(self, launch: Launch, text: str) -> Any:
        import pyopencl as cl

        options = [f"-D{name}={value}" for name, value in launch.macros] + [f"-DGROUP={launch.group}"]
        try:
            return self._build_with_own_declarations(launch, text, options) or build(self.context, text, options)
        except cl.Error as error:
            raise KernelError(
                f"kernels/{launch.source} did not compile for {self.context.device.id} with {' '.join(options)}. "
                f"The driver says:\n{error}\nThis is a fault of edgelearn or of the driver: please report both lines, "
                f"and choose another device meanwhile (`edgelearn devices` lists them)."
            ) from None

    def _build_with_own_declarations(self, launch: Launch, text: str, options: list[str]) -> Any:
        """Build without PoCL's own declarations, or return None: for kernels of others, and where a PoCL refuses it."""
        import pyopencl as cl

        if not self._declares or Path(launch.source).is_absolute():
            return None
        try:
            return build(self.context, source.builtins() + text, [*options, source.NO_BUILTINS])
        except cl.Error:
            self._declares = False
            return None


def _key(launch: Launch) -> tuple:
    return launch.source, launch.kernel, launch.macros, launch.group
