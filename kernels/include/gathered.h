// Gathers the tiles of matrix products into local memory, for matrix units (matrix_units.h): a row of the left matrix
// is what a pixel reads of x, tap by tap. A pointwise convolution has one tap.
//
// A work-group computes ROWS rows x COLUMNS channels, a warp of it WARP_ROWS x WARP_COLUMNS. It goes through the depth
// in steps of 16 values: in a forward product 16 channels of a tap, in a weight gradient 16 pixels. BATCH steps are
// copied to local memory at a time, and STAGES batches are on their way. Where x has few channels, a step has as many
// taps TOGETHER, SHARE values each. With WARPGROUPS, four neighbouring warps share tiles of 64 rows, 16 each.
#define LEFT_CHUNKS (ROWS * CHUNKS)       // of a step
#define RIGHT_CHUNKS (COLUMNS * CHUNKS)
#define STEP_CHUNKS (LEFT_CHUNKS + RIGHT_CHUNKS)
#include "window.h"
#include "matrix_units.h"

#define WARPS_ACROSS (COLUMNS / WARP_COLUMNS)
#define TALL (WARP_ROWS / 16)
#define WIDE (WARP_COLUMNS / 8)
#if WARPGROUPS
#define NEXT_ROWS 64  // from 16 rows of a warp to the next ones
#else
#define NEXT_ROWS 16
#endif
#define STAGES 3
// Taps read nearly the same of x. A compute unit finds floats in its own cache if the taps of a block follow one another;
// halves are faster without.
#define READ_AGAIN (TYPE == FLOAT32)
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

#define ASYNCHRONOUS (UNIT == WGMMA)  // products run beside what comes next (warpgroups.h)
#if ASYNCHRONOUS
#include "warpgroups.h"
#else
#define WAIT_FOR_PRODUCTS
#define HOLD(s)
#define ALIGNED
#endif

typedef struct { int first_row, first_column, warp_row, warp_column; } Place;  // of the group's tile, and the warp's

INLINE Place place_of(const int row_tile, const int column_tile) {
  const int warp = get_local_id(0) / 32;
#if WARPGROUPS
  const int number = warp / 4, row = number / WARPS_ACROSS * 4 * WARP_ROWS + warp % 4 * 16;
#else
  const int number = warp, row = number / WARPS_ACROSS * WARP_ROWS;
#endif
  return (Place){row_tile * ROWS, column_tile * COLUMNS, row, number % WARPS_ACROSS * WARP_COLUMNS};
}

INLINE __global const Chunk *chunk_at(factors row, const int rows) {
  return (__global const Chunk *)(row + (long)rows * BLOCK);
}

// A work-item copies pieces of rows, always the same ones, of a side of the product that has so many `chunks` a
// step. A work-group with more work-items than that copies GROUP / chunks steps at once, a work-item the one of number
// OWN_STEP. Copy j is a piece of row ROW_OF of block BLOCK_OF of 16 columns: a work-group has a multiple of 16 * CHUNKS
// work-items, so that all copies of a work-item and a side are of one row.
#define OWN_STEP(chunks) (GROUP > chunks ? (int)get_local_id(0) / (chunks) : 0)
#define OWN_CHUNK(chunks) (GROUP > chunks ? (int)get_local_id(0) % (chunks) : (int)get_local_id(0))
#define OWN_PIECE ((int)get_local_id(0) % CHUNKS)
#define COLUMN_START (OWN_PIECE * PIECE)
#define TAP_OF_PIECE (OWN_PIECE * PIECE / SHARE)  // of the taps together, for the left side
#define CHANNEL_START (OWN_PIECE * PIECE % SHARE)
#define BLOCK_CHUNKS (16 * CHUNKS)
#define ROW_OF(chunks) (OWN_CHUNK(chunks) / CHUNKS % 16)
#define BLOCK_OF(j, chunks) (OWN_CHUNK(chunks) / BLOCK_CHUNKS + (j) * (GROUP / BLOCK_CHUNKS))
#define TARGET_OF(j, chunks) (BLOCK_OF(j, chunks) * BLOCK_CHUNKS + chunk(ROW_OF(chunks), OWN_PIECE))

#define AT_ONCE(steps) (steps < BATCH ? steps : BATCH)
#define BATCH_CHUNKS (BATCH * STEP_CHUNKS)

// A warp's sums; of integers also those of the right factor's columns and of the left one's rows
typedef struct {
  Sums of[TALL][WIDE];
#if TYPE == INT8
  Sums of_columns[WIDE], of_rows[TALL];
#endif
} Tile;

