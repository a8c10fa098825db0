// Gathers the tiles of matrix products into local memory, for matrix units (matrix_units.h): a row of the left matrix
// is what a pixel reads of x, tap by tap. A pointwise convolution has one tap.
//
// A work-group computes ROWS rows x COLUMNS channels, a warp of it WARP_ROWS x WARP_COLUMNS. It goes through the depth
// in steps of 16 values: in a forward product 16 channels of a tap, in a weight gradient 16 pixels. BATCH steps are
// copied to local memory at a time, and STAGES batches are on their way. Where x has few channels, a step has as many
// taps TOGETHER, SHARE values each.
#define LEFT_CHUNKS (ROWS * CHUNKS)       // of a step
#define RIGHT_CHUNKS (COLUMNS * CHUNKS)
#define STEP_CHUNKS (LEFT_CHUNKS + RIGHT_CHUNKS)
#include "window.h"
#include "matrix_units.h"

#define WARPS_ACROSS (COLUMNS / WARP_COLUMNS)
#define TALL (WARP_ROWS / 16)
#define WIDE (WARP_COLUMNS / 8)
#ifndef BATCH
#define BATCH (2 / PARTS)
#endif
#define STAGES 3
#ifndef TOGETHER
#define TOGETHER 1
#endif
#define SHARE (BLOCK / TOGETHER)
#define LEFT_COPIES (LEFT_CHUNKS > GROUP ? LEFT_CHUNKS / GROUP : 1)     // of a work-item and a step
#define RIGHT_COPIES (RIGHT_CHUNKS > GROUP ? RIGHT_CHUNKS / GROUP : 1)
#define LEFT_STEPS (GROUP > LEFT_CHUNKS ? GROUP / LEFT_CHUNKS : 1)      // that a work-group copies at once
#define RIGHT_STEPS (GROUP > RIGHT_CHUNKS ? GROUP / RIGHT_CHUNKS : 1)
#define PIECE (16 / (int)sizeof(Factor))  // values of a chunk
#define STAGED_CHUNKS (STAGES * BATCH * STEP_CHUNKS)

typedef struct { int first_row, first_column, warp_row, warp_column; } Place;  // of the group's tile, and the warp's

INLINE Place place_of(const int row_tile, const int column_tile) {
  const int warp = get_local_id(0) / 32;
  return (Place){row_tile * ROWS, column_tile * COLUMNS, warp / WARPS_ACROSS * WARP_ROWS,
                 warp % WARPS_ACROSS * WARP_COLUMNS};
}

INLINE int is_in(const int at, const int size) { return (uint)at < (uint)size; }
INLINE __global const Chunk *chunk_at(factors row, const size_t rows) {
  return (__global const Chunk *)(row + rows * BLOCK);
}

// What a work-item copies: pieces of rows, always the same ones, of a side of the product that has so many `chunks` a
// step. A work-group with more work-items than that copies GROUP / chunks steps at once, a work-item the one of number
// OWN_STEP. Copy j is a piece of row ROW_OF of block BLOCK_OF of 16 columns.
#define OWN_STEP(chunks) ((int)get_local_id(0) / (chunks))
#define COPY_OF(j, chunks) (((j) * GROUP + (int)get_local_id(0)) % (chunks))
#define OWN_PIECE ((int)get_local_id(0) % CHUNKS)
#define COLUMN_START (OWN_PIECE * PIECE)
#define TAP_OF_PIECE (OWN_PIECE * PIECE / SHARE)  // of the taps together, for the left side
#define CHANNEL_START (OWN_PIECE * PIECE % SHARE)
#define ROW_OF(j, chunks) (COPY_OF(j, chunks) / CHUNKS % 16)
#define BLOCK_OF(j, chunks) (COPY_OF(j, chunks) / (CHUNKS * 16))
#define TARGET_OF(j, chunks) \
  (BLOCK_OF(j, chunks) * 16 * CHUNKS + chunk(ROW_OF(j, chunks), OWN_PIECE))

