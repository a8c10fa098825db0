// Products of two computed matrices of each image. Both are blocked: [columns / 16][images x rows][16].
#include "elementwise.h"

#define TILE 4  // rows of a work-item

// dx = a b, with a of m x k and b of k x n; with ACROSS, a is stored as k x m
KERNEL multiply(INPUT(a), INPUT(b), const int images, const int m, const int k, GRADIENT_ARGUMENTS) {
  const int tiles = (m + TILE - 1) / TILE, image = ITEM / tiles, first = ITEM % tiles * TILE, block = get_global_id(1);
  if (image >= images) return;
  input a = START(a), b = ITEM_START(b) + row_at(block, images * k, image * k);
  const Gradient dx = GRADIENT;
  V sums[TILE];
  UNROLL for (int r = 0; r < TILE; r++) sums[r] = (V)0;
  for (int i = 0; i < k; i++) {
    const V factors = load(b + (size_t)i * BLOCK);
    UNROLL for (int r = 0; r < TILE; r++) {
      const int row = first + r < m ? first + r : m - 1;
#if ACROSS
      sums[r] += a[value_at(row, (size_t)images * k, (size_t)image * k + i)] * factors;
#else
      sums[r] += a[value_at(i, (size_t)images * m, (size_t)image * m + row)] * factors;
#endif
    }
  }
  UNROLL for (int r = 0; r < TILE; r++)
    if (first + r < m) write_gradient(dx, row_at(block, images * m, image * m + first + r), sums[r]);
}
