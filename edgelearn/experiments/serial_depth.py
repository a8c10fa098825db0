"""A step of each depth of training in serial C, a bundle's target c, beside the same step on a device.

    edgelearn depth --serial mobilenet_v1 alexnet

Guide: docs/guides/depth.md. Figures: docs/results/depth.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from edgelearn.bundles import NativeBundle
from edgelearn.bundles.write import bundle
from edgelearn.compile.plan import Kind
from edgelearn.display import plural
from edgelearn.errors import UsageError
from edgelearn.extensions import check_name
from edgelearn.models import named_network, network_names
from edgelearn.ops import SGD
from edgelearn.tables import Table, Tabular
from edgelearn.train import Model

from .depth import DepthConfig, depth_network
from .experiment import Log, silent

SERIAL_DEPTHS = ("inference", "last", "last3", "last12", "biases", "all")
RATE = 1e-4


@dataclass(frozen=True)
class SerialDepth:
    """A step of one depth with one example.

    Arguments:
    - `network`, `depth`: their names.
    - `trained`: number of trained parameters.
    - `macs`: multiply-adds of the step.
    - `device`, `serial`: median seconds on the device and in serial C, taken in turn.
    - `difference`: the largest relative difference of losses, or of what inference gives.
    """

    network: str
    depth: str
    trained: int
    macs: int
    device: float
    serial: float
    difference: float

    @property
    def speed_up(self) -> float:
        """How many times the device is faster."""
        return self.serial / self.device


@dataclass(frozen=True, repr=False)
class SerialDepths(Tabular):
    """Steps of depths in serial C and on a device.

    Arguments:
    - `device`: its id.
    - `rows`: a result for each network and depth.
    """

    device: str
    rows: list[SerialDepth]

    @property
    def headline(self) -> str:
        return f"of {plural(len(self.rows), 'step')} in serial C and on {self.device}"

    def table(self) -> Table:
        """A row for each network and depth."""
        header = ("network", "depth", "trained", "MMAC", "serial ms", "device ms", "serial / device", "difference")
        rows = [
            (
                row.network, row.depth, f"{row.trained:,}", f"{row.macs / 1e6:,.0f}", f"{1e3 * row.serial:,.1f}",
                f"{1e3 * row.device:,.1f}", f"{row.speed_up:,.1f}", f"{row.difference:.0e}",
            )
            for row in self.rows
        ]  # fmt: skip
        notes = ["A step with one example. MMAC: its million multiply-adds. Difference: of losses, relative."]
        return Table(header, rows, f"Serial C and {self.device}", notes)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {"device": self.device, "rows": [vars(row) | {"speed_up": row.speed_up} for row in self.rows]}


def compare_serial(
    networks: Sequence[str], depths: Sequence[str] = ("inference", "last", "last3", "all"), steps: int = 3,
    device: str | None = None, log: Log = silent, shape: tuple[int, int, int] | None = None,
) -> SerialDepths:  # fmt: skip
    """Time steps of each depth with one drawn picture in serial C and on a device, in turn, and compare their results.

    >>> print(compare_serial(["mobilenet_v1", "alexnet"]))

    Both start with the same drawn weights; SGD with momentum updates them, BatchNorms keep their statistics.

    Arguments:
    - `networks`: names of edgelearn.models.
    - `depths`: of SERIAL_DEPTHS.
    - `steps`: timed steps of each, after one that isn't (default 3).
    - `device`: part of the name of an OpenCL device (default: the best one).
    - `log`: takes lines of text (default: none).
    - `shape`: of a picture (default: the network's).

    Raises UsageError for unknown names, DeviceError without a C compiler.
    """
    for name in networks:
        check_name(name, network_names(), "network")
    for depth in depths:
        check_name(depth, SERIAL_DEPTHS, "depth in serial C")
    if steps < 1:
        raise UsageError(f"steps is 1 or more, not {steps}.")
    rows, device_id = [], ""
    for name in networks:
        for depth in depths:
            log(f"{name}: {depth}")
            settings: dict[str, Any] = {} if shape is None else {"input_shape": shape}
            network, _ = depth_network(named_network(name, softmax=False, **settings), depth, DepthConfig())
            model = Model(network, device=device, seed=0)
            model.compile(SGD(RATE, momentum=0.9), batchnorm="moving")
            rows.append(_timed(model, name, depth, steps))
            device_id = model.device.id
    return SerialDepths(device_id, rows)


def _timed(model: Model, name: str, depth: str, steps: int) -> SerialDepth:
    """The row of a depth's model."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1, *model.network.input_shape)).astype(np.float32)
    y = rng.integers(0, model.network.output.shape[-1], 1).astype(np.int32)
    with TemporaryDirectory(prefix="edgelearn-serial-") as folder:  # what is loaded needs no file any more
        written = bundle(model, folder, batch_size=1, target="c")
        native = NativeBundle(folder)
    trained, macs = model.network.count(model.network.trainable), written.multiply_adds
    with native, model.trainer(1) as trainer:
        trainer.learning_rate = RATE
        if depth == "inference":
            trained, macs = 0, sum(launch.flops for launch in written.plan.program(Kind.PREDICT).launches) // 2
            device, serial, difference = _in_turn(lambda: trainer.predict(x), lambda: native.predict(x), steps)
        else:
            device, serial, difference = _in_turn(
                lambda: np.array(float(trainer.step(x, y)["loss"])),
                lambda: np.array(native.train_step(x, y, RATE)[0]),
                steps,
            )
    return SerialDepth(name, depth, trained, macs, device, serial, difference)


def _in_turn(
    device: Callable[[], np.ndarray], serial: Callable[[], np.ndarray], steps: int
) -> tuple[float, float, float]:
    """(median seconds of each, largest relative difference of their results)."""
    times, difference = [], 0.0
    for _ in range(steps + 1):
        (first, of_device), (second, of_serial) = _clocked(device), _clocked(serial)
        times.append((of_device, of_serial))
        difference = max(difference, float(np.abs(first - second).max() / np.abs(first).max()))
    medians = np.median(times[1:], 0)
    return float(medians[0]), float(medians[1]), difference


def _clocked(call: Callable[[], np.ndarray]) -> tuple[np.ndarray, float]:
    begun = time.perf_counter()
    result = call()
    return result, time.perf_counter() - begun
