"""Number formats, tensors that are stored in them, and views of kernels.

Integers q stand for scale * (q - zero), by a range that always contains 0, so that 0 (padding, a ReLU's floor) is
exact. Kernels: kernels/include/stored.h, kernels/include/range.h. Half precision: quantize.py."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any, ClassVar, Self, TypeGuard

import numpy as np

from edgelearn.errors import PlanError
from edgelearn.launch import In, Role

from .constants import StoredType as StoredType
from .emit import Emitter
from .registry import enter
from .tensor import BLOCK, Shape, Tensor, ceil_div, pack


@dataclass(frozen=True)
class RangeStatistics:
    """Records of a tensor's values in one mini-batch, one for each work-group.

    Arguments:
    - `parts`: (records, 16), fields as in kernels/include/range.h.
    - `traced`: also sum up signal, noise and product, for signal to noise and cosine.
    - `add`: add to the records of earlier micro-batches.
    """

    parts: Tensor
    traced: bool = False
    add: bool = False


ROWS_TOGETHER = 256  # work-items of a GPU for a block of channels that is scaled


@dataclass(frozen=True)
class KernelView:
    """A kernel as a product reads it.

    Arguments:
    - `kernel`: the weights.
    - `taps`: transpose in each of this number of taps; 0 for no transposition.
    - `scale`: multiply each output channel by its scale; None for no scale.
    """

    kernel: Tensor
    taps: int = 0
    scale: Tensor | None = None

    @property
    def sizes(self) -> tuple[int, int]:
        """(input channels, output channels) of a tap."""
        return self.kernel.rows // max(self.taps, 1), self.kernel.channels

    @property
    def changes(self) -> bool:
        """True if it isn't the kernel itself."""
        return self.taps > 0 or self.scale is not None

    @property
    def shape(self) -> Shape:
        inputs, outputs = self.sizes
        return (self.taps, outputs, inputs) if self.taps else self.kernel.shape

    @property
    def read(self) -> tuple[In, ...]:
        return (self.kernel.read,) if self.scale is None else (self.kernel.read, self.scale.read)

    def of(self, packed: np.ndarray) -> np.ndarray:
        """The view of a packed kernel's values, without a scale, in NumPy: float32 (blocks, rows, 16)."""
        if not self.taps:
            return packed.reshape(self.kernel.blocks, -1, BLOCK)
        inputs, outputs = self.sizes
        by_tap = packed.reshape(-1, self.taps, inputs, BLOCK).transpose(1, 2, 0, 3).reshape(self.taps, inputs, -1)
        return pack(np.ascontiguousarray(by_tap[..., :outputs].transpose(0, 2, 1)))

    @property
    def macros(self) -> dict[str, Any]:
        """SCALE and TRANSPOSED in kernels/include/weights.h."""
        return {"scale": self.scale is not None, "transposed": self.taps > 0}


def emit_prepared(e: Emitter, view: KernelView) -> Tensor:
    """Emit the jobs that write the tensor that `view` describes, unless that is the kernel itself."""
    if view.taps:
        return emit_transposed(e, view.kernel, view.taps, view.scale)
    return view.kernel if view.scale is None else emit_scaled_taps(e, view.kernel, view.scale)


def emit_transposed(e: Emitter, kernel: Tensor, taps: int, scale: Tensor | None) -> Tensor:
    """Emit the job [out/16][taps][in][16] -> [in/16][taps][out][16], each output channel times its scale."""
    inputs, outputs = kernel.rows // taps, kernel.channels
    transposed = e.tensor("kernel transposed", (taps, outputs, inputs), Role.PREPARED)
    rows, blocks = ("rows", ceil_div(inputs, 16) * taps * outputs), ("blocks", taps * ceil_div(outputs, 16))
    kernel_name, items = rows if e.traits.gpu else blocks
    e.job(
        "transpose.cl", f"transpose_{kernel_name}", items, kernel.read, transposed.write,
        *([scale.read] if scale else []), numbers=(taps, inputs, outputs), whole=True, scale=scale is not None,
    )  # fmt: skip
    return transposed


def emit_scaled_taps(e: Emitter, kernel: Tensor, scale: Tensor) -> Tensor:
    """Emit the job that multiplies a kernel by its output channels' scales."""
    scaled = e.tensor("kernel scaled", kernel.shape, Role.PREPARED)
    together = min(kernel.rows, ROWS_TOGETHER) if e.traits.gpu else 1
    e.job(
        "transpose.cl", "scale_taps", kernel.blocks * together, kernel.read, scaled.write, scale.read,
        numbers=(kernel.rows, together),
    )  # fmt: skip
    return scaled


LEAST_SCALE = 2.0**-100  # of a range of nothing but 0: its values are 0 to any purpose, and 1 / scale is finite
ROUNDINGS = ("nearest", "stochastic")


