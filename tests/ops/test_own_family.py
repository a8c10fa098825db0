"""A new family of kernels: a class, a kernel file, and a line that enters it among those for the same products."""

import pytest

from edgelearn.ops import Conv2D, Dense
from edgelearn.ops.families import Family, Pointwise
from edgelearn.ops.linear import CHOICES
from edgelearn.ops.products import FORWARD

from .linear import check_linear

SOURCE = """
#include "elementwise.h"
#include "epilogue.h"

// y = activation((x w) * scale + shift), a row of 16 channels at a time
KERNEL rows_forward(INPUT(x), INPUT(w), OUTPUT(y), const int m, const int k EPILOGUE_ARGUMENTS) {
  input x = START(x), w = ITEM_START(w);
  output y = ITEM_START(y);
  const int row = ITEM, block = get_global_id(1);
  if (row >= m) return;
  V sum = (V)0;
  for (int c = 0; c < k; c++) sum += load(w + row_at(block, k, c)) * x[row_at(c / BLOCK, m, row) + c % BLOCK];
  store(y + row_at(block, m, row), apply(affine_of(EPILOGUE, block * BLOCK), sum));
}
"""


class Rows(Family):
    """One row a work-item, for products of few rows of floats."""

    def __init__(self, source):
        self.source = str(source)

    def candidates(self, e, p):
        return [{"row_items": 1}] if p.part == FORWARD and e.compute.type == "fp32" else []

    def emit(self, e, p, config):
        x, y = p.left, p.out
        grid = (x.rows, y.blocks)
        e.launch(
            self.source, "rows_forward", grid, *p.reads, *p.first, x.rows, x.channels, *p.last, flops=p.flops,
            **p.macros,
        )  # fmt: skip


@pytest.mark.parametrize(("op", "shape"), [(Dense(40), (70,)), (Conv2D(33, 1), (3, 5, 20))], ids=str)
def test_it_competes(bench, rng, tmp_path, monkeypatch, op, shape):
    """Its configuration comes first, and those of other families can still be chosen."""
    (tmp_path / "rows.cl").write_text(SOURCE)
    (choice,) = (c for c in CHOICES if any(isinstance(family, Pointwise) for family in c.families))
    monkeypatch.setattr(choice, "families", [Rows(tmp_path / "rows.cl"), *choice.families])
    tried = check_linear(op, bench, rng, shape, choices="sizes")["pointwise_forward"]
    assert tried[0] == {"row_items": 1} and len({tuple(config) for config in tried}) > 1
