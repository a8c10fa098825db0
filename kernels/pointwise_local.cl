// Matrix products over blocked matrices as in pointwise.cl, for devices with local memory that is worth its barriers.
//
// A work-group computes ROWS rows x COLUMNS channels. SLICES teams of TEAM work-items share the depth: each takes every
// SLICES-th block of 16, copies its part of both matrices to local memory, the next one already on its way in registers,
// and multiplies; the first team adds up the others' sums, in order. A work-item holds ITEM_ROWS x ITEM_COLUMNS sums:
// rows next to each other, channels in fours that lie ACROSS fours apart, so that neighbours read neighbouring words.
#define LANES 4
#define FIRST_LANE 0
#include "blocked.h"
#include "activation.h"
#include "epilogue.h"
#include "gradient.h"

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

// ROWS rows of one block: transposed on their way
#define FETCH_ROWS(from, height, block, blocks, row)                              \
  UNROLL for (int j = 0; j < LEFT_FOURS; j++) {                                   \
    const int i = j * TEAM + me, r = (row) + i / 4;                               \
    left_next[j] = i < ROWS * 4 && r < (height) && (block) < (blocks)             \
                       ? LOAD(from + ((size_t)(block) * (height) + r) * BLOCK + i % 4 * 4) : (V)0; \
  }
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

#define PRODUCT_TILE                                                              \
  PLACE_IN_GROUP                                                                  \
  const int first_row = get_group_id(0) * ROWS, first_panel = get_group_id(1) * (COLUMNS / BLOCK); \
  const int blocks = (k + BLOCK - 1) / BLOCK, panels = (n + BLOCK - 1) / BLOCK;   \
  FETCH_ROWS(x, m, slice, blocks, first_row)                                      \
  FETCH(right_next, RIGHT_FOURS, COLUMNS, w, k, first_panel, panels, slice * BLOCK, k) \
  for (int first = 0; first < blocks; first += SLICES) {                          \
    const int next = first + SLICES + slice;                                      \
    KEEP_ROWS                                                                     \
    KEEP(right_next, RIGHT_FOURS, COLUMNS, right, COLUMNS)                        \
    barrier(CLK_LOCAL_MEM_FENCE);                                                 \
    FETCH_ROWS(x, m, next, blocks, first_row)                                     \
    FETCH(right_next, RIGHT_FOURS, COLUMNS, w, k, first_panel, panels, next * BLOCK, k) \
    MULTIPLY()                                                                    \
    barrier(CLK_LOCAL_MEM_FENCE);                                                 \
  }                                                                               \
  ADD_SLICES                                                                      \
  if (slice > 0) return;

// For each sum, the row and the channel that it belongs to, and where it goes in [panels][height][16]
#define FOR_SUMS(height)                                                          \
  UNROLL for (int j = 0; j < FOURS; j++) UNROLL for (int i = 0; i < ITEM_ROWS; i++) { \
    const int row = first_row + my_row + i, channel = first_panel * BLOCK + my_column + j * ACROSS * 4; \
    const size_t at = ((size_t)(channel / BLOCK) * (height) + row) * BLOCK + channel % BLOCK; \
    if (row < (height) && channel < panels * BLOCK) {
#define END_SUMS } }

// y = activation((x w) * scale + shift)
KERNEL pointwise_local_forward(INPUT(x), INPUT(w), OUTPUT(y), const int m, const int k, const int n EPILOGUE_ARGUMENTS) {
  FROM(x) FROM(w) INTO(y) EPILOGUE_POINTERS
  PRODUCT_TILE
  FOR_SUMS(m)
    V v = sum[i][j];
    LOAD_SCALE(s, channel)
    LOAD_SHIFT(t, channel)
    APPLY_SCALE(v, s)
    APPLY_SHIFT(v, t)
    ACTIVATE(v)
    STORE(y + at, v);
  END_SUMS
}

// dx = dy w^T, given the transposed weights [n/16][k][16] (here k counts the forward pass's output channels)
KERNEL pointwise_local_backward_data(INPUT(x), INPUT(w), const int m, const int k, const int n, GRADIENT_OUTPUT) {
  FROM(x) FROM(w) GRADIENT_POINTERS
  PRODUCT_TILE
  FOR_SUMS(m)
    WRITE_GRADIENT(at, sum[i][j])
  END_SUMS
}

// partials[group]: [n/16][k][16] = (add ? what was there : 0) + x^T dy over the `count` rows of group get_group_id(2). If
// SUMS, the first tiles also leave the sum of those rows of dy in sums[group].
KERNEL pointwise_local_backward_weights(INPUT(x), INPUT(dy), OUTPUT(partials)
#if SUMS
                                        , OUTPUT(sums)
#endif
                                        , const int m, const int k, const int n, const int count, const int add) {
  FROM(x) FROM(dy) INTO(partials)
  PLACE_IN_GROUP
  const int first_row = get_group_id(0) * ROWS, first_panel = get_group_id(1) * (COLUMNS / BLOCK);
  const int blocks = (k + BLOCK - 1) / BLOCK, panels = (n + BLOCK - 1) / BLOCK, group = get_group_id(2);
  const int start = group * count, stop = start + count < m ? start + count : m;
#if SUMS
  V row_sum[FOURS];
  UNROLL for (int j = 0; j < FOURS; j++) row_sum[j] = (V)0;
#define ADD_ROW UNROLL for (int j = 0; j < FOURS; j++) row_sum[j] += column[j];
#else
#define ADD_ROW
#endif
  FETCH(left_next, LEFT_FOURS, ROWS, x, m, first_row / BLOCK, blocks, start + slice * BLOCK, stop)
  FETCH(right_next, RIGHT_FOURS, COLUMNS, dy, m, first_panel, panels, start + slice * BLOCK, stop)
  for (int first = start; first < stop; first += SLICES * BLOCK) {
    const int next = first + (SLICES + slice) * BLOCK;
    KEEP(left_next, LEFT_FOURS, ROWS, left, LEFT_WIDTH)
    KEEP(right_next, RIGHT_FOURS, COLUMNS, right, COLUMNS)
    barrier(CLK_LOCAL_MEM_FENCE);
    FETCH(left_next, LEFT_FOURS, ROWS, x, m, first_row / BLOCK, blocks, next, stop)
    FETCH(right_next, RIGHT_FOURS, COLUMNS, dy, m, first_panel, panels, next, stop)
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
  output dw = partials + (size_t)group * panels * k * BLOCK;
  FOR_SUMS(k)
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
