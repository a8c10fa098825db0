"""Constants that Python and kernels share. Each is defined here alone: the headers that `HEADERS` names are generated,
and a kernel includes them as it does files of kernels/include."""

from __future__ import annotations

from enum import IntEnum


class Scalar(IntEnum):
    """Places of the numbers of a mini-batch that the host writes."""

    INVERSE_BATCH = 0  # factor of a row's gradient: 1 / examples, 1 / rows of one, the loss's weight
    LEARNING_RATE = 1  # of this update
    CORRECTION = 2  # Adam: sqrt(1 - beta2^t) / (1 - beta1^t); LAMB: 1 / (1 - beta1^t)
    SEED = 3  # two words as uint, the low one first: floats would hold integers only up to 2^24
    SEED_HIGH = 4
    STEP = 5  # as uint
    SECOND_CORRECTION = 6  # LAMB: 1 / sqrt(1 - beta2^t)
    UNSCALE = 7  # 1 / loss scale, a power of two


class Counter(IntEnum):
    """Places of the numbers of a mini-batch that the device counts."""

    LOSS = 0  # sum of the losses so far
    CORRECT = 1  # right answers so far
    SEEN = 2  # examples so far
    NONFINITE = 3  # chunks of gradients with a NaN or an infinity, and the loss if it is one
    OUTPUTS = 4  # of each of several outputs: sum of its losses, right answers


class StoredType(IntEnum):
    """Types of values in memory that kernels read."""

    FLOAT32 = 0
    FLOAT16 = 1
    INT8 = 2
    BFLOAT16 = 3

    @staticmethod
    def of(dtype: str) -> StoredType:
        """The storage of a dtype, such as "float16"."""
        return StoredType[dtype.upper()]

    @staticmethod
    def has(dtype: str) -> bool:
        return dtype.upper() in StoredType.__members__


class RangeField(IntEnum):
    """Fields of the record of a range."""

    SCALE_OF = 0  # a step, in the tensor's units
    INVERSE = 1  # 1 / scale
    ZERO = 2  # the integer that stands for 0
    LOW = 3  # the range in use
    HIGH = 4
    LEAST_FOUND = 5  # least and most value of the last mini-batch (0 included)
    MOST_FOUND = 6
    CLIPPED = 7  # values beyond the range in use; a NaN where a value was a NaN or an infinity
    COUNT = 8  # values
    SIGNAL = 9  # sums for traces: v * v,
    NOISE = 10  # (v - w) * (v - w) with w the value that v became,
    PRODUCT = 11  # v * w,
    RESULT_POWER = 12  # w * w
    NEXT_LOW = 13  # the range that the next mini-batch starts from
    NEXT_HIGH = 14
    UPDATES = 15  # mini-batches that the next range has been updated by


class RangeRule(IntEnum):
    """How the next range of a tensor follows from a mini-batch."""

    RULE_BLEND = 0  # from the statistics, and with `momentum` from the range before
    RULE_KEEP = 1  # the range in use
    RULE_OWN = 2  # from the statistics, which were also the range in use


class ErrorKind(IntEnum):
    """Errors of regression losses."""

    SQUARED = 0
    ABSOLUTE = 1
    HUBER = 2


class OperandKind(IntEnum):
    """How arithmetic reads an operand."""

    WHOLE = 0  # it has the size of the result
    REPEATED = 1
    SINGLE = 2  # it has one channel and the result more


class ReductionKind(IntEnum):
    """Kinds of reductions."""

    SUM = 0
    MAXIMUM = 1
    SHARE = 2  # of each of equal maxima in the gradient


def _header(*kinds: type[IntEnum]) -> str:
    return "".join(f"#define {member.name} {member.value}\n" for kind in kinds for member in kind)


HEADERS = {
    "scalars.h": _header(Scalar, Counter), "stored_types.h": _header(StoredType), "range_fields.h": _header(RangeField),
    "range_rules.h": _header(RangeRule), "error_kinds.h": _header(ErrorKind), "operand_kinds.h": _header(OperandKind),
    "reduction_kinds.h": _header(ReductionKind),
}  # fmt: skip