// In passes of `steps` steps: the steps of a batch that this work-item copies, in turn
#define FOR_OWN_STEPS(step, chunks, steps)                                                              \
  UNROLL for (int pass = 0, step = OWN_STEP(chunks); pass < BATCH; pass += steps, step += steps)
#define AT_ONCE(steps) (steps < BATCH ? steps : BATCH)

INLINE void clear(Sums sum[TALL][WIDE]) {
  UNROLL for (int i = 0; i < TALL; i++) UNROLL for (int j = 0; j < WIDE; j++) sum[i][j] = (Sums)0;
}

// Runs the pipeline: COPY(to) begins to copy the next batch of steps, some of which may lie behind the last one;
// MULTIPLY(batch) takes a batch.
#define MULTIPLY_STEPS(COPY, MULTIPLY, room, steps)                                                                \
  int filling = 0, full = 0;                                                                                       \
  for (int stage = 0; stage < STAGES - 1; stage++) {                                                               \
    COPY(room + filling * BATCH * STEP_CHUNKS);                                                                    \
    COMMIT_COPIES;                                                                                                 \
    filling++;                                                                                                     \
  }                                                                                                                \
  for (int step = 0; step < steps; step += BATCH) {                                                                \
    WAIT_FOR_ALL_BUT_ONE;                                                                                          \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                                  \
    COPY(room + filling * BATCH * STEP_CHUNKS);                                                                    \
    COMMIT_COPIES;                                                                                                 \
    MULTIPLY(room + full * BATCH * STEP_CHUNKS);                                                                   \
    filling = filling + 1 < STAGES ? filling + 1 : 0;                                                              \
    full = full + 1 < STAGES ? full + 1 : 0;                                                                       \
  }                                                                                                                \
  WAIT_FOR_COPIES;                                                                                                 \
  barrier(CLK_LOCAL_MEM_FENCE)

// The taps of one axis that pixels meet: every `every`-th from `first` on, `count` of them. The first one reads x at
// `offset` from the pixel's own place, each next one `step` further.
typedef struct { int first, every, count, offset, step; } Taps;

// A forward product, or one for the gradient of an input: `rows` pixels of a grid, `down` x `across` an image. A
// pixel's place times a stride, plus what a tap adds, is where it reads x, of height x width; there are zeros around x.
typedef struct {
  int rows, images, height, width, k, panels;
  Taps y, x;
} Product;

// A step: 16 channels of a tap; the blocks of a tap follow one another.
typedef struct { int number, block, at_y, at_x; } Step;

INLINE Step step_behind(Step step, const Product product, const int count) {
  const int blocks = (product.k + BLOCK - 1) / BLOCK;
  step.number += count;
  for (step.block += count; step.block >= blocks; step.block -= blocks)
    if (++step.at_x == product.x.count) {
      step.at_x = 0;
      step.at_y++;
    }
  return step;
}

// The next steps to copy, of `steps`: each work-item walks the taps that it copies.
typedef struct {
  int steps;
  Step of_left, of_right;
  factors left[LEFT_COPIES], right[RIGHT_COPIES];
  int y[LEFT_COPIES], x[LEFT_COPIES], depth[RIGHT_COPIES];
} Walk;

