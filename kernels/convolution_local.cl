// Convolutions as matrix products over blocked matrices, for devices with local memory that is worth its barriers: a
// row of the left matrix is what a pixel sees of x, gathered tap by tap on its way to local memory. For pointwise
// convolutions and dense layers, DIRECT, it is the row itself.
//
// A work-group computes ROWS rows x COLUMNS channels. SLICES teams of TEAM work-items share the depth: each takes every
// SLICES-th block of 16, copies its part of both matrices to local memory, the next one already on its way in
// registers, and multiplies; the first team adds up the others' sums, in order. A work-item holds ITEM_ROWS x ITEM_COLUMNS sums:
// rows next to each other, channels in fours that lie ACROSS fours apart, so that neighbours read neighbouring words.
#define LANES 4
#define FIRST_LANE 0
#include "blocked.h"
#include "activation.h"
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
#define ROOM ((CHUNKS > SUMS_OF_TEAM ? CHUNKS : SUMS_OF_TEAM) / 4)

#define PLACE_IN_GROUP                                                            \
  __local V room[ROOM];                                                           \
  const int slice = get_local_id(0) / TEAM, me = get_local_id(0) % TEAM;          \
  const int my_row = me / ACROSS * ITEM_ROWS, my_column = me % ACROSS * 4;        \
  __local float *left = (__local float *)room + slice * BLOCK * (LEFT_WIDTH + COLUMNS); \
  __local float *right = left + BLOCK * LEFT_WIDTH;                               \
  V left_next[LEFT_FOURS], right_next[RIGHT_FOURS], sum[ITEM_ROWS][FOURS];        \
  UNROLL for (int i = 0; i < ITEM_ROWS; i++) UNROLL for (int j = 0; j < FOURS; j++) sum[i][j] = (V)0;

// Rows [row, row + 16) of the blocks from `block` on of [blocks][height][16], zero from row `stop` on: as they lie
#define FETCH(next, fours, width, from, height, block, blocks, row, stop)         \
  UNROLL for (int j = 0; j < fours; j++) {                                        \
    const int i = j * TEAM + me, b = (block) + i / 64, r = (row) + i / 4 % BLOCK; \
    next[j] = i < (width) * 4 && b < (blocks) && r < (stop)                       \
                  ? LOAD(from + ((size_t)b * (height) + r) * BLOCK + i % 4 * 4) : (V)0; \
  }
#define KEEP(next, fours, width, to, to_width)                                    \
  UNROLL for (int j = 0; j < fours; j++) {                                        \
    const int i = j * TEAM + me;                                                  \
    if (i < (width) * 4) *(__local V *)(to + i / 4 % BLOCK * (to_width) + i / 64 * BLOCK + i % 4 * 4) = next[j]; \
  }

// ROWS rows of the left matrix: in each step 16 channels of a tap, transposed on their way. A row is a pixel of a grid,
// `down` x `across` an image; its place times (step_y, step_x) and what tap t of those `seen` adds, seen_y[t] and
// seen_x[t], are where it reads x. There are zeros around x.
#if DIRECT
#define SEE_TAPS(all, meets, below, right_of) const int count = 1;
#define STEPS blocks
#define FIND_ROWS(down, across, step_y, step_x)
#define FETCH_ROWS(step)                                                          \
  UNROLL for (int j = 0; j < LEFT_FOURS; j++) {                                   \
    const int i = j * TEAM + me, r = first_row + i / 4;                           \
    left_next[j] = i < ROWS * 4 && r < rows && (step) < steps                     \
                       ? LOAD(x + ((size_t)(step) * rows + r) * BLOCK + i % 4 * 4) : (V)0; \
  }
#define SEEN_TAP(step) 0
#else
#define SEE_TAPS(all, meets, below, right_of)                                     \
  __local int seen[TAPS], seen_y[TAPS], seen_x[TAPS], seen_count;                 \
  if (get_local_id(0) == 0) {                                                     \
    seen[0] = seen_y[0] = seen_x[0] = seen_count = 0;                             \
    for (int ky = 0; ky < KERNEL_H; ky++) for (int kx = 0; kx < KERNEL_W; kx++) if (meets) { \
      seen[seen_count] = ky * KERNEL_W + kx;                                      \
      seen_y[seen_count] = below;                                                 \
      seen_x[seen_count++] = right_of;                                            \
    }                                                                             \
  }                                                                               \
  barrier(CLK_LOCAL_MEM_FENCE);                                                   \
  const int count = (all) ? TAPS : seen_count > 0 ? seen_count : 1;