class NumberFormat:
    """Base of the number formats.

    A new format is a frozen dataclass in one file, whose fields are its settings. It sets `bits` and overrides
    `storage`, `encode`, `decode`, `emit_encode` and, unless it is only simulated, `emit_decode`.
    Activations are stored as `storage` and decoded before they are read. Weights and inputs of BatchNorm are stored so
    only if kernels read that type (see `StoredType`), and simulated else.
    """

    registry: ClassVar[dict[str, type[NumberFormat]]] = {}
    needs_range: ClassVar[bool] = False  # values are encoded by the range of their tensor: see `Format`
    bits: int
    per_channel: bool = False

    def __init_subclass__(cls, **kwargs) -> None:
        super().__init_subclass__(**kwargs)
        enter(NumberFormat.registry, cls.__name__, cls, "the number format")

    @property
    def storage(self) -> str:
        """The dtype of an encoded value on the device."""
        raise NotImplementedError

    def with_bits(self, bits: int) -> Self:
        """The format with that many bits; itself if the number is fixed."""
        return self

    def to_dict(self) -> dict | str:
        """JSON-able; the inverse of `format_from`."""
        return {"format": type(self).__name__, **vars(self)}

    def encode(self, v, *args: Any, **kwargs: Any) -> np.ndarray:
        """The encoded values of `v` in NumPy, as kernels encode them."""
        raise NotImplementedError

    def decode(self, encoded, *args: Any, **kwargs: Any) -> np.ndarray:
        """The values that encoded ones stand for."""
        raise NotImplementedError

    def round(self, v) -> np.ndarray:
        """The values that the format has for `v`, in v's own type. Only for formats without a range."""
        return self.decode(self.encode(v)).astype(np.asarray(v).dtype)

    def emit_encode(self, e: Emitter, x: Tensor, y: Tensor, statistics: RangeStatistics | None = None) -> None:
        """Emit y = encoded x; decoded again, if `y` is float32 (simulated). `y` may be `x`.

        `statistics` are of the decoded values: COUNT, LEAST_FOUND and MOST_FOUND (kernels/include/range.h), and a
        NaN as CLIPPED if a value is no finite number, which makes the step fail.
        """
        raise NotImplementedError

    def emit_encode_weights(
        self, e: Emitter, view: KernelView, y: Tensor, statistics: RangeStatistics | None = None
    ) -> None:
        """Emit into `prepare` y = the kernel as `view` describes it, encoded; else as `emit_encode`. Override this to
        share launches between layers."""
        kernel = emit_prepared(e, view)
        e.emit_jobs()
        self.emit_encode(e, kernel, y, statistics)

    def emit_decode(self, e: Emitter, x: Tensor, y: Tensor) -> None:
        """Emit y = decoded x."""
        raise NotImplementedError


@dataclass(frozen=True)
class Format(NumberFormat):
    """Integers.

    Arguments:
    - `bits`: 2 to 16 (default 8).
    - `symmetric`: ranges reach as far below 0 as above, and the zero point is 0; other formats have a zero point.
    - `rounding`: "nearest" rounds halves to even; "stochastic" rounds up with the probability of the fraction, which is
      unbiased (Gupta et al. 2015, section 3).
    - `per_channel`: a range for each channel; only for weights.

    Raises PlanError for other settings.
    """

    needs_range: ClassVar[bool] = True
    bits: int = 8
    symmetric: bool = False
    rounding: str = "nearest"
    per_channel: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.bits, bool) or not isinstance(self.bits, int) or not 2 <= self.bits <= 16:
            raise PlanError(f"A format of integers has 2 to 16 bits, not {self.bits!r}.")
        if self.rounding not in ROUNDINGS:
            raise PlanError(f"Rounding is 'nearest' or 'stochastic', not {self.rounding!r}.")

    def __str__(self) -> str:
        words = [f"{self.bits} bits", "symmetric" if self.symmetric else "asymmetric"]
        return " ".join(words + ["stochastic"] * (self.rounding != "nearest") + ["per channel"] * self.per_channel)

    def with_bits(self, bits: int) -> Self:
        return replace(self, bits=bits)

    def to_dict(self) -> dict:
        return asdict(self)

    @property
    def storage(self) -> str:
        """int8 also for fewer than 8 bits, of which the others are unused."""
        return "int8" if self.bits <= 8 else "int16"

    @property
    def least(self) -> int:
        """The lowest integer."""
        return -self.most if self.symmetric else -(1 << (self.bits - 1))

    @property
    def most(self) -> int:
        """The highest integer."""
        return (1 << (self.bits - 1)) - 1

    @property
    def levels(self) -> int:
        """The number of integers."""
        return self.most - self.least + 1

    @property
    def largest(self) -> int:
        """The largest distance of an integer from the zero point."""
        return self.most if self.symmetric else self.levels - 1

    def parameters(self, low, high) -> tuple[np.ndarray, Any]:
        """(scale, zero point) for ranges [low, high], widened to contain 0; in the arrays' own precision."""
        low, high = np.minimum(low, 0), np.maximum(high, 0)
        width = np.maximum(-low, high) if self.symmetric else high - low
        scale = np.maximum(width / low.dtype.type(self.largest), low.dtype.type(LEAST_SCALE))
        zero = np.zeros(np.shape(scale), np.int64)
        return scale, zero if self.symmetric else np.int64(np.rint(-low / scale)) + self.least

    def encode(self, v, scale, zero, uniform: np.ndarray | None = None, inverse=None) -> np.ndarray:
        """int64 integers for `v`, computed in the precision of the arrays: float32 gives what the kernels give.

        Arguments:
        - `scale`, `zero`: see `parameters`.
        - `uniform`: numbers of (0, 1), one a value: stochastic rounding adds them, and takes the integer below.
        - `inverse`: 1 / scale as a device has rounded it, which some GPUs do differently.

        Raises PlanError if `uniform` is missing.
        """
        t = v * (np.ones((), np.asarray(scale).dtype) / scale if inverse is None else inverse)
        if self.rounding == "stochastic":
            if uniform is None:
                raise PlanError("Stochastic rounding needs uniform numbers: give one for each value.")
            t = np.floor(t + np.asarray(uniform, t.dtype))
        t = np.clip(t, self.least - zero, self.most - zero)
        return np.int64(np.rint(t)) + zero

    def decode(self, encoded, scale, zero) -> np.ndarray:
        """The values that integers stand for, in the precision of `scale`."""
        return (np.asarray(encoded) - zero).astype(np.asarray(scale).dtype) * scale


