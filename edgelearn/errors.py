"""Errors that say what happened, why, and what to do. Every error a user can cause is one of these."""

import signal


class EdgelearnError(Exception):
    """Base of all errors edgelearn raises on purpose."""


class DeviceError(EdgelearnError):
    """No OpenCL device, an unknown one, one that fails its self-test, or one that is too small."""


class KernelError(EdgelearnError):
    """A kernel did not compile or was launched with arguments that don't fit it."""


class ShapeError(EdgelearnError, ValueError):
    """Shapes, data types or label ranges that don't fit the network."""


class PagingError(EdgelearnError):
    """Pages for activations that can't be had: a folder that can't be written, or a full disk."""


class PlanError(EdgelearnError):
    """A plan that cannot be made: an impossible budget, nothing to train, an unknown parameter."""


class NonFiniteError(EdgelearnError, ArithmeticError):
    """NaN or infinity in a loss or a gradient; names the first layer and tensor where it appeared."""


class ReconstructionError(EdgelearnError, ArithmeticError):
    """An activation that the backward pass gets by inversion is too far from the one that the forward pass had."""


class DataError(EdgelearnError):
    """Data that is missing, unreadable or unusable."""


class DownloadError(DataError):
    """A download that can't be made because its server isn't reached, or breaks off."""


class FormatError(EdgelearnError):
    """A model, weight or checkpoint file that is corrupt or of another format or network."""


class UnsupportedError(FormatError):
    """A model with operators that have no counterpart here; `problems` lists all of them."""

    def __init__(self, message: str, nearest: str = "", problems: tuple = ()) -> None:
        super().__init__(message)
        self.nearest, self.problems = nearest, problems


class RunError(EdgelearnError):
    """A run that is unknown, can't be resumed, or can't be written."""


class UsageError(RunError):
    """A name that stands for nothing, or a setting that can't have its value. A command then ends with status 2."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, or ■ in a notebook, ended a computation; the text says how to go on. A notebook shows the text alone."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class ExtensionError(EdgelearnError):
    """A `MODULE:NAME` that can't be imported, or isn't what it should be."""


def signal_name(code: int) -> str:
    """Return the name of the signal that ended a process, such as "SIGSEGV"; `code`: its negative exit status."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
