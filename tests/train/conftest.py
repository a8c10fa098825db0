"""Models on one OpenCL context: each program is compiled once for all tests."""

import pytest

from edgelearn.runtime import Context, Kernels
from edgelearn.runtime.context import Ledger
from edgelearn.train import model

_contexts: dict[str, Context] = {}
_programs: dict[str, dict] = {}


class SharedContext(Context):
    """The same context and queue, with a ledger of its own."""

    def __init__(self, device) -> None:
        if device.id not in _contexts:
            _contexts[device.id] = Context(device)
        self.__dict__ |= vars(_contexts[device.id])
        self.ledger = Ledger(device.memory)


class SharedKernels(Kernels):
    def __init__(self, context) -> None:
        super().__init__(context)
        self._programs = _programs.setdefault(context.device.id, {})


@pytest.fixture(autouse=True)
def _share(monkeypatch):
    monkeypatch.setattr(model, "Context", SharedContext)
    monkeypatch.setattr(model, "Kernels", SharedKernels)


@pytest.fixture
def own_kernels(monkeypatch, _share):
    """Everything is compiled, as in a process of one's own."""
    monkeypatch.setattr(model, "Kernels", Kernels)
