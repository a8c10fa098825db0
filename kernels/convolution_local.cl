// Convolutions as matrix products over blocked matrices, for devices with local memory that is worth its barriers: a
// row of the left matrix is what a pixel reads of x, gathered tap by tap on its way to local memory. For pointwise
// convolutions and dense layers (DIRECT) it is the row itself.
//
// A work-group computes ROWS rows x COLUMNS channels. SLICES teams of TEAM work-items share the depth: each takes every
// SLICES-th block of 16, copies its part of both matrices to local memory, the next one already on its way in
// registers, and multiplies; the first team adds up the others' sums, in order. A work-item holds ITEM_ROWS x
// ITEM_COLUMNS sums: rows next to each other, channels in fours that lie ACROSS fours apart, so that neighbours read
// neighbouring words.
#define VECTOR_WIDTH 4
#define FIRST_CHANNEL 0
#include "blocked.h"
#include "epilogue.h"
#include "gradient.h"
#include "window.h"

#define FOURS (ITEM_COLUMNS / 4)
#define ACROSS (COLUMNS / ITEM_COLUMNS)
#define TEAM (ROWS / ITEM_ROWS * ACROSS)
#define SLICES (GROUP / TEAM)
#define LEFT_WIDTH (ROWS + 4)
#define LEFT_FOURS ((ROWS * 4 + TEAM - 1) / TEAM)
#define RIGHT_FOURS ((COLUMNS * 4 + TEAM - 1) / TEAM)
#define CHUNKS (SLICES * BLOCK * (LEFT_WIDTH + COLUMNS))
#define SUMS_OF_TEAM (SLICES > 1 ? ROWS * COLUMNS : 0)
#define ROOM ((CHUNKS > SUMS_OF_TEAM ? CHUNKS : SUMS_OF_TEAM) / 4)  // vectors of local memory

// A work-item's place, and its team's part of local memory
typedef struct {
  int slice, me;               // the team, and the work-item's number in it
  int first_row, first_panel;  // of the work-group's tile
  int my_row, my_column;       // of the work-item's sums, in the tile
  int blocks, panels;          // of 16 channels, of the left matrix and of the right one
  __local float *left, *right;
} Place;

INLINE Place place_of(__local V *room, const int k, const int n) {
  const int slice = get_local_id(0) / TEAM, me = get_local_id(0) % TEAM;
  __local float *left = (__local float *)room + slice * BLOCK * (LEFT_WIDTH + COLUMNS);
  return (Place){slice, me, get_group_id(0) * ROWS, get_group_id(1) * (COLUMNS / BLOCK), me / ACROSS * ITEM_ROWS,
                 me % ACROSS * 4, (k + BLOCK - 1) / BLOCK, (n + BLOCK - 1) / BLOCK, left, left + BLOCK * LEFT_WIDTH};
}

// Row and channel of sum [i][j] of a work-item
INLINE int row_of(const Place p, const int i) { return p.first_row + p.my_row + i; }
INLINE int channel_of(const Place p, const int j) { return p.first_panel * BLOCK + p.my_column + j * ACROSS * 4; }

INLINE void clear(V sum[ITEM_ROWS][FOURS]) {
  UNROLL for (int i = 0; i < ITEM_ROWS; i++) UNROLL for (int j = 0; j < FOURS; j++) sum[i][j] = (V)0;
}


// Loads rows [row, row + 16) of the blocks from `block` on of [blocks][height][16], zero from row `stop` on: `width`
// channels of each, `fours` vectors a work-item.
INLINE void fetch(V *next, const int fours, const int width, input_values from, const int height, const int block,
                  const int blocks, const int row, const int stop, const int me) {
  UNROLL for (int j = 0; j < fours; j++) {
    const int i = j * TEAM + me, b = block + i / 64, r = row + i / 4 % BLOCK;
    next[j] = i < width * 4 && b < blocks && r < stop
                  ? load(from + ((size_t)b * height + r) * BLOCK + i % 4 * 4) : (V)0;
  }
}

// Copies what `fetch` loaded to local memory, in rows of `to_width` floats.
INLINE void keep(const V *next, const int fours, const int width, __local float *to, const int to_width, const int me) {
  UNROLL for (int j = 0; j < fours; j++) {
    const int i = j * TEAM + me;
    if (i < width * 4) *(__local V *)(to + i / 4 % BLOCK * to_width + i / 64 * BLOCK + i % 4 * 4) = factor(next[j]);
  }
}

