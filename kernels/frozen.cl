// Products with frozen weights in the block formats of edgelearn/ops/block_formats.py: n rows, one for each output unit,
// of k values. A work-item decodes DEPTH x (PANELS blocks of 16 channels) of them at a time, and adds their products
// with all of its rows, so that decoding costs little and weights are never unpacked as a whole.
#include "elementwise.h"
#include "named_row.h"

#define F16 0
#define Q4_0 1
#define Q4_1 2
#define Q8_0 3
#define SHARING 32  // values of a format's block
#define DEPTH 32
#ifndef ROWS
#define ROWS 1
#endif
#ifndef PANELS
#define PANELS 1
#endif

typedef __global const uchar *restrict Frozen;
#define INPUT_FROZEN(w) INPUT_OF(uchar, w)

INLINE float half_at(Frozen p) {
  const int bits = p[0] | p[1] << 8, size = bits & 0x7FFF;
  const float normal = as_float((size << 13) + 0x38000000), small = size * 0x1p-24f;
  const float v = size < 0x400 ? small : normal;
  return bits & 0x8000 ? -v : v;
}

// As many bytes as a vector has elements, from any address on
#if VECTOR_WIDTH == BLOCK
typedef uchar16 __attribute__((aligned(1))) Bytes_at_any_place;
typedef ushort16 __attribute__((aligned(1))) Halves_at_any_place;
INLINE Ints bytes_at(Frozen p) { return convert_int16(*(__global const Bytes_at_any_place *)p); }
INLINE Ints halves_at(Frozen p) { return convert_int16(*(__global const Halves_at_any_place *)p); }
#else
INLINE Ints bytes_at(Frozen p) { return (Ints)(p[0], p[1], p[2], p[3]); }
INLINE Ints halves_at(Frozen p) { return (Ints)(p[0], p[2], p[4], p[6]) | (Ints)(p[1], p[3], p[5], p[7]) << 8; }
#endif

// The values of a row from number i on, a multiple of the vector's width
INLINE V decoded(Frozen row, const int i) {
#if FORMAT == F16
  return of_halves(halves_at(row + 2 * i));
#else
  Frozen block = row + i / SHARING * BLOCK_BYTES;
  const float scale = half_at(block);
#if FORMAT == Q8_0
  return VECTOR(convert_float)(bytes_at(block + 2 + i % SHARING) << 24 >> 24) * scale;
#else
  const Ints pair = bytes_at(block + (BLOCK_BYTES - SHARING / 2) + i % (SHARING / 2));
  const V q = VECTOR(convert_float)(i % SHARING < SHARING / 2 ? pair & 15 : pair >> 4);
#if FORMAT == Q4_1
  return q * scale + half_at(block + 2);
#else
  return (q - 8.0f) * scale;
#endif
#endif
#endif
}

// y += the products of channels `first` and following of x with `column`, in rows [start, stop) of m; `blocks` of x.
// Unless `adds`, y starts at zero.
INLINE void add_products(output y, input x, V column[DEPTH][PANELS], const int m, const int start, const int stop,
                         const int first, const int blocks, const int panel, const int panels, const int adds) {
  for (int row = start; row < stop; row += ROWS) {
    V sum[ROWS][PANELS];
    int at[ROWS];  // rows after the last one are computed as that one, and not written
    UNROLL for (int i = 0; i < ROWS; i++) at[i] = row + i < stop ? row + i : stop - 1;
    UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int j = 0; j < PANELS; j++) sum[i][j] = (V)0;
    for (int b = 0; b < DEPTH / BLOCK && first / BLOCK + b < blocks; b++) {
      input from = x + row_at(first / BLOCK + b, m, 0);
      UNROLL for (int u = 0; u < BLOCK; u++) UNROLL for (int i = 0; i < ROWS; i++) {
        const V value = (V)(from[at[i] * BLOCK + u]);
        UNROLL for (int j = 0; j < PANELS; j++) sum[i][j] += value * column[b * BLOCK + u][j];
      }
    }
    // a sum of DEPTH products is added to that of those before as one number: it loses fewer bits
    UNROLL for (int i = 0; i < ROWS; i++) if (row + i < stop)
      UNROLL for (int j = 0; j < PANELS; j++) if (panel + j < panels) {
        output to = y + row_at(panel + j, m, row + i);
        store(to, adds ? load(to) + sum[i][j] : sum[i][j]);
      }
  }
}

#define SIZES_ARGUMENTS const int m, const int count, const int k, const int n, const int row_bytes