#define STEPS (first_row < rows ? blocks * seen_count : 0)
#define FIND_ROWS(down, across, step_y, step_x)                                   \
  int row_y[LEFT_FOURS], row_x[LEFT_FOURS], row_at[LEFT_FOURS];                   \
  UNROLL for (int j = 0; j < LEFT_FOURS; j++) {                                   \
    const int i = j * TEAM + me, r = first_row + i / 4;                           \
    const int y = r / (across) % (down) * (step_y);                               \
    row_x[j] = r % (across) * (step_x);                                           \
    row_y[j] = i < ROWS * 4 && r < rows ? y : -(1 << 30);                         \
    row_at[j] = (r / ((across) * (down)) * height + y) * width + row_x[j];        \
  }
#define FETCH_ROWS(step)                                                          \
  {                                                                               \
    const int tap_y = seen_y[(step) % count], tap_x = seen_x[(step) % count];     \
    const long from = (long)((step) / count) * images * height * width + tap_y * width + tap_x; \
    UNROLL for (int j = 0; j < LEFT_FOURS; j++)                                   \
      left_next[j] = (step) < steps && IS_IN(row_y[j] + tap_y, height) && IS_IN(row_x[j] + tap_x, width) \
                         ? LOAD(x + (from + row_at[j]) * BLOCK + (j * TEAM + me) % 4 * 4) : (V)0; \
  }
#define SEEN_TAP(step) seen[(step) % count]
#endif
#define IS_IN(at, size) ((uint)(at) < (uint)(size))
#define KEEP_ROWS                                                                 \
  UNROLL for (int j = 0; j < LEFT_FOURS; j++) {                                   \
    const int i = j * TEAM + me;                                                  \
    if (i < ROWS * 4) {                                                           \
      __local float *to = left + i % 4 * 4 * LEFT_WIDTH + i / 4;                  \
      to[0] = left_next[j].x;                                                     \
      to[LEFT_WIDTH] = left_next[j].y;                                            \
      to[2 * LEFT_WIDTH] = left_next[j].z;                                        \
      to[3 * LEFT_WIDTH] = left_next[j].w;                                        \
    }                                                                             \
  }

#if ITEM_ROWS % 4 == 0
#define LOAD_LEFT(u)                                                              \
  V left_four[ITEM_ROWS / 4];                                                     \
  UNROLL for (int i = 0; i < ITEM_ROWS / 4; i++)                                  \
    left_four[i] = *(__local const V *)(left + (u) * LEFT_WIDTH + my_row + i * 4);
#define LEFT(u, i) LANE(left_four[(i) / 4], (i) % 4)
#else
#define LOAD_LEFT(u)
#define LEFT(u, i) left[(u) * LEFT_WIDTH + my_row + (i)]
#endif

#define MULTIPLY(with_column)                                                     \
  UNROLL for (int u = 0; u < BLOCK; u++) {                                        \
    V column[FOURS];                                                              \
    UNROLL for (int j = 0; j < FOURS; j++)                                        \
      column[j] = *(__local const V *)(right + u * COLUMNS + my_column + j * ACROSS * 4); \
    LOAD_LEFT(u)                                                                  \
    UNROLL for (int i = 0; i < ITEM_ROWS; i++) {                                  \
      const float value = LEFT(u, i);                                             \
      UNROLL for (int j = 0; j < FOURS; j++) sum[i][j] += value * column[j];      \
    }                                                                             \
    with_column                                                                   \
  }

// The first team's sums += those of the other teams
#if TEAM < GROUP
#define ADD_SLICES                                                                \
  for (int other = 1; other < SLICES; other++) {                                  \
    if (slice == other)                                                           \
      UNROLL for (int i = 0; i < ITEM_ROWS; i++) UNROLL for (int j = 0; j < FOURS; j++) \
        room[(i * FOURS + j) * TEAM + me] = sum[i][j];                            \
    barrier(CLK_LOCAL_MEM_FENCE);                                                 \
    if (slice == 0)                                                               \
      UNROLL for (int i = 0; i < ITEM_ROWS; i++) UNROLL for (int j = 0; j < FOURS; j++) \
        sum[i][j] += room[(i * FOURS + j) * TEAM + me];                           \
    barrier(CLK_LOCAL_MEM_FENCE);                                                 \
  }
#else
#define ADD_SLICES
#endif

// sum = rows of x * w, whose k channels a tap are `blocks` blocks
#define FETCH_COLUMNS(step)                                                       \
  {                                                                               \
    const int tap = SEEN_TAP(step) * k;                                           \
    FETCH(right_next, RIGHT_FOURS, COLUMNS, w, TAPS * k, first_panel, (step) < steps ? panels : 0, \
          tap + (step) / count * BLOCK, tap + k)                                  \
  }