// Copies ROWS rows of 16 channels to local memory, transposed.
INLINE void keep_transposed(const V *next, const Place p) {
  UNROLL for (int j = 0; j < LEFT_FOURS; j++) {
    const int i = j * TEAM + p.me;
    if (i < ROWS * 4) {
      __local float *to = p.left + i % 4 * 4 * LEFT_WIDTH + i / 4;
      const V v = factor(next[j]);
      to[0] = v.x;
      to[LEFT_WIDTH] = v.y;
      to[2 * LEFT_WIDTH] = v.z;
      to[3 * LEFT_WIDTH] = v.w;
    }
  }
}

// The left matrix of a forward or backward product: rows of x as the listed taps read them. A row is a pixel of a grid,
// `down` x `across` an image; its place times a step, plus what a tap adds, is where it reads x. There are zeros
// around x.
typedef struct {
  input_values x, w;
  int rows, images, height, width, k;
  int count;            // taps, at least 1
  __local int *taps;    // TAPS numbers of taps, TAPS rows and TAPS columns that they add, and how many there are
} Product;
typedef struct { int y[LEFT_FOURS], x[LEFT_FOURS], at[LEFT_FOURS]; } Pixels;  // that a work-item gathers

#if DIRECT
#define LOCAL_TAPS(name) __local int *const name = 0
#else
#define LOCAL_TAPS(name) __local int name[3 * TAPS + 1]
#endif