INLINE Walk start_walk(const Product product, const Place p, factors x, factors w, const int steps,
                       const int down, const int across, const int stride_y, const int stride_x) {
  const Step first = {0, 0, 0, 0};
  Walk walk;
  walk.steps = steps;
  const int slot = DEPTH_OF(ROW_OF(0, RIGHT_CHUNKS));  // that of all its copies
  walk.of_left = step_behind(first, product, OWN_STEP(LEFT_CHUNKS) * TOGETHER + TAP_OF_PIECE);
  walk.of_right = step_behind(first, product, OWN_STEP(RIGHT_CHUNKS) * TOGETHER + slot / SHARE);
  UNROLL for (int j = 0; j < LEFT_COPIES; j++) {
    const int r = p.first_row + COPY_OF(j, LEFT_CHUNKS) / CHUNKS;
    const int y = r / across % down * stride_y, column = r % across * stride_x;
    walk.y[j] = r < product.rows ? y : -(1 << 30);
    walk.x[j] = column;
    const long row = ((long)(r / (across * down)) * product.height + y) * product.width + column;
    walk.left[j] = x + row * BLOCK + CHANNEL_START;
  }
  UNROLL for (int j = 0; j < RIGHT_COPIES; j++) {
    const int panel = p.first_column / BLOCK + BLOCK_OF(j, RIGHT_CHUNKS), depth = slot % SHARE;
    walk.right[j] = w + ((size_t)panel * (TAPS * product.k) + depth) * BLOCK + COLUMN_START;
    walk.depth[j] = panel < product.panels ? depth : 1 << 30;
  }
  return walk;
}

// Begins to copy a batch; `fill` stands for a zero of x.
INLINE void copy_batch(__local Chunk *to, const Product product, Walk *walk, const Chunk fill) {
  FOR_OWN_STEPS(step, LEFT_CHUNKS, LEFT_STEPS) {
    const Step at = walk->of_left;
    const int add_y = product.y.offset + at.at_y * product.y.step, add_x = product.x.offset + at.at_x * product.x.step;
    const long plane = (long)at.block * product.images * product.height * product.width;
    const long from = plane + add_y * product.width + add_x;
    if (step < BATCH) UNROLL for (int j = 0; j < LEFT_COPIES; j++) {
      const int valid = is_in(walk->y[j] + add_y, product.height) && is_in(walk->x[j] + add_x, product.width);
      copy_chunk(to + step * STEP_CHUNKS + TARGET_OF(j, LEFT_CHUNKS), chunk_at(walk->left[j], from),
                 valid && at.number < walk->steps, fill);
    }
    walk->of_left = step_behind(at, product, AT_ONCE(LEFT_STEPS) * TOGETHER);
  }
  FOR_OWN_STEPS(step, RIGHT_CHUNKS, RIGHT_STEPS) {
    const Step at = walk->of_right;
    const int ky = product.y.first + at.at_y * product.y.every, kx = product.x.first + at.at_x * product.x.every;
    const int depth = at.block * BLOCK, row = (ky * KERNEL_W + kx) * product.k + depth;
    if (step < BATCH) UNROLL for (int j = 0; j < RIGHT_COPIES; j++)
      copy_chunk(to + step * STEP_CHUNKS + LEFT_CHUNKS + TARGET_OF(j, RIGHT_CHUNKS), chunk_at(walk->right[j], row),
                 walk->depth[j] + depth < product.k && at.number < walk->steps, (Chunk)0);
    walk->of_right = step_behind(at, product, AT_ONCE(RIGHT_STEPS) * TOGETHER);
  }
}

// The taps of one axis that the pixels of a gradient with a residue meet; none if `count` is 0. Between two of them
// the reach changes by a whole number of strides.
INLINE Taps taps_of(const int residue, const int stride, const int dilation, const int size, const int pad) {
  Taps taps = {0, 0, 0, 0, 0};
  for (int tap = size - 1; tap >= 0; tap--) {
    const int reach = residue + pad - tap * dilation;
    if (reach % stride != 0) continue;
    if (taps.count++) {
      taps.every = taps.first - tap;
      taps.step = taps.offset - reach / stride;
    }
    taps.first = tap;
    taps.offset = reach / stride;
  }
  return taps;
}

// Rows of a weight gradient: the 16 channels of a block as a tap reads them, the taps of a block one after the other.
// The next steps to copy, 16 pixels each: this work-item copies the pixel of x that row `left_row` of dy, at (image, y,
// x), meets, and row `right_row` of dy.
typedef struct {
  int left_row, right_row, image, y, x;
  factors left[LEFT_COPIES], right[RIGHT_COPIES];
  int add_y[LEFT_COPIES], add_x[LEFT_COPIES], is_panel[RIGHT_COPIES];
} Seen;

