// A tensor as it lies in memory, row by row; a row is as many floats as a work-item handles at a time. The zeros that
// pad channels are values like others. A tensor of fewer than 16 channels a block may end within a row, after `rest`
// of its floats. PLAIN: such a tensor pixel by pixel, `rest` channels each, in PIECES rows, none of which may be
// aligned. Else 16 channels have PIECES rows.
#include "stored.h"

#ifndef PLAIN
#define PLAIN 0
#endif
#if PLAIN
#define PIECES ((rest + VECTOR_WIDTH - 1) / VECTOR_WIDTH)
#else
#define PIECES VECTORS
#endif

// Row number `tile` of `rows`
typedef struct { size_t start; int is_cut, count; } Row;  // a row that is cut has only `count` values
INLINE Row row_of(const int tile, const int rows, const int rest) {
#if PLAIN
  const int left = rest - tile % PIECES * VECTOR_WIDTH;
  const size_t start = (size_t)(tile / PIECES) * rest + tile % PIECES * VECTOR_WIDTH;
  return (Row){start, 1, left < VECTOR_WIDTH ? left : VECTOR_WIDTH};
#else
  return (Row){(size_t)tile * VECTOR_WIDTH, rest && tile == rows - 1, rest};
#endif
}

INLINE V load_row(__global const float *x, const Row row) {
  V v = (V)0;
  if (row.is_cut) for (int i = 0; i < row.count; i++) ELEMENT(v, i) = x[row.start + i];
  else v = load(x + row.start);
  return v;
}

// v: the values, or for INT8 their integers
INLINE void store_row(__global Written *y, const Row row, const V v) {
  if (row.is_cut) for (int i = 0; i < row.count; i++) y[row.start + i] = (Written)ELEMENT(v, i);
#if WRITTEN == INT8
  else store_int8(y + row.start, v, (V)0);
#elif WRITTEN == FLOAT32
  else store(y + row.start, v);
#endif
}

// The tensor to round: x, or with IN_PLACE y itself
#if IN_PLACE
#define ROUNDED_ARGUMENTS OUTPUT(y)
#define ROUNDED_SOURCE START(y)
#else
#define ROUNDED_ARGUMENTS INPUT(x), OUTPUT_OF(Written, y)
#define ROUNDED_SOURCE START(x)
#endif