// Lists all taps, or for a backward product those that pixels (top, edge), (top + STRIDE_Y, edge) ... meet; returns
// their number, but at least 1.
INLINE int list_taps(__local int *taps, const int backward, const int top, const int edge) {
#if DIRECT
  return 1;
#else
  if (get_local_id(0) == 0) {
    int count = 0;
    taps[0] = taps[TAPS] = taps[2 * TAPS] = 0;
    for (int ky = 0; ky < KERNEL_H; ky++) for (int kx = 0; kx < KERNEL_W; kx++) {
      const int reach_y = REACH_Y(top, ky), reach_x = REACH_X(edge, kx);
      if (backward && (reach_y % STRIDE_Y != 0 || reach_x % STRIDE_X != 0)) continue;
      taps[count] = ky * KERNEL_W + kx;
      taps[TAPS + count] = backward ? reach_y / STRIDE_Y : INPUT_Y(0, ky);
      taps[2 * TAPS + count++] = backward ? reach_x / STRIDE_X : INPUT_X(0, kx);
    }
    taps[3 * TAPS] = count;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
#if STRIDE_Y * STRIDE_X > 1
  if (backward) return taps[3 * TAPS] > 0 ? taps[3 * TAPS] : 1;
#endif
  return TAPS;
#endif
}

// Blocks of 16 that the product is deep
INLINE int steps_of(const Product product, const Place p) {
#if DIRECT
  return p.blocks;
#else
  return p.first_row < product.rows ? p.blocks * product.taps[3 * TAPS] : 0;
#endif
}

INLINE int tap_of_step(const Product product, const int step) {
#if DIRECT
  return 0;
#else
  return product.taps[step % product.count];
#endif
}

INLINE void find_pixels(Pixels *pixels, const Product product, const Place p, const int down, const int across,
                        const int step_y, const int step_x) {
#if !DIRECT
  UNROLL for (int j = 0; j < LEFT_FOURS; j++) {
    const int i = j * TEAM + p.me, r = p.first_row + i / 4;
    const int y = r / across % down * step_y;
    pixels->x[j] = r % across * step_x;
    pixels->y[j] = i < ROWS * 4 && r < product.rows ? y : -(1 << 30);
    pixels->at[j] = (r / (across * down) * product.height + y) * product.width + pixels->x[j];
  }
#endif
}

// Loads ROWS rows of the left matrix: in each step 16 channels of a tap.
INLINE void fetch_rows(V *next, const Product product, const Pixels *pixels, const Place p, const int step,
                       const int steps) {
#if DIRECT
  UNROLL for (int j = 0; j < LEFT_FOURS; j++) {
    const int i = j * TEAM + p.me, r = p.first_row + i / 4;
    next[j] = i < ROWS * 4 && r < product.rows && step < steps
                  ? load(product.x + ((size_t)step * product.rows + r) * BLOCK + i % 4 * 4) : (V)0;
  }
#else
  const int tap_y = product.taps[TAPS + step % product.count], tap_x = product.taps[2 * TAPS + step % product.count];
  const long plane = (long)(step / product.count) * product.images * product.height * product.width;
  const long from = plane + tap_y * product.width + tap_x;
  UNROLL for (int j = 0; j < LEFT_FOURS; j++)
    next[j] = step < steps && is_in(pixels->y[j] + tap_y, product.height) && is_in(pixels->x[j] + tap_x, product.width)
                  ? load(product.x + (from + pixels->at[j]) * BLOCK + (j * TEAM + p.me) % 4 * 4) : (V)0;
#endif
}

// Loads 16 rows of the right matrix, whose k channels a tap are `blocks` blocks.
INLINE void fetch_columns(V *next, const Product product, const Place p, const int step, const int steps) {
  const int first = tap_of_step(product, step) * product.k;
  fetch(next, RIGHT_FOURS, COLUMNS, product.w, TAPS * product.k, p.first_panel, step < steps ? p.panels : 0,
        first + step / product.count * BLOCK, first + product.k, p.me);
}

// sum += the product of the parts in local memory. With `row_sum`, that += the rows of the right one.
INLINE void multiply(V sum[ITEM_ROWS][FOURS], const Place p, V *row_sum) {
  UNROLL for (int u = 0; u < BLOCK; u++) {
    V column[FOURS];
    UNROLL for (int j = 0; j < FOURS; j++)
      column[j] = *(__local const V *)(p.right + u * COLUMNS + p.my_column + j * ACROSS * 4);
#if ITEM_ROWS % 4 == 0
    V left[ITEM_ROWS / 4];
    UNROLL for (int i = 0; i < ITEM_ROWS / 4; i++)
      left[i] = *(__local const V *)(p.left + u * LEFT_WIDTH + p.my_row + i * 4);
#endif
    UNROLL for (int i = 0; i < ITEM_ROWS; i++) {
#if ITEM_ROWS % 4 == 0
      const float value = ELEMENT(left[i / 4], i % 4);
#else
      const float value = p.left[u * LEFT_WIDTH + p.my_row + i];
#endif
      UNROLL for (int j = 0; j < FOURS; j++) sum[i][j] += value * column[j];
    }
    if (row_sum) UNROLL for (int j = 0; j < FOURS; j++) row_sum[j] += column[j];
  }
}

// The first team's sums += those of the other teams
INLINE void add_slices(V sum[ITEM_ROWS][FOURS], __local V *room, const Place p) {
#if TEAM < GROUP
  for (int other = 1; other < SLICES; other++) {
    if (p.slice == other)
      UNROLL for (int i = 0; i < ITEM_ROWS; i++) UNROLL for (int j = 0; j < FOURS; j++)
        room[(i * FOURS + j) * TEAM + p.me] = sum[i][j];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (p.slice == 0)
      UNROLL for (int i = 0; i < ITEM_ROWS; i++) UNROLL for (int j = 0; j < FOURS; j++)
        sum[i][j] += room[(i * FOURS + j) * TEAM + p.me];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
#endif
}

// sum = the rows of x as the taps read them, times w; in the first team
INLINE void multiply_rows(V sum[ITEM_ROWS][FOURS], const Product product, const Pixels *pixels, const Place p,
                          __local V *room) {
  const int steps = steps_of(product, p);
  V left_next[LEFT_FOURS], right_next[RIGHT_FOURS];
  clear(sum);
  fetch_rows(left_next, product, pixels, p, p.slice, steps);
  fetch_columns(right_next, product, p, p.slice, steps);
  for (int first = 0; first < steps; first += SLICES) {
    const int next = first + SLICES + p.slice;
    keep_transposed(left_next, p);
    keep(right_next, RIGHT_FOURS, COLUMNS, p.right, COLUMNS, p.me);
    barrier(CLK_LOCAL_MEM_FENCE);
    fetch_rows(left_next, product, pixels, p, next, steps);
    fetch_columns(right_next, product, p, next, steps);
    multiply(sum, p, 0);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  add_slices(sum, room, p);
}

// y = activation((x * w) * scale + shift)
KERNEL convolution_local_forward(INPUT_VALUES(x), INPUT_VALUES(w), OUTPUT_VALUES(y), const int images,
                                 const int height, const int width, const int out_height, const int out_width,
                                 const int k, const int n EPILOGUE_ARGUMENTS) {
  __local V room[ROOM];
  LOCAL_TAPS(taps);
  output_values y = START(y);
  const Place p = place_of(room, k, n);
  const int rows = images * out_height * out_width;
  const Product product = {START(x), START(w), rows, images, height, width, k, list_taps(taps, 0, 0, 0), taps};
  Pixels pixels;
  find_pixels(&pixels, product, p, out_height, out_width, STRIDE_Y, STRIDE_X);
  V sum[ITEM_ROWS][FOURS];
  multiply_rows(sum, product, &pixels, p, room);
  if (p.slice > 0) return;
  UNROLL for (int j = 0; j < FOURS; j++) UNROLL for (int i = 0; i < ITEM_ROWS; i++) {
    const int row = row_of(p, i), channel = channel_of(p, j);
    const size_t at = ((size_t)(channel / BLOCK) * rows + row) * BLOCK + channel % BLOCK;
    if (row < rows && channel < p.panels * BLOCK) store(y + at, apply(affine_of(EPILOGUE, channel), sum[i][j]));
  }
}

// dx = dy * w backwards, given transposed weights [n/16][taps][k][16]: here x is dy, k counts the forward pass's output
// channels, and height and width are those of dy. Pixels of dx that meet the same taps, every STRIDE_Y-th row and
// STRIDE_X-th column of an image, are a product of their own: number get_global_id(2).
KERNEL convolution_local_backward_data(INPUT_VALUES(x), INPUT_VALUES(w), const int images, const int height,
                                       const int width, const int in_height, const int in_width, const int k,
                                       const int n, GRADIENT_ARGUMENTS) {
  __local V room[ROOM];
  LOCAL_TAPS(taps);
  const Gradient dx = GRADIENT;
  const Place p = place_of(room, k, n);
  const int top = get_group_id(2) / STRIDE_X, edge = get_group_id(2) % STRIDE_X;
  const int down = (in_height - top + STRIDE_Y - 1) / STRIDE_Y, across = (in_width - edge + STRIDE_X - 1) / STRIDE_X;
  const int rows = images * down * across, in_rows = images * in_height * in_width;
  const Product product = {START(x), START(w), rows, images, height, width, k, list_taps(taps, 1, top, edge), taps};
  Pixels pixels;
  // small images have no row or column for some products
  find_pixels(&pixels, product, p, rows ? down : 1, rows ? across : 1, 1, 1);
  V sum[ITEM_ROWS][FOURS];
  multiply_rows(sum, product, &pixels, p, room);
  if (p.slice > 0) return;
  UNROLL for (int j = 0; j < FOURS; j++) UNROLL for (int i = 0; i < ITEM_ROWS; i++) {
    const int row = row_of(p, i), channel = channel_of(p, j);
    if (row < rows && channel < p.panels * BLOCK) {
#if STRIDE_Y * STRIDE_X == 1
      const int pixel = row;
#else
      const int y = row / across * STRIDE_Y + top + row / (across * down) * (in_height - down * STRIDE_Y);
      const int pixel = y * in_width + row % across * STRIDE_X + edge;
#endif
      write_gradient(dx, ((size_t)(channel / BLOCK) * in_rows + pixel) * BLOCK + channel % BLOCK, sum[i][j]);
    }
  }
}

// Rows of a weight gradient: the 16 channels of a block as a tap reads them, the taps of a block one after the other
INLINE int tap_of(const int row) { return row / BLOCK % TAPS; }
INLINE int block_of(const int row) { return row / BLOCK / TAPS; }
INLINE int channel_of_row(const int row) { return block_of(row) * BLOCK + row % BLOCK; }

// Input of a weight gradient, from x: `rows` pixels of dy in all, of which this group has those before `stop`
typedef struct { input_values x; int rows, images, height, width, out_height, out_width, stop; } Seen;
typedef struct { int y[LEFT_FOURS], x[LEFT_FOURS]; } Offsets;  // that the taps of a work-item's vectors add

INLINE void find_offsets(Offsets *offsets, const Place p) {
#if !DIRECT
  UNROLL for (int j = 0; j < LEFT_FOURS; j++) {
    const int tap = tap_of(p.first_row + (j * TEAM + p.me) / 64 * BLOCK);
    offsets->y[j] = INPUT_Y(0, tap / KERNEL_W);
    offsets->x[j] = INPUT_X(0, tap % KERNEL_W);
  }
#endif
}

// Loads 16 channels of x as a tap reads them, before 16 rows of dy from `row` on: the left matrix has them next to each
// other.
INLINE void fetch_seen(V *next, const Seen s, const Offsets *offsets, const Place p, const int row) {
#if DIRECT
  fetch(next, LEFT_FOURS, ROWS, s.x, s.rows, p.first_row / BLOCK, p.blocks, row, s.stop, p.me);
#else
  UNROLL for (int j = 0; j < LEFT_FOURS; j++) {
    const int i = j * TEAM + p.me, block = block_of(p.first_row + i / 64 * BLOCK);
    // of the 16 rows, the one that a work-item fetches: often always the same one
    const int r = row + (TEAM % 64 == 0 ? p.me : i) / 4 % BLOCK;
    const int y = r / s.out_width % s.out_height * STRIDE_Y + offsets->y[j];
    const int column = r % s.out_width * STRIDE_X + offsets->x[j];
    const long image = (long)block * s.images + r / (s.out_width * s.out_height);
    next[j] = i < ROWS * 4 && block < p.blocks && r < s.stop && is_in(y, s.height) && is_in(column, s.width)
                  ? load(s.x + ((image * s.height + y) * s.width + column) * BLOCK + i % 4 * 4) : (V)0;
  }
#endif
}

// partials[group]: [n/16][taps][k][16] = (add ? what was there : 0) + x^T dy over the `span` rows of dy of group
// get_global_id(2). With SUMS, the first tiles also leave the sum of those rows in sums[group].
KERNEL convolution_local_backward_weights(INPUT_VALUES(x), INPUT_VALUES(dy), OUTPUT(partials)
                                          OUTPUT_IF(SUMS, sums), const int images, const int height, const int width,
                                          const int out_height, const int out_width, const int k, const int n,
                                          const int span, const int add) {
  __local V room[ROOM];
  input_values dy = START(dy);
  const Place p = place_of(room, k, n);
  const int rows = images * out_height * out_width, group = get_group_id(2);
  const int start = group * span, stop = start + span < rows ? start + span : rows, begin = start + p.slice * BLOCK;
  const Seen seen = {START(x), rows, images, height, width, out_height, out_width, stop};
  V left_next[LEFT_FOURS], right_next[RIGHT_FOURS], sum[ITEM_ROWS][FOURS];
  Offsets offsets;
  find_offsets(&offsets, p);
  clear(sum);
#if SUMS
  V row_sum[FOURS];
  UNROLL for (int j = 0; j < FOURS; j++) row_sum[j] = (V)0;
#else
  V *const row_sum = 0;
#endif
  fetch_seen(left_next, seen, &offsets, p, begin);
  fetch(right_next, RIGHT_FOURS, COLUMNS, dy, rows, p.first_panel, p.panels, begin, stop, p.me);
  for (int first = start; first < stop; first += SLICES * BLOCK) {
    const int next = first + (SLICES + p.slice) * BLOCK;
    keep(left_next, LEFT_FOURS, ROWS, p.left, LEFT_WIDTH, p.me);
    keep(right_next, RIGHT_FOURS, COLUMNS, p.right, COLUMNS, p.me);
    barrier(CLK_LOCAL_MEM_FENCE);
    fetch_seen(left_next, seen, &offsets, p, next);
    fetch(right_next, RIGHT_FOURS, COLUMNS, dy, rows, p.first_panel, p.panels, next, stop, p.me);
    multiply(sum, p, row_sum);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  add_slices(sum, room, p);
#if SUMS
  UNROLL for (int j = 0; j < FOURS; j++) {
    room[get_local_id(0)] = row_sum[j];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (p.slice == 0) for (int other = 1; other < SLICES; other++) row_sum[j] += room[other * TEAM + p.me];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
#endif
  if (p.slice > 0) return;
  output dw = START(partials) + (size_t)group * p.panels * TAPS * k * BLOCK;
  UNROLL for (int j = 0; j < FOURS; j++) UNROLL for (int i = 0; i < ITEM_ROWS; i++) {
    const int row = row_of(p, i), channel = channel_of(p, j);
    if (block_of(row) < p.blocks && channel_of_row(row) < k && channel < p.panels * BLOCK) {
      const size_t weight_row = (size_t)(channel / BLOCK) * (TAPS * k) + tap_of(row) * k + channel_of_row(row);
      V v = sum[i][j];
      if (add) v += load(dw + weight_row * BLOCK + channel % BLOCK);
      store(dw + weight_row * BLOCK + channel % BLOCK, v);
    }
  }
#if SUMS
  UNROLL for (int j = 0; j < FOURS; j++) {
    const int channel = channel_of(p, j);
    if (p.first_row + p.my_row == 0 && channel < p.panels * BLOCK) {
      output total = START(sums) + (size_t)group * p.panels * BLOCK + channel;
      if (add) row_sum[j] += load(total);
      store(total, row_sum[j]);
    }
  }
#endif
}
