"""Compute types: how linear layers multiply, and how tensors between layers are stored."""

from __future__ import annotations

from dataclasses import dataclass

from edgelearn.errors import PlanError

STORED = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
LOSS_SCALE = 65536.0  # of fp16, at the start


@dataclass(frozen=True)
class Compute:
    """The type that convolutions and dense layers multiply in. Sums and master weights are float32.

    Arguments:
    - `type`: `"fp32"` (default); `"tf32"`, float32 tensors whose values are rounded to 11 bits as they are multiplied,
      or cut to them by the unit WGMMA;
      `"bf16"` or `"fp16"`, which also store activations and their gradients as halves. `"fp16"` scales the loss.
    - `plain`: compute without matrix units, on any device: as exact, and slow (default False).

    Raises PlanError for another type.
    """

    type: str = "fp32"
    plain: bool = False

    def __post_init__(self) -> None:
        if self.type not in STORED:
            raise PlanError(
                f"compute is {', '.join(map(repr, STORED))}, or a Compute of one of them, not {self.type!r}."
            )

    def __str__(self) -> str:
        return f"{self.type}, plain code" if self.plain else self.type

    @classmethod
    def of(cls, compute: Compute | str) -> Compute:
        """`compute` itself, or that of a type."""
        return compute if isinstance(compute, Compute) else cls(compute)

    @property
    def stored(self) -> str:
        """The dtype of activations and their gradients."""
        return STORED[self.type]

    @property
    def stores_halves(self) -> bool:
        return self.stored != "float32"

    @property
    def scales_loss(self) -> bool:
        return self.type == "fp16"

    @property
    def uses_units(self) -> bool:
        """True if products are made by a device's matrix units."""
        return self.type != "fp32" and not self.plain

    @property
    def depth_rows(self) -> bool:
        """True if both factors of a product are read in rows along the depth (DEPTH_ROWS in
        kernels/include/matrix_units.h): forward products read transposed kernels, those for the gradient of the input
        kernels as they are."""
        return self.uses_units and self.type == "tf32"

    @property
    def macros(self) -> dict[str, int]:
        """TF32 in kernels/include/values.h."""
        return {"tf32": 1} if self.type == "tf32" else {}