INLINE void clear(Tile *tile) {
  UNROLL for (int i = 0; i < TALL; i++) UNROLL for (int j = 0; j < WIDE; j++) tile->of[i][j] = (Sums)0;
#if TYPE == INT8
  UNROLL for (int j = 0; j < WIDE; j++) tile->of_columns[j] = (Sums)0;
  UNROLL for (int i = 0; i < TALL; i++) tile->of_rows[i] = (Sums)0;
#endif
}

// The taps of one axis that pixels meet: every `every`-th from `first` on, `count` of them. The first one reads x at
// `offset` from the pixel's own place, each next one `step` further.
typedef struct { int first, every, count, offset, step; } Taps;

// A forward product, or one for the gradient of an input: `rows` pixels of a grid, `down` x `across` an image, times a
// kernel of k input and n output channels. A pixel's place times a stride, plus what a tap adds, is where it reads x, of
// height x width; there are zeros around x. A block of x has `plane` rows.
typedef struct {
  int rows, height, width, k, n, blocks, plane;
  Taps y, x;
} Product;

// A step: 16 channels of a tap. The blocks of a tap follow one another, or the taps of a block.
typedef struct { int number, block, at_y, at_x; } Step;

// Moves a step on by `count`. True if it is of another tap then.
INLINE int move_on(Step *step, const Product product, const int count) {
  step->number += count;
#if READ_AGAIN
  if (product.x.count == 0) return 0;  // pixels that meet no tap: there are no steps
  for (step->at_x += count; step->at_x >= product.x.count; step->at_x -= product.x.count)
    if (++step->at_y == product.y.count) {
      step->at_y = 0;
      step->block++;
    }
#else
  step->block += count;
  if (step->block < product.blocks) return 0;
  for (; step->block >= product.blocks; step->block -= product.blocks)
    if (++step->at_x == product.x.count) {
      step->at_x = 0;
      step->at_y++;
    }
#endif
  return 1;
}

// The next steps to copy, of `steps`: each work-item walks the taps that it copies. `from` is how far from a pixel's own
// place it reads, `row` the first row of the weights; copies j whose bits are set in `inside` and `columns` have anything
// to read.
typedef struct {
  int steps;
  Step of_left, of_right;
  factors left[LEFT_COPIES], right[RIGHT_COPIES];
  int y[LEFT_COPIES], x[LEFT_COPIES];
  int from, row, slot;
  uint inside, columns;
} Walk;

INLINE void meet_pixels(Walk *walk, const Product product) {
  const Step at = walk->of_left;
  const int add_y = product.y.offset + at.at_y * product.y.step, add_x = product.x.offset + at.at_x * product.x.step;
  walk->from = at.block * product.plane + add_y * product.width + add_x;
  walk->inside = 0;
  UNROLL for (int j = 0; j < LEFT_COPIES; j++)
    if (is_in(walk->y[j] + add_y, product.height) && is_in(walk->x[j] + add_x, product.width)) walk->inside |= 1u << j;
}

INLINE void meet_weights(Walk *walk, const Product product) {
  const Step at = walk->of_right;
  const int ky = product.y.first + at.at_y * product.y.every, kx = product.x.first + at.at_x * product.x.every;
  const int tap = ky * KERNEL_W + kx;
#if DEPTH_ROWS
  walk->row = (at.block * TAPS + tap) * product.n;
#else
  walk->row = tap * product.k + at.block * BLOCK;
#endif
}

