// Gathers the tiles of matrix products into local memory, for matrix units (matrix_units.h): a row of the left matrix
// is what a pixel reads of x, tap by tap. A pointwise convolution has one tap.
//
// A work-group computes ROWS rows x COLUMNS channels, a warp of it WARP_ROWS x WARP_COLUMNS. It goes through the depth
// in steps of 16 values: in a forward product 16 channels of a tap, in a weight gradient 16 pixels. BATCH steps are
// copied to local memory at a time, and STAGES batches are on their way.
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
#define LEFT_COPIES ((LEFT_CHUNKS + GROUP - 1) / GROUP)
#define RIGHT_COPIES ((RIGHT_CHUNKS + GROUP - 1) / GROUP)
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

// What a work-item copies of each step: pieces of rows, always the same ones. Copy j of `columns` columns is a piece of
// row ROW_OF of block BLOCK_OF of 16 columns.
#define COPY_OF(j) ((j) * GROUP + (int)get_local_id(0))
#define PIECE_START(j) (COPY_OF(j) % CHUNKS * PIECE)
#define ROW_OF(j) (COPY_OF(j) / CHUNKS % 16)
#define BLOCK_OF(j) (COPY_OF(j) / (CHUNKS * 16))
#define IS_COPY(j, chunks) ((chunks) % GROUP == 0 || COPY_OF(j) < (chunks))
#define TARGET_OF(j) (BLOCK_OF(j) * 16 * CHUNKS + chunk(ROW_OF(j), COPY_OF(j) % CHUNKS))

INLINE void clear(Sums sum[TALL][WIDE]) {
  UNROLL for (int i = 0; i < TALL; i++) UNROLL for (int j = 0; j < WIDE; j++) sum[i][j] = (Sums)0;
}