// A work-group has a multiple of 16 * CHUNKS work-items, so that all copies of a work-item and a side are of one row.
INLINE Seen start_seen(const Place p, factors x, factors dy, const Sizes s, const int blocks,
                       const int panels, const int row) {
  const int r = row + OWN_STEP(LEFT_CHUNKS) * 16 + ROW_OF(0, LEFT_CHUNKS);
  Seen seen;
  seen.left_row = r;
  seen.right_row = row + OWN_STEP(RIGHT_CHUNKS) * 16 + ROW_OF(0, RIGHT_CHUNKS);
  seen.image = r / (s.out_width * s.out_height);
  seen.y = r / s.out_width % s.out_height;
  seen.x = r % s.out_width;
  UNROLL for (int j = 0; j < LEFT_COPIES; j++) {
    const int number = (p.first_row / BLOCK + BLOCK_OF(j, LEFT_CHUNKS)) * TOGETHER + TAP_OF_PIECE;
    const int tap = number % TAPS, block = number / TAPS;
    const int add_y = INPUT_Y(0, tap / KERNEL_W), add_x = INPUT_X(0, tap % KERNEL_W);
    seen.add_y[j] = block < blocks ? add_y : -(1 << 30);
    seen.add_x[j] = add_x;
    const long plane = (long)block * s.images * s.height * s.width;
    seen.left[j] = x + (plane + add_y * s.width + add_x) * BLOCK + CHANNEL_START;
  }
  UNROLL for (int j = 0; j < RIGHT_COPIES; j++) {
    const int panel = p.first_column / BLOCK + BLOCK_OF(j, RIGHT_CHUNKS);
    seen.is_panel[j] = panel < panels;
    const size_t plane = (size_t)panel * s.images * s.out_height * s.out_width;
    seen.right[j] = dy + plane * BLOCK + COLUMN_START;
  }
  return seen;
}

// Begins to copy a batch of the rows before `stop`; `fill` stands for a zero of x.
INLINE void copy_seen(__local Chunk *to, Seen *seen, const Sizes s, const int stop, const Chunk fill) {
  FOR_OWN_STEPS(step, LEFT_CHUNKS, LEFT_STEPS) {
    const int inside = seen->left_row < stop, y = seen->y * STRIDE_Y, x = seen->x * STRIDE_X;
    const long from = ((long)seen->image * s.height + y) * s.width + x;
    if (step < BATCH) UNROLL for (int j = 0; j < LEFT_COPIES; j++)
      copy_chunk(to + step * STEP_CHUNKS + TARGET_OF(j, LEFT_CHUNKS), chunk_at(seen->left[j], from),
                 inside && is_in(y + seen->add_y[j], s.height) && is_in(x + seen->add_x[j], s.width),
                 inside ? fill : (Chunk)0);
    seen->left_row += 16 * AT_ONCE(LEFT_STEPS);
    for (seen->x += 16 * AT_ONCE(LEFT_STEPS); seen->x >= s.out_width; seen->x -= s.out_width)
      if (++seen->y == s.out_height) {
        seen->y = 0;
        seen->image++;
      }
  }
  FOR_OWN_STEPS(step, RIGHT_CHUNKS, RIGHT_STEPS) {
    if (step < BATCH) UNROLL for (int j = 0; j < RIGHT_COPIES; j++)
      copy_chunk(to + step * STEP_CHUNKS + LEFT_CHUNKS + TARGET_OF(j, RIGHT_CHUNKS),
                 chunk_at(seen->right[j], seen->right_row), seen->right_row < stop && seen->is_panel[j], (Chunk)0);
    seen->right_row += 16 * AT_ONCE(RIGHT_STEPS);
  }
}