def has_range(fmt: NumberFormat | None) -> TypeGuard[Format]:
    """True for a format whose values are encoded by the range of their tensor."""
    return fmt is not None and fmt.needs_range


def format_from(data: dict | str) -> NumberFormat:
    """The inverse of `to_dict`. Raises TypeError, ValueError or PlanError for other data."""
    settings = {"format": data} if isinstance(data, str) else dict(data)
    name = settings.pop("format", "Format")
    for known, fmt in NumberFormat.registry.items():
        if name.lower() == known.lower():
            return fmt(**settings)
    raise ValueError(f"'{name}' is no number format; known are {', '.join(NumberFormat.registry)}")


LARGEST = (1 << 31) - 1  # what an accumulator holds


@dataclass(frozen=True)
class QuantizedTensor:
    """A tensor in a number format.

    Arguments:
    - `tensor`: the encoded values; for integers also, simulated, the floats that they stand for.
    - `record`: the range (fields in kernels/include/range.h): (1, 16), or (16, channels) for a format with a range
      for each channel; None for formats that need none.
    - `format`: the number format.
    - `name`: selects the random numbers of stochastic rounding.
    """

    tensor: Tensor
    record: Tensor | None
    format: NumberFormat
    name: str = ""

    @property
    def shape(self) -> Shape:
        return self.tensor.shape

    @property
    def read(self) -> tuple[In, ...]:
        return self.tensor.read, *self.record_read

    @property
    def record_read(self) -> tuple[In, ...]:
        return (self.record.read,) if self.record else ()

    @property
    def bounds(self) -> tuple[float, ...]:
        """The lowest and the highest integer of a format of integers."""
        return (float(self.format.least), float(self.format.most)) if isinstance(self.format, Format) else ()

    @property
    def is_stochastic(self) -> bool:
        return isinstance(self.format, Format) and self.format.rounding == "stochastic"


Stored = Tensor | QuantizedTensor


def tensor_of(x: Stored) -> Tensor:
    return x.tensor if isinstance(x, QuantizedTensor) else x


def is_integers(x: Stored) -> bool:
    """True for a tensor that integer kernels can multiply."""
    return tensor_of(x).dtype == "int8"


def reads(x: Stored) -> tuple[In, ...]:
    """INPUT_STORED in kernels/include/stored.h."""
    return x.read if isinstance(x, QuantizedTensor) else (x.read,)


def stored_macros(x: Stored) -> dict[str, Any]:
    """STORED, and with it PER_CHANNEL, of kernels/include/stored.h."""
    code = StoredType.of(tensor_of(x).dtype)
    return {"stored": code, "per_channel": isinstance(x, QuantizedTensor) and x.format.per_channel} if code else {}


def largest_sum(terms: int, *formats: NumberFormat) -> int:
    """The largest sum of `terms` products of two formats' integers, less their zero points."""
    return terms * prod(f.largest for f in formats if isinstance(f, Format))


def check_accumulators(layer: str, terms: int, *formats: NumberFormat) -> None:
    """Raises PlanError if a sum of `terms` products of two formats' integers, less their zero points, may overflow 32
    bits."""
    largest = largest_sum(terms, *formats)
    if largest > LARGEST:
        raise PlanError(
            f"'{layer}' adds up {terms:,} products of {' x '.join(str(f.bits) for f in formats)} bits, which can reach "
            f"{largest:,}, but accumulators hold {LARGEST:,}: use fewer bits or symmetric ranges, or keep it in fp32."
        )