#define MULTIPLY_ROWS                                                             \
  const int steps = STEPS;                                                        \
  FETCH_ROWS(slice)                                                               \
  FETCH_COLUMNS(slice)                                                            \
  for (int first = 0; first < steps; first += SLICES) {                           \
    const int next = first + SLICES + slice;                                      \
    KEEP_ROWS                                                                     \
    KEEP(right_next, RIGHT_FOURS, COLUMNS, right, COLUMNS)                        \
    barrier(CLK_LOCAL_MEM_FENCE);                                                 \
    FETCH_ROWS(next)                                                              \
    FETCH_COLUMNS(next)                                                           \
    MULTIPLY()                                                                    \
    barrier(CLK_LOCAL_MEM_FENCE);                                                 \
  }                                                                               \
  ADD_SLICES                                                                      \
  if (slice > 0) return;

// For each sum, its row, its channel and where it goes in [panels][height][16], at row `place`
#define FOR_SUMS(is_row, height, place)                                           \
  UNROLL for (int j = 0; j < FOURS; j++) UNROLL for (int i = 0; i < ITEM_ROWS; i++) { \
    const int row = first_row + my_row + i, channel = first_panel * BLOCK + my_column + j * ACROSS * 4; \
    if ((is_row) && channel < panels * BLOCK) {                                   \
      const size_t at = ((size_t)(channel / BLOCK) * (height) + (place)) * BLOCK + channel % BLOCK;
#define END_SUMS } }

#define PLACE_OF_TILE                                                             \
  PLACE_IN_GROUP                                                                  \
  const int first_row = get_group_id(0) * ROWS, first_panel = get_group_id(1) * (COLUMNS / BLOCK); \
  const int blocks = (k + BLOCK - 1) / BLOCK, panels = (n + BLOCK - 1) / BLOCK;

// y = activation((x * w) * scale + shift)
KERNEL convolution_local_forward(INPUT(x), INPUT(w), OUTPUT(y), const int images, const int height, const int width,
                                 const int out_height, const int out_width, const int k, const int n
                                 EPILOGUE_ARGUMENTS) {
  FROM(x) FROM(w) INTO(y) EPILOGUE_POINTERS
  PLACE_OF_TILE
  const int rows = images * out_height * out_width;
  SEE_TAPS(1, 1, INPUT_Y(0, ky), INPUT_X(0, kx))
  FIND_ROWS(out_height, out_width, STRIDE_Y, STRIDE_X)
  MULTIPLY_ROWS
  FOR_SUMS(row < rows, rows, row)
    V v = sum[i][j];
    LOAD_SCALE(s, channel)
    LOAD_SHIFT(t, channel)
    APPLY_SCALE(v, s)
    APPLY_SHIFT(v, t)
    ACTIVATE(v)
    STORE(y + at, v);
  END_SUMS
}

// dx = dy * w backwards, given transposed weights [n/16][taps][k][16]: here x is dy, k counts the forward pass's output
// channels, and height and width are those of dy. Pixels of dx that meet the same taps, every STRIDE_Y-th row and
// STRIDE_X-th column of an image, are a product of their own: number get_global_id(2).
KERNEL convolution_local_backward_data(INPUT(x), INPUT(w), const int images, const int height, const int width,
                                       const int in_height, const int in_width, const int k, const int n,
                                       GRADIENT_OUTPUT) {
  FROM(x) FROM(w) GRADIENT_POINTERS
  PLACE_OF_TILE
  const int top = get_group_id(2) / STRIDE_X, edge = get_group_id(2) % STRIDE_X;
  const int down = (in_height - top + STRIDE_Y - 1) / STRIDE_Y, across = (in_width - edge + STRIDE_X - 1) / STRIDE_X;
  const int rows = images * down * across;
  SEE_TAPS(STRIDE_Y * STRIDE_X == 1, REACH_Y(top, ky) % STRIDE_Y == 0 && REACH_X(edge, kx) % STRIDE_X == 0,
           REACH_Y(top, ky) / STRIDE_Y, REACH_X(edge, kx) / STRIDE_X)
  FIND_ROWS(rows ? down : 1, rows ? across : 1, 1, 1)  // small images have no row or column for some
  MULTIPLY_ROWS
#if STRIDE_Y * STRIDE_X == 1
#define PIXEL row
#else
#define PIXEL ((row / across * STRIDE_Y + top + row / (across * down) * (in_height - down * STRIDE_Y)) * in_width \
               + row % across * STRIDE_X + edge)
#endif
  FOR_SUMS(row < rows, images * in_height * in_width, PIXEL)
    WRITE_GRADIENT(at, sum[i][j])
  END_SUMS
}

// 16 channels of x as a tap sees them, before 16 rows of dy: the left matrix has them next to each other, the taps of a
// block of channels one after the other
#if DIRECT
#define FIND_TAPS
#define FETCH_SEEN(row) FETCH(left_next, LEFT_FOURS, ROWS, x, rows, first_row / BLOCK, blocks, row, stop)
#else
#define FIND_TAPS                                                                 \
  int tap_y[LEFT_FOURS], tap_x[LEFT_FOURS];                                       \
  UNROLL for (int j = 0; j < LEFT_FOURS; j++) {                                   \
    const int tap = TAP_OF(first_row + (j * TEAM + me) / 64 * BLOCK);             \
    tap_y[j] = INPUT_Y(0, tap / KERNEL_W);                                        \
    tap_x[j] = INPUT_X(0, tap % KERNEL_W);                                        \
  }
// of the 16 rows, the one that a work-item fetches: often always the same one
#define ROW_OF_STEP(j) ((TEAM % 64 == 0 ? me : (j) * TEAM + me) / 4 % BLOCK)
#define FETCH_SEEN(row)                                                           \
  UNROLL for (int j = 0; j < LEFT_FOURS; j++) {                                   \
    const int i = j * TEAM + me, r = (row) + ROW_OF_STEP(j), block = BLOCK_OF(first_row + i / 64 * BLOCK); \
    const int y = r / out_width % out_height * STRIDE_Y + tap_y[j], column = r % out_width * STRIDE_X + tap_x[j]; \
    const long image = (long)block * images + r / (out_width * out_height);       \
    left_next[j] = i < ROWS * 4 && block < blocks && r < stop && IS_IN(y, height) && IS_IN(column, width) \
                       ? LOAD(x + ((image * height + y) * width + column) * BLOCK + i % 4 * 4) : (V)0; \
  }
#endif
#define TAP_OF(row) ((row) / BLOCK % TAPS)
#define BLOCK_OF(row) ((row) / BLOCK / TAPS)
#define CHANNEL_OF(row) (BLOCK_OF(row) * BLOCK + (row) % BLOCK)

// partials[group]: [n/16][taps][k][16] = (add ? what was there : 0) + x^T dy over the `span` rows of dy of group
// get_global_id(2). If SUMS, the first tiles also leave the sum of those rows in sums[group].
KERNEL convolution_local_backward_weights(INPUT(x), INPUT(dy), OUTPUT(partials)
#if SUMS
                                          , OUTPUT(sums)
#endif
                                          , const int images, const int height, const int width, const int out_height,
                                          const int out_width, const int k, const int n, const int span,
                                          const int add) {
  FROM(x) FROM(dy) INTO(partials)
  PLACE_OF_TILE
  const int rows = images * out_height * out_width, group = get_group_id(2);
  const int start = group * span, stop = start + span < rows ? start + span : rows;
#if SUMS
  V row_sum[FOURS];
  UNROLL for (int j = 0; j < FOURS; j++) row_sum[j] = (V)0;
#define ADD_ROW UNROLL for (int j = 0; j < FOURS; j++) row_sum[j] += column[j];
#else
#define ADD_ROW
#endif
  FIND_TAPS
  FETCH_SEEN(start + slice * BLOCK)
  FETCH(right_next, RIGHT_FOURS, COLUMNS, dy, rows, first_panel, panels, start + slice * BLOCK, stop)
  for (int first = start; first < stop; first += SLICES * BLOCK) {
    const int next = first + (SLICES + slice) * BLOCK;
    KEEP(left_next, LEFT_FOURS, ROWS, left, LEFT_WIDTH)
    KEEP(right_next, RIGHT_FOURS, COLUMNS, right, COLUMNS)
    barrier(CLK_LOCAL_MEM_FENCE);
    FETCH_SEEN(next)
    FETCH(right_next, RIGHT_FOURS, COLUMNS, dy, rows, first_panel, panels, next, stop)
    MULTIPLY(ADD_ROW)
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  ADD_SLICES
#if SUMS
  UNROLL for (int j = 0; j < FOURS; j++) {
    room[get_local_id(0)] = row_sum[j];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (slice == 0) for (int other = 1; other < SLICES; other++) row_sum[j] += room[other * TEAM + me];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
#endif
  if (slice > 0) return;
  output dw = partials + (size_t)group * panels * TAPS * k * BLOCK;
  FOR_SUMS(BLOCK_OF(row) < blocks && CHANNEL_OF(row) < k, TAPS * k, TAP_OF(row) * k + CHANNEL_OF(row))
    V v = sum[i][j];
    if (add) v += LOAD(dw + at);
    STORE(dw + at, v);
  END_SUMS
#if SUMS
  INTO(sums)
  UNROLL for (int j = 0; j < FOURS; j++) {
    const int channel = first_panel * BLOCK + my_column + j * ACROSS * 4;
    if (first_row + my_row == 0 && channel < panels * BLOCK) {
      output total = sums + (size_t)group * panels * BLOCK + channel;
      if (add) row_sum[j] += LOAD(total);
      STORE(total, row_sum[j]);
    }
  }
#endif
}