INLINE Walk start_walk(const Product product, const Place p, factors x, factors w, const int steps,
                       const int down, const int across, const int stride_y, const int stride_x) {
  const Step first = {0, 0, 0, 0};
  Walk walk;
  walk.steps = steps;
  walk.of_left = walk.of_right = first;
  walk.columns = 0;
  UNROLL for (int j = 0; j < LEFT_COPIES; j++) {
    const int r = p.first_row + BLOCK_OF(j, LEFT_CHUNKS) * 16 + ROW_OF(LEFT_CHUNKS);
    const int y = r / across % down * stride_y, column = r % across * stride_x;
    walk.y[j] = r < product.rows ? y : -(1 << 30);
    walk.x[j] = column;
    const long row = ((long)(r / (across * down)) * product.height + y) * product.width + column;
    walk.left[j] = x + row * BLOCK + CHANNEL_START;
  }
#if DEPTH_ROWS
  const int right_tap = TAP_OF_PIECE;
  walk.slot = 0;
  UNROLL for (int j = 0; j < RIGHT_COPIES; j++) {
    const int column = p.first_column + BLOCK_OF(j, RIGHT_CHUNKS) * BLOCK + ROW_OF(RIGHT_CHUNKS);
    walk.right[j] = w + (size_t)column * BLOCK + CHANNEL_START;
    if (column < product.n) walk.columns |= 1u << j;
  }
#else
  const int slot = DEPTH_OF(ROW_OF(RIGHT_CHUNKS)), right_tap = slot / SHARE;
  walk.slot = slot % SHARE;
  UNROLL for (int j = 0; j < RIGHT_COPIES; j++) {
    const int column = p.first_column + BLOCK_OF(j, RIGHT_CHUNKS) * BLOCK;
    walk.right[j] = w + ((size_t)(column / BLOCK) * (TAPS * product.k) + walk.slot) * BLOCK + COLUMN_START;
    if (column < product.n) walk.columns |= 1u << j;
  }
#endif
  move_on(&walk.of_left, product, OWN_STEP(LEFT_CHUNKS) * TOGETHER + TAP_OF_PIECE);
  move_on(&walk.of_right, product, OWN_STEP(RIGHT_CHUNKS) * TOGETHER + right_tap);
  meet_pixels(&walk, product);
  meet_weights(&walk, product);
  return walk;
}

// Begins to copy a batch, in passes of LEFT_STEPS and RIGHT_STEPS steps; `fill` stands for a zero of x.
INLINE void copy_pixels(__local Chunk *to, const Product product, Walk *walk, const Chunk fill) {
  UNROLL for (int pass = 0, step = OWN_STEP(LEFT_CHUNKS); pass < BATCH; pass += LEFT_STEPS, step += LEFT_STEPS) {
    const uint valid = walk->of_left.number < walk->steps ? walk->inside : 0;
    if (step < BATCH) UNROLL for (int j = 0; j < LEFT_COPIES; j++)
      copy_chunk(to + step * STEP_CHUNKS + TARGET_OF(j, LEFT_CHUNKS), chunk_at(walk->left[j], walk->from),
                 valid & 1u << j, fill, READ_AGAIN);
    const int count = AT_ONCE(LEFT_STEPS) * TOGETHER;
    if (move_on(&walk->of_left, product, count)) meet_pixels(walk, product);
    else walk->from += count * product.plane;
  }
  UNROLL for (int pass = 0, step = OWN_STEP(RIGHT_CHUNKS); pass < BATCH; pass += RIGHT_STEPS, step += RIGHT_STEPS) {
    const Step at = walk->of_right;
    const uint valid = at.number < walk->steps && at.block * BLOCK + walk->slot < product.k ? walk->columns : 0;
    if (step < BATCH) UNROLL for (int j = 0; j < RIGHT_COPIES; j++)
      copy_chunk(to + step * STEP_CHUNKS + LEFT_CHUNKS + TARGET_OF(j, RIGHT_CHUNKS),
                 chunk_at(walk->right[j], walk->row), valid & 1u << j, (Chunk)0, 0);
    const int count = AT_ONCE(RIGHT_STEPS) * TOGETHER;
    if (move_on(&walk->of_right, product, count)) meet_weights(walk, product);
    else walk->row += count * BLOCK;
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
  int images_on, rows_on, columns_on;  // from one pixel to the next
  factors left[LEFT_COPIES], right[RIGHT_COPIES];
  int add_y[LEFT_COPIES], add_x[LEFT_COPIES];
  uint panels;
} Seen;

INLINE Seen start_seen(const Place p, factors x, factors dy, const Sizes s, const int blocks,
                       const int panels, const int row) {
  const int r = row + OWN_STEP(LEFT_CHUNKS) * 16 + ROW_OF(LEFT_CHUNKS), on = 16 * AT_ONCE(LEFT_STEPS);
  Seen seen;
  seen.left_row = r;
  seen.right_row = row + OWN_STEP(RIGHT_CHUNKS) * 16 + ROW_OF(RIGHT_CHUNKS);
  seen.image = r / (s.out_width * s.out_height);
  seen.y = r / s.out_width % s.out_height;
  seen.x = r % s.out_width;
  seen.images_on = on / (s.out_width * s.out_height);
  seen.rows_on = on / s.out_width % s.out_height;
  seen.columns_on = on % s.out_width;
  seen.panels = 0;
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
    const size_t plane = (size_t)panel * s.images * s.out_height * s.out_width;
    seen.right[j] = dy + (plane + seen.right_row) * BLOCK + COLUMN_START;
    if (panel < panels) seen.panels |= 1u << j;
  }
  return seen;
}

