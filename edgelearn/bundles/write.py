"""Write bundles: a network with its plan as C sources that train it without Python."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from edgelearn import atomic
from edgelearn.compile import BudgetLike, Plan, Request, make_plan
from edgelearn.device import Device
from edgelearn.display import MB, Displayed, Recorded
from edgelearn.errors import FormatError, PlanError, RunError
from edgelearn.interop import safetensors
from edgelearn.interop.weights import Weights
from edgelearn.ops import Optimizer
from edgelearn.runtime import choose_device, launch_times
from edgelearn.train import Model

from .cortex_m import Board, CortexMTarget
from .fitting import BoardPlanner
from .memory_map import MemoryMap, predict_map
from .opencl import OpenCLTarget
from .plain import PlainTarget
from .tables import Tables
from .text import model_source, weights_file

RUNTIME = Path(__file__).parent / "runtime"
SHARED = ("edgelearn.h", "plan.h", "edgelearn.c", "main.c")
MOST_NAMES = 8  # of layers, on the page
TARGETS = {"opencl": OpenCLTarget, "c": PlainTarget, "cortex-m": CortexMTarget}


@dataclass(frozen=True, repr=False)
class Bundle(Displayed, Recorded):
    """A bundle that was written.

    Arguments:
    - `folder`: where it is.
    - `plan`: what it follows.
    - `target`: "opencl", "c" or "cortex-m".
    - `device`: the device that the plan's kernels were chosen for.
    - `weights_bytes`: size of model.weights.
    - `code_bytes`: size of the kernels' texts.
    - `kernels`, `launches`: numbers of different kernels, and of launches of a step.
    - `multiply_adds`: of a step's linear layers.
    - `map`: predicted memory of a microcontroller's program (default None: it isn't for one).
    """

    folder: Path
    plan: Plan
    target: str
    device: str
    weights_bytes: int
    code_bytes: int
    kernels: int
    launches: int
    multiply_adds: int
    map: MemoryMap | None = None

    entries = (
        "folder", "target", "device", "memory_bytes: plan.peak_bytes", "weights_bytes", "code_bytes", "kernels",
        "launches", "multiply_adds",
    )  # fmt: skip

    @property
    def headline(self) -> str:
        return f"of '{self.plan.request.network.name}' for {self.target} in {self.folder}"

    def __str__(self) -> str:
        """The page plan.txt."""
        plan, (loss,) = self.plan, self.plan.request.losses.by_output.values()
        (shape,) = plan.request.network.inputs.values()
        trained = list(dict.fromkeys(name.rpartition("/")[0] for name in plan.request.network.parameters
                                     if name in plan.storage.parameters))  # fmt: skip
        if len(trained) > MOST_NAMES:
            trained = [f"{len(trained)}, from {trained[0]} to {trained[-1]}"]
        numbers = "float32 values" if loss.target_dtype == "float32" else "int32 class numbers"
        return "\n".join([
            f"'{plan.request.network.name}' for {self.target}",
            f"  an example                {' x '.join(map(str, shape))} float32, channels last",
            f"  targets                   {numbers}",
            f"  trained layers            {', '.join(trained)}",
            f"  optimizer                 {_described(plan.request.optimizer)}",
            f"  kernels chosen for        {self.device}",
            f"  kernels                   {self.kernels:>10,}, {self.code_bytes:,} bytes",
            f"  launches of a step        {self.launches:>10,}",
            f"  multiply-adds of a step   {self.multiply_adds:>10,}",
            f"  model.weights             {self.weights_bytes / MB:>10.2f} MB", *self._board_lines(),
            "", str(plan),
        ])  # fmt: skip

    def _board_lines(self) -> list[str]:
        if self.map is None:
            return []
        memories = zip(("flash", "SRAM"), self.map.used, self.map.sizes, strict=True)
        return [f"  {name + ', predicted':<25} {used:>10,} of {size:,} bytes" for name, used, size in memories]


def bundle(
    model: Model,
    out: str | Path,
    *,
    batch_size: int,
    micro_batch: int | None = None,
    budget: BudgetLike | None = None,
    last_batches: Sequence[int] = (),
    target: str = "opencl",
    sram: int | str | None = None,
    flash: int | str | None = None,
) -> Bundle:
    """Write the training of a model as C99 sources, which build and run without Python.

    >>> model = el.Model(network, weights).compile(el.SGD(0.01, momentum=0.9))
    >>> print(el.bundle(model, "flowers_bundle", batch_size=16, micro_batch=1, budget="20 MB"))

    The folder then holds the plan as constant tables, the kernels, the runtime with its header `edgelearn.h`,
    `model.weights`, CMakeLists.txt, an example, and `plan.txt`, which says what is inside. On the model's device the
    bundle computes the bits of `model.fit`.

    Arguments:
    - `model`: a compiled Model, with its weights, and its ranges if it was trained in int8: the bundle goes on from
      these, else its first step measures them, which takes tensors of floats. The plan is for the model's device.
    - `out`: the folder, which is made; files of an older bundle there are replaced.
    - `batch_size`: examples of a mini-batch.
    - `micro_batch`, `budget`: as in Model.plan.
    - `last_batches`: up to four sizes of shorter mini-batches that it is to take, too (default none).
    - `target`: "opencl" (default), a device with a driver of OpenCL 1.2; "c", one processor without any driver: plain
      C99 on static memory, which computes in float32; "cortex-m", the same for a microcontroller, with frozen weights
      in flash.
    - `sram`, `flash`: memory of the microcontroller, such as "256 KiB" and "1 MiB" (the defaults where one is given).
      The micro-batch is then the largest that fits, unless it is given, and activations are recomputed if they must be.

    Raises PlanError for a training that a bundle can't hold, saying what to change; RunError if a file can't be
    written.
    """
    request = replace(
        model.settings, batch_size=batch_size, micro_batch=batch_size if micro_batch is None else micro_batch,
        last_batches=tuple(last_batches), known_ranges=bool(records := model.range_records()),
    )  # fmt: skip
    board = None
    if sram is not None or flash is not None:
        board = Board.of(sram, flash)
        if target != "cortex-m" or budget is not None:
            raise PlanError("sram and flash are for target='cortex-m', and take the place of a budget.")
        fitted = BoardPlanner(request, model, board, request.known_ranges, micro_batch or 0).fitted()
        request = fitted.plan.request
    return write_bundle(request, model.weights, out, target, model.device, budget, records, board)


def write_bundle(
    request: Request, weights: Weights, out: str | Path, target: str, device: Device | None = None,
    budget: BudgetLike | None = None, records: Weights | None = None, board: Board | None = None,
) -> Bundle:  # fmt: skip
    """Write a bundle of any request that trains; see `bundle`.

    Arguments:
    - `request`: the training.
    - `weights`: all weights of its network.
    - `out`, `target`, `budget`: as in `bundle`.
    - `device`: that the plan is for, if the target doesn't say (default: the best one here).
    - `records`: ranges of quantized tensors, if the request knows them (default none).
    - `board`: memory of a microcontroller (default: 256 KiB of SRAM, 1 MiB of flash).

    Raises as `bundle`.
    """
    if target not in TARGETS:
        raise PlanError(f"A bundle's target is {' or '.join(map(repr, TARGETS))}, not {target!r}.")
    if len(request.last_batches) > 4:
        raise PlanError(f"A bundle takes up to 4 sizes of shorter mini-batches, not {len(request.last_batches)}.")
    kind = TARGETS[target]
    chosen = kind.device or device or choose_device(None).device
    times = launch_times(chosen, request.allow) if budget is not None and request.allow else None
    plan = make_plan(request, chosen, budget, traits=kind.traits, launch_times=times)
    tables = Tables(plan)
    fills = tables.fills(weights, records or {})
    made = CortexMTarget(tables, fills, board or Board()) if kind is CortexMTarget else kind(tables, fills)
    folder, content = Path(out), weights_file(made.fills)
    written = Bundle(
        folder, plan, target, chosen.id, len(content), made.code_bytes, made.kernels, tables.launches_of_step,
        tables.multiply_adds_of_step, predict_map(made) if isinstance(made, CortexMTarget) else None,
    )  # fmt: skip
    _make(folder)
    own = [source for name in made.folders for source in sorted((RUNTIME / name).iterdir())]
    for source in [*(RUNTIME / name for name in SHARED), *own]:
        shutil.copyfile(source, folder / source.name)
    texts = {"model.c": model_source(tables, made.fills), "plan.txt": f"{written}\n"} | made.files()
    for name, text in texts.items():
        atomic.write_bytes(folder / name, text.encode())
    atomic.write_bytes(folder / "model.weights", content)
    return written


def _described(optimizer: Optimizer | None) -> str:
    """The optimizer with its learning rate, and the settings that aren't defaults."""
    if optimizer is None:
        return "none"
    said = [
        f"{each.name}={value!r}" for each in fields(optimizer)
        if (value := getattr(optimizer, each.name)) != each.default or each.name == "learning_rate"
    ]  # fmt: skip
    return f"{type(optimizer).__name__}({', '.join(said)})"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"The folder {folder} can't be made ({error.strerror}): name another one.") from None


def read_state(path: str | Path) -> tuple[Weights, dict]:
    """Read a state that `edgelearn_save` wrote on a device: (tensors, position), as `Model.restore` takes them.

    >>> model.restore(*el.bundles.read_state("phone.state"))

    Raises FormatError if the file is damaged or of another kind.
    """
    tensors = safetensors.read_weights(path)
    updates = tensors.pop("state/updates", None)
    if safetensors.read_metadata(path).get("format") != "edgelearn state" or updates is None:
        raise FormatError(f"{path} is no state of a bundle: give a file that edgelearn_save wrote.")
    tensors.pop("state/checksum", None)
    return tensors, {"updates": int(updates[0])}
