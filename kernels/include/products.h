// Products of blocked matrices in registers: ROWS rows x PANELS blocks of 16 channels.
#ifndef ROWS
#define ROWS 1
#endif
#ifndef PANELS
#define PANELS 1
#endif

// sum += the product of channel u of ROWS rows of x with row u of PANELS blocks of w, which are `stride` floats apart
INLINE void add_product(V sum[ROWS][PANELS], input_values x, input_values w, const size_t stride, const int u) {
  V column[PANELS];
  UNROLL for (int j = 0; j < PANELS; j++) column[j] = factor(load(w + j * stride + u * BLOCK));
  UNROLL for (int i = 0; i < ROWS; i++) {
    const V value = (V)(factor(float_of(x[i * BLOCK + u])));
    UNROLL for (int j = 0; j < PANELS; j++) sum[i][j] += value * column[j];
  }
}

// sum = rows [row, row + ROWS) of x times blocks [panel, panel + PANELS) of w
INLINE void multiply(V sum[ROWS][PANELS], input_values x, input_values w, const int m, const int k, const int row,
                     const int panel) {
  x += row * BLOCK;
  w += (size_t)panel * k * BLOCK;
  const size_t stride = (size_t)k * BLOCK;
  UNROLL for (int i = 0; i < ROWS; i++) UNROLL for (int j = 0; j < PANELS; j++) sum[i][j] = (V)0;
  for (int block = 0; block < k / BLOCK; block++) {
    UNROLL for (int u = 0; u < BLOCK; u++) add_product(sum, x, w, stride, u);
    x += (size_t)m * BLOCK;
    w += BLOCK * BLOCK;
  }
  for (int u = 0; u < k % BLOCK; u++) add_product(sum, x, w, stride, u);
}