// Begins to copy a batch of the rows before `stop`; `fill` stands for a zero of x.
INLINE void copy_depths(__local Chunk *to, Seen *seen, const Sizes s, const int stop, const Chunk fill) {
  UNROLL for (int pass = 0, step = OWN_STEP(LEFT_CHUNKS); pass < BATCH; pass += LEFT_STEPS, step += LEFT_STEPS) {
    const int inside = seen->left_row < stop, y = seen->y * STRIDE_Y, x = seen->x * STRIDE_X;
    const int from = (seen->image * s.height + y) * s.width + x;
    if (step < BATCH) UNROLL for (int j = 0; j < LEFT_COPIES; j++)
      copy_chunk(to + step * STEP_CHUNKS + TARGET_OF(j, LEFT_CHUNKS), chunk_at(seen->left[j], from),
                 inside && is_in(y + seen->add_y[j], s.height) && is_in(x + seen->add_x[j], s.width),
                 inside ? fill : (Chunk)0, READ_AGAIN);
    seen->left_row += 16 * AT_ONCE(LEFT_STEPS);
    seen->x += seen->columns_on;
    seen->y += seen->rows_on;
    seen->image += seen->images_on;
    if (seen->x >= s.out_width) {
      seen->x -= s.out_width;
      seen->y++;
    }
    if (seen->y >= s.out_height) {
      seen->y -= s.out_height;
      seen->image++;
    }
  }
  UNROLL for (int pass = 0, step = OWN_STEP(RIGHT_CHUNKS); pass < BATCH; pass += RIGHT_STEPS, step += RIGHT_STEPS) {
    const uint valid = seen->right_row < stop ? seen->panels : 0;
    const int count = 16 * AT_ONCE(RIGHT_STEPS);
    if (step < BATCH) UNROLL for (int j = 0; j < RIGHT_COPIES; j++)
      copy_chunk(to + step * STEP_CHUNKS + LEFT_CHUNKS + TARGET_OF(j, RIGHT_CHUNKS), chunk_at(seen->right[j], 0),
                 valid & 1u << j, (Chunk)0, 0);
    UNROLL for (int j = 0; j < RIGHT_COPIES; j++) seen->right[j] += count * BLOCK;
    seen->right_row += count;
  }
}

// The factors of a product: rows of the left one are the pixels that `walk` visits, or else the depth, as `seen` says,
// of rows before `stop`. `fill` stands for a zero of x.
typedef struct {
  int are_pixels;
  Product product;
  Walk *walk;
  Sizes sizes;
  Seen *seen;
  int stop;
  Chunk fill;
} Factors;

INLINE void copy_next(__local Chunk *to, const Factors from) {
  if (from.are_pixels) copy_pixels(to, from.product, from.walk, from.fill);
  else copy_depths(to, from.seen, from.sizes, from.stop, from.fill);
  COMMIT_COPIES;
}

// tile += the products of a batch, or begin to add them: WAIT_FOR_PRODUCTS waits until that is done. Each file has its
// own.
INLINE void multiply(Tile *tile, __local const Chunk *batch, const Place p, const int are_pixels,
                     __local uint *exchange);

// tile += the products of `steps` steps, some of the last batch's lie after them. STAGES - 1 batches are on their way
// to local memory while one is multiplied.
INLINE void multiply_steps(Tile *tile, const Factors factors, __local Chunk *room, const int steps, const Place p,
                           __local uint *exchange) {
  int filling = 0, full = 0;
  for (; filling < (STAGES - 1) * BATCH_CHUNKS; filling += BATCH_CHUNKS) copy_next(room + filling, factors);
  for (int step = 0; step < steps; step += BATCH) {
    WAIT_FOR_ALL_BUT_ONE;
    WAIT_FOR_PRODUCTS;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (ASYNCHRONOUS) multiply(tile, room + full, p, factors.are_pixels, exchange);
    copy_next(room + filling, factors);
    if (!ASYNCHRONOUS) multiply(tile, room + full, p, factors.are_pixels, exchange);
    filling = filling + BATCH_CHUNKS < STAGED_CHUNKS ? filling + BATCH_CHUNKS : 0;
    full = full + BATCH_CHUNKS < STAGED_CHUNKS ? full + BATCH_CHUNKS : 0;
  }
  WAIT_FOR_COPIES;
  WAIT_FOR_PRODUCTS;
  barrier(CLK_LOCAL_MEM_FENCE);
}
