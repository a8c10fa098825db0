"""The products of linear layers: the one place that chooses among families of kernels.

Families of one `Choice` compete: which is taken depends on what was tuned for the device, else on their order. A new
family is put before others that compute the same products: `CHOICES[-1].families.insert(0, MyFamily())`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from .emit import Emitter, Epilogue, emit_channel_sums
from .families import (
    Convolution,
    Depthwise,
    Family,
    FewRows,
    Grouped,
    Local,
    Pointwise,
    Sums,
    Units,
    has_columns,
    matrix_problem,
)
from .formats import QuantizedTensor, Stored, is_integers, tensor_of
from .products import DATA, FORWARD, WEIGHTS, Geometry, Product
from .quantize import Residual, emit_integer_channel_sums
from .quantized import QuantizedConvolution, QuantizedDepthwise, QuantizedUnits, flattened, multiplies
from .target import Target
from .tensor import BLOCK, Tensor
from .winograd import Winograd


@dataclass
class Choice:
    """A kind of product, and the families that compete for it.

    Arguments:
    - `applies`: True for products of this kind.
    - `decision`: name and numbers by which choices are tuned (default None: there is nothing to choose).
    - `families`: in the order of their candidates, unless their `rank` says otherwise.
    - `view`: another geometry for the same product (default: its own).
    """

    applies: Callable[[Emitter, Product], bool]
    families: list[Family]
    decision: Callable[[Emitter, Product], tuple[str, Sequence[int]]] | None = None
    view: Callable[[Emitter, Product], Product] = lambda e, p: p


def emit(e: Emitter, p: Product) -> Sums | None:
    """Choose a family and a configuration for a product, and emit its launches."""
    choice = next(choice for choice in CHOICES if choice.applies(e, p))
    p = choice.view(e, p)
    families = sorted(choice.families, key=lambda family: family.rank(e, p))
    found = [(config, family) for family in families for config in family.candidates(e, p)]
    configs = [config for config, _ in found]
    with e.choose(*choice.decision(e, p), configs) if choice.decision else nullcontext(configs[0]) as chosen:
        sums = next(family for config, family in found if config == chosen).emit(e, p, chosen)
    if sums and p.sums and sums[1] is None:
        assert isinstance(p.factors[1], Tensor)
        return sums[0], emit_channel_sums(e, p.factors[1], p.sums, p.add)
    return sums


def emit_forward(
    e: Emitter, geometry: Geometry, x: Stored, kernel: Stored, y: Tensor | Target, epilogue: Epilogue,
    residual: Residual | None = None,
) -> None:  # fmt: skip
    """Emit y = epilogue(x * kernel), or its sum with a `residual` where `adds_residuals`."""
    last, macros = [*epilogue.arguments], epilogue.macros
    if is_integers(x):
        target = y if isinstance(y, Target) else Target(y)
        if residual:
            last, macros = last + residual.arguments, macros | residual.macros
        first, macros, out = target.result_arguments(e), macros | target.result_macros(e), target.tensor
    else:
        target, out = None, y.tensor if isinstance(y, Target) else y
        first, macros = [out.write], macros | out.value_macros
    emit(
        e, Product(FORWARD, geometry, tensor_of(x), out, (x, kernel), first, last, macros, target, adds=bool(residual))
    )


def emit_backward_data(e: Emitter, geometry: Geometry, prepared: Stored, dy: Stored, target: Target) -> None:
    """Emit the gradient of the input from the prepared kernel."""
    integers = is_integers(dy)
    first = target.result_arguments(e) if integers else ()
    last = target.mask_arguments if integers else target.arguments
    macros = target.mask_macros | target.result_macros(e) if integers else target.macros
    sink = target if integers else None
    mask = tensor_of(target.mask).buffer if target.mask else None
    emit(e, Product(DATA, geometry, target.tensor, tensor_of(dy), (dy, prepared), first, last, macros, sink, mask=mask))


def emit_backward_weights(
    e: Emitter, geometry: Geometry, x: Stored, dy: Stored, gradient: Tensor, sums: Tensor | None, add: bool
) -> Sums:
    """Emit the gradients of the kernel and, with `sums`, of the bias."""
    y, macros, bias = tensor_of(dy), {}, None
    if isinstance(dy, QuantizedTensor) and is_integers(x):
        bias, sums = emit_integer_channel_sums(e, dy, sums, add) if sums else None, None
    else:
        macros = y.value_macros
    p = Product(WEIGHTS, geometry, tensor_of(x), y, (x, dy), (), (), macros, None, gradient, sums, add)
    found = emit(e, p)
    assert found
    return found[0], bias or found[1]


TuningKey = tuple[str, Sequence[int]]  # name and numbers
UNITS = Units()


def _sliding(name: str, filters: bool = True) -> Callable[[Emitter, Product], TuningKey]:
    """Decisions about windows, with or without the number of filters."""
    return lambda e, p: (
        f"{name}_{p.part}",
        (*p.window.problem(p.images, p.x.channels), *([p.y.channels] if filters else [])),
    )


def _rows(e: Emitter, p: Product) -> TuningKey:
    return f"pointwise_{p.part}", (p.left.rows, p.left.channels, (p.y if p.part == WEIGHTS else p.out).channels)


def _unit_decision(e: Emitter, p: Product) -> TuningKey:
    return f"units_{p.part}_{e.compute.type}", (*matrix_problem(p, UNITS.together(p)), *p.window.kernel)


def _is_pointwise(e: Emitter, p: Product) -> bool:
    return p.kind == "dense" or (p.window.is_pointwise and p.left.block == BLOCK)


def _integer_units(e: Emitter, p: Product) -> TuningKey:
    return f"quantized_units_{p.part}", (*matrix_problem(p), *p.window.kernel)


def _multiplies_integers(e: Emitter, p: Product) -> bool:
    return p.of_integers and multiplies(e, p.x)


CHOICES = [
    Choice(
        lambda e, p: p.of_integers and p.kind == "depthwise", [QuantizedDepthwise()],
        _sliding("quantized_depthwise", filters=False),
    ),
    Choice(_multiplies_integers, [QuantizedUnits()], _integer_units, flattened),
    Choice(lambda e, p: p.of_integers, [QuantizedConvolution()], _sliding("quantized_convolution"), flattened),
    Choice(lambda e, p: has_columns(p), [Convolution()]),
    Choice(lambda e, p: p.kind == "grouped", [Grouped()]),
    Choice(lambda e, p: p.kind == "depthwise", [Depthwise()], _sliding("depthwise", filters=False)),
    Choice(lambda e, p: e.compute.uses_units, [UNITS], _unit_decision),
    Choice(lambda e, p: p.kind == "dense" and p.part == DATA and len(tensor_of(p.factors[1]).shape) == 2, [FewRows()]),
    Choice(_is_pointwise, [Local(), Pointwise()], _rows, lambda e, p: p.flat(1, p.x.rows)),
    Choice(lambda e, p: True, [Local(), Winograd(), Convolution()], _sliding("convolution")),
]  # fmt: skip
