"""Target c: the plan's launches as calls of plain C functions, for one processor without an operating system.

The plan is made for PLAIN, a device of one core, so that it needs few of the kernels. Each of these has a function of
the same meaning in runtime/c/kernels.c; KERNELS says how its arguments follow from a launch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import inf

from edgelearn.device import Device
from edgelearn.errors import PlanError
from edgelearn.launch import Launch
from edgelearn.tuned import Traits

from .tables import UNIT, Fill, Place, Step, Tables
from .text import argument, array, braces

PLAIN = Device(
    name="one processor", platform="C99", vendor="", driver="", version="", kind="cpu", memory=1 << 40,
    largest_buffer=1 << 40, local_memory=1 << 15, compute_units=1, clock_mhz=1, alignment=UNIT, vector_width=4,
    extensions=(),
)  # fmt: skip
PLAIN_TRAITS = Traits(compute_units=1, vector_width=4)

# Element-wise functions, by the numbers of kernels.h
FUNCTIONS = (
    "linear", "relu", "relu6", "clip", "leaky_relu", "elu", "tanh", "softsign", "sigmoid", "hard_sigmoid", "silu",
    "hard_swish",
)  # fmt: skip

# By kernel: the arguments of its launch in order, some of them there only if a macro is set (`name?MACRO`); then
# what the C function takes. In capitals: the value of a macro, or one of GROUPS. A digit is the grid's size in that
# dimension, one with "*" times the value of that macro. A "-" is an argument that isn't there.
ROWS, SIZES, JOBS = "m count", "height width out_height out_width", "table jobs items"
UPDATE = "w g scalars counters blocks decay"
STATISTICS = "gamma beta scale shift mean inverse moving_mean moving_variance"
OUT, DX = "scale?SCALE shift?SHIFT", "dx activation?MASK"
KERNELS = {
    "fold_statistics": (
        f"gamma beta mean variance scale shift inverse bias?BIAS {JOBS} epsilon",
        f"gamma beta mean variance scale shift inverse bias {JOBS} epsilon",
    ),
    "convolution_forward": (
        f"x w y images height width channels out_height out_width {OUT}",
        "x w y images height width channels out_height out_width 1*PANELS IN_BLOCK WINDOW EPILOGUE",
    ),
    "convolution_backward_data": (
        f"dy t images height width out out_height out_width {DX}",
        "dy t images height width out out_height out_width 1*PANELS WINDOW GRADIENT",
    ),
    "convolution_backward_weights": (
        "x dy dw images height width channels out_height out_width rows blocks add",
        "x dy dw images height width channels out_height out_width rows blocks add 2 IN_BLOCK WINDOW",
    ),
    "depthwise_forward": (
        f"x w y images {SIZES} rows steps {OUT}", f"x w y images {SIZES} 1 WINDOW EPILOGUE",
    ),
    "depthwise_backward_data": (
        f"dy w images {SIZES} rows steps {DX}", f"dy w images {SIZES} 1 WINDOW GRADIENT",
    ),
    "depthwise_backward_weights": (
        f"x dy dw sums?SUMS images {SIZES} rows blocks add", f"x dy dw sums images {SIZES} rows blocks add 0 WINDOW",
    ),
    "pointwise_forward": (f"x w y m k {OUT}", "x w y m k 1*PANELS EPILOGUE"),
    "pointwise_backward_data": (f"dy t m k {DX}", "dy t m k 1*PANELS GRADIENT"),
    "pointwise_backward_weights": (
        "x dy dw sums?SUMS m k blocks first count add", "x dy dw sums m k blocks first count add 2",
    ),
    "few_rows_backward_data": (f"dy w m k blocks {DX}", "dy w m k blocks GRADIENT"),
    "transpose_blocks": (f"w t scale?SCALE {JOBS}", f"w t scale {JOBS}"),
    "scale_taps": (f"w t scale {JOBS}", f"w t scale {JOBS}"),
    "whole_forward": (f"y {STATISTICS} z m blocks epsilon pace", f"y {STATISTICS} z m blocks epsilon pace FUNCTION"),
    "whole_backward": (
        f"dz y scale mean inverse dgamma dbeta {DX} m blocks moving add",
        "dz y scale mean inverse dgamma dbeta m blocks moving add GRADIENT",
    ),
    "normalize_forward": (f"y scale shift z {ROWS}", "y scale shift z m 1 FUNCTION"),
    "channel_sums": ("x sums m blocks count add", "x sums m blocks count add 0"),
    "global_average_forward": ("x y images pixels", "x y images pixels 1"),
    "global_average_backward": (f"dy {ROWS} pixels {DX}", "dy m 1 pixels GRADIENT"),
    "max_forward": (f"x y {ROWS} {SIZES}", f"x y m 1 {SIZES} WINDOW"),
    "max_taps": (f"x y chosen {ROWS} {SIZES}", f"x y chosen m 1 {SIZES} WINDOW"),
    "max_backward_taps": (f"chosen dy {ROWS} {SIZES} {DX}", f"chosen dy m 1 {SIZES} WINDOW GRADIENT"),
    "average_forward": (f"x y {ROWS} {SIZES}", f"x y m 1 {SIZES} WINDOW"),
    "average_backward": (f"dy {ROWS} {SIZES} {DX}", f"- dy m 1 {SIZES} WINDOW GRADIENT"),
    "activation_forward": (f"x y {ROWS} channels?PADDED", "x y m 1 channels OWN"),
    "activation_backward": (f"own dy {ROWS} channels?PADDED {DX}", "own dy m 1 channels OWN GRADIENT"),
    "add": (f"a b y {ROWS}", "a b y m 1 FUNCTION"),
    "copy": (f"x {ROWS} {DX}", "x m 1 GRADIENT"),
    "pad_channels": (f"x {ROWS} channels {DX}", "x m channels GRADIENT"),
    "reshape": (
        f"x {ROWS} from_rows from_channels to_rows to_channels {DX}",
        "x m from_rows from_channels to_rows to_channels GRADIENT",
    ),
    "softmax": ("x p n classes", "x p n classes"),
    "softmax_cross_entropy": (
        "x labels losses right n classes smoothing scalars?GRADIENT gradient?GRADIENT",
        "x labels losses right n classes smoothing scalars gradient",
    ),
    "count_examples": (
        "losses right counters rows examples share weight place",
        "losses right counters rows examples share weight place",
    ),
    "finish_sum": (
        f"total flags partials?PARTIALS scale?SCALE w?GAMMA sums?GAMMA {JOBS}",
        f"total flags partials scale w sums {JOBS}",
    ),
    "finish_gamma": (
        f"dgamma flags sums mean inverse dbeta bias?BIAS {JOBS}", f"dgamma flags sums mean inverse dbeta bias {JOBS}",
    ),
    "finish_bias": (f"dbias flags dbeta scale {JOBS}", f"dbias flags dbeta scale {JOBS}"),
    "count_nonfinite": ("flags counters count step", "flags counters count step"),
    "sgd": (UPDATE, UPDATE),
    "sgd_momentum": (f"{UPDATE} velocity momentum nesterov", f"{UPDATE} velocity momentum nesterov"),
    "adam": (
        f"{UPDATE} first second pace1 pace2 epsilon", f"{UPDATE} first second pace1 pace2 epsilon",
    ),
    "commit": ("x y counters blocks", "x y counters blocks"),
}  # fmt: skip
FUNCTION = "ACTIVATION ACTIVATION_A ACTIVATION_B"
GROUPS = {
    "WINDOW": "KERNEL_H KERNEL_W STRIDE_Y STRIDE_X DILATION_Y DILATION_X PAD_TOP PAD_LEFT",
    "FUNCTION": FUNCTION, "OWN": "OWN OWN_A OWN_B", "EPILOGUE": f"scale shift {FUNCTION}",
    "GRADIENT": f"dx activation MASK ACCUMULATE {FUNCTION}",
}  # fmt: skip
# Macros without a meaning of their own
TILING = {"DIRECT", "ROWS", "PANELS", "TILE", "DEPTH", "CHUNK", "VECTOR_WIDTH", "SHARED", "IN_BLOCK"}
NAMED = {"MASK_SUM": 2, "INFINITY": inf, "-INFINITY": -inf}  # values of macros that have names
DEFAULTS = {"OWN": "linear_", "ACTIVATION": "linear_", "SUB_BANDS": 1}  # of macros; others are 0

Value = Place | int | float


def values_of(step: Step) -> list[Value]:
    """The arguments of the C function of a step's kernel. Raises PlanError for a kernel, or a variant of one, without a
    function."""
    launch = step.launch
    if launch.kernel not in KERNELS:
        raise _missing(launch, "")
    taken, passed = KERNELS[launch.kernel]
    macros = DEFAULTS | dict(launch.macros)
    names = [name for name, _, flag in (word.partition("?") for word in taken.split()) if not flag or macros.get(flag)]
    if len(names) != len(step.arguments):
        raise _missing(launch, " in this form")
    arguments: dict[str, Value] = dict(zip(names, step.arguments, strict=True))
    words = list(_expanded(passed))
    known = {*TILING, *words, *(word.partition("?")[2] for word in taken.split())}
    odd = {name: value for name, value in macros.items() if name not in known and value != DEFAULTS.get(name, 0)}
    if odd:
        raise _missing(launch, f" with {', '.join(f'{name}={value}' for name, value in odd.items())}")
    return [_value(word, arguments, macros, launch) for word in words]


def _expanded(words: str) -> Iterator[str]:
    """The words, with those of GROUPS for theirs."""
    for word in words.split():
        yield from GROUPS.get(word, word).split()


def _value(word: str, arguments: dict[str, Value], macros: dict[str, int | str], launch: Launch) -> Value:
    if word == "-":
        return 0
    dimension, _, macro = word.partition("*")
    if dimension.isdigit():
        return launch.grid[int(dimension)] * int(macros.get(macro, 1))
    if word in ("ACTIVATION", "OWN"):
        name = str(macros[word]).removesuffix("_")
        if name not in FUNCTIONS:
            raise _missing(launch, f" with the function {name}")
        return FUNCTIONS.index(name)
    if word.isupper():
        value = macros.get(word, 0.0 if word.endswith(("_A", "_B")) else 0)
        return _number(value) if isinstance(value, str) else value
    return arguments.get(word, 0)


def _number(text: str) -> int | float:
    """The value of a macro: a name, or a float32 in hexadecimal."""
    return NAMED[text] if text in NAMED else float.fromhex(text.removesuffix("f"))


def _missing(launch: Launch, variant: str) -> PlanError:
    return PlanError(
        f"'{launch.layer or 'the end of a step'}' needs the kernel {launch.kernel}{variant}, which target c has no C "
        f"function for. Freeze the layers up to it, take another layer, or bundle for target='opencl'."
    )


class PlainTarget:
    """The files of a bundle for one processor, besides the tables of every target.

    Arguments:
    - `tables`: the plan's.
    - `fills`: what is in memory before the first step.

    Raises PlanError for kernels without a C function, naming layer and remedy.
    """

    folders: tuple[str, ...] = ("c",)
    device, traits = PLAIN, PLAIN_TRAITS

    def __init__(self, tables: Tables, fills: Sequence[Fill]) -> None:
        self.tables, self.fills = tables, fills
        self.values = [values_of(step) for step in tables.steps]

    @property
    def kernels(self) -> int:
        """Number of different C functions."""
        return len({step.launch.kernel for step in self.tables.steps})

    @property
    def code_bytes(self) -> int:
        """The kernels are part of the program."""
        return 0

    def files(self) -> dict[str, str]:
        """Generated sources by name."""
        return {"calls.c": self._calls()}

    def _calls(self) -> str:
        firsts = accumulate(map(len, self.values), initial=0)
        rows = [
            braces(f"el_{step.launch.kernel}", first, len(values))
            for step, values, first in zip(self.tables.steps, self.values, firsts, strict=False)
        ]
        arguments = [argument(value) for values in self.values for value in values]
        return "\n".join([
            '/* The launches of the plan as calls. */\n#include "calls.h"\n',
            array("el_argument el_arguments", arguments), array("el_call el_calls", rows), self._memories(),
        ])  # fmt: skip

    def _memories(self) -> str:
        """One static array for all memories."""
        tables = self.tables
        sizes = [tables.plan.bytes_by_role[role] // 4 for role in tables.roles]
        starts = list(accumulate(sizes, initial=0))
        return "\n".join([
            f"static float arena[{starts[-1]}];\n",
            array("uint8_t el_memory_is_constant", [0] * len(sizes)),
            array("float *el_memories", (f"arena + {start}" for start in starts[:-1])).replace(
                "const float *el_memories", "float *const el_memories"
            ),
        ])  # fmt: skip
