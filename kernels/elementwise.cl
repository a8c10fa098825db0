// Element-wise kernels: copies and sums.
#include "elementwise.h"

// dx = x: how layers that only move values pass on a gradient
KERNEL copy(INPUT(x), ROWS_ARGUMENTS, GRADIENT_ARGUMENTS) {
  input x = ITEM_START(x);
  const Gradient dx = GRADIENT;
  const Band band = band_of(m, count);
  for (int row = band.start; row < band.stop; row++) {
    const size_t at = row_at(band.block, m, row);
    write_gradient(dx, at, load(x + at));
  }
}

// y = a + b
KERNEL add(INPUT(a), INPUT(b), OUTPUT(y), ROWS_ARGUMENTS) {
  input a = ITEM_START(a), b = ITEM_START(b);
  output y = ITEM_START(y);
  const Band band = band_of(m, count);
  for (int row = band.start; row < band.stop; row++) {
    const size_t at = row_at(band.block, m, row);
    store(y + at, load(a + at) + load(b + at));
  }
}