// y = x w^T
KERNEL frozen_forward(INPUT(x), INPUT_FROZEN(w), OUTPUT(y), SIZES_ARGUMENTS) {
  const int start = ITEM * count, stop = start + count < m ? start + count : m;
  if (start >= m) return;
  const int panel = get_global_id(1) * PANELS, panels = (n + BLOCK - 1) / BLOCK;
  Frozen w = START(w);
  V column[DEPTH][PANELS];
  for (int first = 0; first < k; first += DEPTH) {
    for (int j = 0; j < PANELS; j++) for (int o = 0; o < VECTOR_WIDTH; o++) {
      const int unit = (panel + j) * BLOCK + FIRST_CHANNEL + o;
      UNROLL for (int i = 0; i < DEPTH; i += VECTOR_WIDTH) {
        const V v = unit < n ? decoded(w + (size_t)unit * row_bytes, first + i) : (V)0;
        UNROLL for (int e = 0; e < VECTOR_WIDTH; e++) ELEMENT(column[i + e][j], o) = ELEMENT(v, e);
      }
    }
    add_products(ITEM_START(y), START(x), column, m, start, stop, first, k / BLOCK, panel, panels, first > 0);
  }
}

// dx = (ACCUMULATE ? dx : 0) + dy w
KERNEL frozen_backward_data(INPUT(dy), INPUT_FROZEN(w), OUTPUT(dx), SIZES_ARGUMENTS) {
  const int start = ITEM * count, stop = start + count < m ? start + count : m;
  if (start >= m) return;
  const int panel = get_global_id(1) * PANELS, panels = k / BLOCK, blocks = (n + BLOCK - 1) / BLOCK;
  Frozen w = START(w);
  V column[DEPTH][PANELS];
  for (int first = 0; first < n; first += DEPTH) {
    UNROLL for (int j = 0; j < PANELS; j++) for (int u = 0; u < DEPTH; u++)
      column[u][j] = first + u < n && panel + j < panels
                         ? decoded(w + (size_t)(first + u) * row_bytes, (panel + j) * BLOCK + FIRST_CHANNEL) : (V)0;
    add_products(ITEM_START(dx), START(dy), column, m, start, stop, first, blocks, panel, panels,
                 ACCUMULATE || first > 0);
  }
}

// y = x w^T for few rows, ROWS of them: sums over the elements of vectors along k, each weight decoded once
KERNEL frozen_few_rows(INPUT(x), INPUT_FROZEN(w), OUTPUT(y), SIZES_ARGUMENTS) {
  const int first_unit = ITEM * BLOCK + FIRST_CHANNEL;
  if (ITEM * BLOCK >= n) return;
  input x = START(x);
  Frozen w = START(w);
  V result[ROWS];
  for (int o = 0; o < VECTOR_WIDTH; o++) {
    V sum[ROWS][2];
    UNROLL for (int r = 0; r < ROWS; r++) sum[r][0] = sum[r][1] = (V)0;
    if (first_unit + o < n)
      for (int i = 0; i < k; i += SHARING) UNROLL for (int half_block = 0; half_block < 2; half_block++)
        UNROLL for (int e = 0; e < BLOCK; e += VECTOR_WIDTH) {
          const int c = i + half_block * BLOCK + e;
          const V v = decoded(w + (size_t)(first_unit + o) * row_bytes, c);
          UNROLL for (int r = 0; r < ROWS; r++) sum[r][half_block] += v * load(x + value_at(c, m, r));
        }
    UNROLL for (int r = 0; r < ROWS; r++) {
      const V both = sum[r][0] + sum[r][1];
      float total = 0.0f;
      UNROLL for (int e = 0; e < VECTOR_WIDTH; e++) total += ELEMENT(both, e);
      ELEMENT(result[r], o) = total;
    }
  }
  output y = ITEM_START(y);
  UNROLL for (int r = 0; r < ROWS; r++) store(y + row_at(ITEM, m, r), result[r]);
}

// y[image, i] = row numbers[image, i] of w, NaN where there is none
KERNEL frozen_rows(INPUT(numbers), INPUT_FROZEN(w), OUTPUT(y), const int images, const int taken, SIZES_ARGUMENTS) {
  input numbers = START(numbers);
  output y = ITEM_START(y);
  Frozen w = START(w);
  const Band band = band_of(m, count);
  for (int row = band.start; row < band.stop; row += band.step) {
    const int place = named_row(numbers[value_at(row % taken, images, row / taken)], n);
    V v = (V)NAN;
    if (place >= 0) v = decoded(w + (size_t)place * row_bytes, band.block * BLOCK + FIRST_CHANNEL);
    store(y + row_at(band.block, m, row), v);
  }
}