// Runs the pipeline: COPY(to) begins to copy the next step, which may lie behind the last one; MULTIPLY(batch) takes
// the steps of a batch.
#define MULTIPLY_STEPS(COPY, MULTIPLY, room, steps)                                                                \
  int filling = 0, full = 0;                                                                                       \
  for (int stage = 0; stage < STAGES - 1; stage++) {                                                               \
    for (int s = 0; s < BATCH; s++) COPY(room + (filling * BATCH + s) * STEP_CHUNKS);                              \
    COMMIT_COPIES;                                                                                                 \
    filling++;                                                                                                     \
  }                                                                                                                \
  for (int step = 0; step < steps; step += BATCH) {                                                                \
    WAIT_FOR_ALL_BUT_ONE;                                                                                          \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                                  \
    for (int s = 0; s < BATCH; s++) COPY(room + (filling * BATCH + s) * STEP_CHUNKS);                              \
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

// The next step to copy, 16 channels of a tap; the blocks of a tap follow one another. `steps` are left.
typedef struct {
  int steps, block, at_y, at_x;
  factors left[LEFT_COPIES], right[RIGHT_COPIES];
  int y[LEFT_COPIES], x[LEFT_COPIES], depth[RIGHT_COPIES];
} Walk;

INLINE Walk start_walk(const Product product, const Place p, factors x, factors w, const int steps,
                       const int down, const int across, const int stride_y, const int stride_x) {
  Walk walk = {steps, 0, 0, 0};
  UNROLL for (int j = 0; j < LEFT_COPIES; j++) {
    const int r = p.first_row + COPY_OF(j) / CHUNKS, y = r / across % down * stride_y, column = r % across * stride_x;
    walk.y[j] = r < product.rows ? y : -(1 << 30);
    walk.x[j] = column;
    const long row = ((long)(r / (across * down)) * product.height + y) * product.width + column;
    walk.left[j] = x + row * BLOCK + PIECE_START(j);
  }
  UNROLL for (int j = 0; j < RIGHT_COPIES; j++) {
    const int panel = p.first_column / BLOCK + BLOCK_OF(j);
    walk.right[j] = w + ((size_t)panel * (TAPS * product.k) + DEPTH_OF(ROW_OF(j))) * BLOCK + PIECE_START(j);
    walk.depth[j] = panel < product.panels ? DEPTH_OF(ROW_OF(j)) : 1 << 30;
  }
  return walk;
}

// `fill` stands for a zero of x.
INLINE void copy_step(__local Chunk *to, const Product product, Walk *walk, const Chunk fill) {
  const int add_y = product.y.offset + walk->at_y * product.y.step, ky = product.y.first + walk->at_y * product.y.every;
  const int add_x = product.x.offset + walk->at_x * product.x.step, kx = product.x.first + walk->at_x * product.x.every;
  const long plane = (long)walk->block * product.images * product.height * product.width;
  const long from = plane + add_y * product.width + add_x;
  const int inside = walk->steps > 0, depth = walk->block * BLOCK, row = (ky * KERNEL_W + kx) * product.k + depth;
  UNROLL for (int j = 0; j < LEFT_COPIES; j++) if (IS_COPY(j, LEFT_CHUNKS)) {
    const int valid = inside && is_in(walk->y[j] + add_y, product.height) && is_in(walk->x[j] + add_x, product.width);
    copy_chunk(to + TARGET_OF(j), chunk_at(walk->left[j], from), valid, fill);
  }
  UNROLL for (int j = 0; j < RIGHT_COPIES; j++) if (IS_COPY(j, RIGHT_CHUNKS))
    copy_chunk(to + LEFT_CHUNKS + TARGET_OF(j), chunk_at(walk->right[j], row),
               inside && walk->depth[j] + depth < product.k, (Chunk)0);
  walk->steps--;
  if (++walk->block * BLOCK < product.k) return;
  walk->block = 0;
  if (++walk->at_x < product.x.count) return;
  walk->at_x = 0;
  walk->at_y++;
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
// The next step to copy: 16 pixels of dy from `row` on, of which this work-item copies the one at (image, y, x).
typedef struct {
  int row, image, y, x;
  factors left[LEFT_COPIES], right[RIGHT_COPIES];
  int add_y[LEFT_COPIES], add_x[LEFT_COPIES], is_panel[RIGHT_COPIES];
} Seen;

INLINE Seen start_seen(const Place p, factors x, factors dy, const Sizes s, const int blocks,
                       const int panels, const int row) {
  const int r = row + ROW_OF(0);  // that of all copies: a work-group has a multiple of 16 * CHUNKS work-items
  Seen seen = {row, r / (s.out_width * s.out_height), r / s.out_width % s.out_height, r % s.out_width};
  UNROLL for (int j = 0; j < LEFT_COPIES; j++) {
    const int number = p.first_row / BLOCK + BLOCK_OF(j), tap = number % TAPS, block = number / TAPS;
    const int add_y = INPUT_Y(0, tap / KERNEL_W), add_x = INPUT_X(0, tap % KERNEL_W);
    seen.add_y[j] = block < blocks ? add_y : -(1 << 30);
    seen.add_x[j] = add_x;
    const long plane = (long)block * s.images * s.height * s.width;
    seen.left[j] = x + (plane + add_y * s.width + add_x) * BLOCK + PIECE_START(j);
  }
  UNROLL for (int j = 0; j < RIGHT_COPIES; j++) {
    const int panel = p.first_column / BLOCK + BLOCK_OF(j);
    seen.is_panel[j] = panel < panels;
    const size_t plane = (size_t)panel * s.images * s.out_height * s.out_width;
    seen.right[j] = dy + (plane + ROW_OF(j)) * BLOCK + PIECE_START(j);
  }
  return seen;
}

INLINE void copy_seen(__local Chunk *to, Seen *seen, const Sizes s, const int stop, const Chunk fill) {
  const int inside = seen->row + ROW_OF(0) < stop, y = seen->y * STRIDE_Y, x = seen->x * STRIDE_X;
  const long from = ((long)seen->image * s.height + y) * s.width + x;
  UNROLL for (int j = 0; j < LEFT_COPIES; j++) if (IS_COPY(j, LEFT_CHUNKS))
    copy_chunk(to + TARGET_OF(j), chunk_at(seen->left[j], from),
               inside && is_in(y + seen->add_y[j], s.height) && is_in(x + seen->add_x[j], s.width),
               inside ? fill : (Chunk)0);
  UNROLL for (int j = 0; j < RIGHT_COPIES; j++) if (IS_COPY(j, RIGHT_CHUNKS))
    copy_chunk(to + LEFT_CHUNKS + TARGET_OF(j), chunk_at(seen->right[j], seen->row), inside && seen->is_panel[j],
               (Chunk)0);
  seen->row += 16;
  for (seen->x += 16; seen->x >= s.out_width; seen->x -= s.out_width)
    if (++seen->y == s.out_height) {
      seen->y = 0;
      seen->image++;
    }
}
