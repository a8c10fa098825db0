// Convolutions as matrix products by matrix units (matrix_units.h): a row of the left matrix is what a pixel reads of
// x, gathered tap by tap on its way to local memory. A pointwise convolution has one tap.
//
// A work-group computes ROWS rows x COLUMNS channels, a warp of it WARP_ROWS x WARP_COLUMNS. It goes through the depth
// in steps of 16 values: in a forward product 16 channels of a tap, in a weight gradient 16 pixels. BATCH steps are
// copied to local memory at a time, and STAGES batches are on their way.
#define VECTOR_WIDTH 4
#define FIRST_CHANNEL 0
#include "blocked.h"
#include "epilogue.h"
#include "gradient.h"
#include "window.h"
#include "matrix_units.h"

#define WARPS_ACROSS (COLUMNS / WARP_COLUMNS)
#define TALL (WARP_ROWS / 16)
#define WIDE (WARP_COLUMNS / 8)
#define BATCH (2 / PARTS)
#define STAGES 3
#define LEFT_CHUNKS (ROWS * CHUNKS)       // of a step
#define RIGHT_CHUNKS (COLUMNS * CHUNKS)
#define STEP_CHUNKS (LEFT_CHUNKS + RIGHT_CHUNKS)
#define LEFT_COPIES ((LEFT_CHUNKS + GROUP - 1) / GROUP)
#define RIGHT_COPIES ((RIGHT_CHUNKS + GROUP - 1) / GROUP)
#define PIECE (16 / (int)sizeof(Value))   // values of a chunk
#define OUT_WIDTH (WARP_COLUMNS + 8)      // of a row of sums in local memory
#define WARP_SUMS (16 * OUT_WIDTH)
#define OUT_CHUNKS (GROUP / 32 * WARP_SUMS / 4)
#define ROOM (STAGES * BATCH * STEP_CHUNKS > OUT_CHUNKS ? STAGES * BATCH * STEP_CHUNKS : OUT_CHUNKS)

typedef struct { int first_row, first_column, warp_row, warp_column; } Place;  // of the group's tile, and the warp's

INLINE Place place_of_group(void) {
  const int warp = get_local_id(0) / 32;
  return (Place){get_group_id(0) * ROWS, get_group_id(1) * COLUMNS, warp / WARPS_ACROSS * WARP_ROWS,
                 warp % WARPS_ACROSS * WARP_COLUMNS};
}

INLINE int is_in(const int at, const int size) { return (uint)at < (uint)size; }
INLINE __global const Chunk *chunk_at(input_values row, const size_t rows) {
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

// sum += the products of a batch. `gathered`: the left factor's rows are pixels, else the depth.
INLINE void multiply(float4 sum[TALL][WIDE], __local const Chunk *batch, const Place p, const int gathered,
                     __local uint *exchange) {
  UNROLL for (int step = 0; step < BATCH; step++) UNROLL for (int part = 0; part < PARTS; part++) {
    __local const Chunk *left = batch + step * STEP_CHUNKS, *right = left + LEFT_CHUNKS;
    Left b[WIDE / 2];
    UNROLL for (int j = 0; j < WIDE / 2; j++) b[j] = right_columns(right, p.warp_column + j * 16, part);
    UNROLL for (int i = 0; i < TALL; i++) {
      const int row = p.warp_row + i * 16;
      const Left a = gathered ? left_rows(left, row, part) : left_columns(left, row, part);
      UNROLL for (int j = 0; j < WIDE; j++)
        sum[i][j] = add_product(sum[i][j], a, j % 2 ? b[j / 2].zw : b[j / 2].xy, exchange);
    }
  }
}

INLINE void clear(float4 sum[TALL][WIDE]) {
  UNROLL for (int i = 0; i < TALL; i++) UNROLL for (int j = 0; j < WIDE; j++) sum[i][j] = (float4)0;
}

// Runs the pipeline: COPY(to) begins to copy the next step, which may lie behind the last one.
#define MULTIPLY_STEPS(COPY, sum, room, steps, place, gathered, exchange)                                          \
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
    multiply(sum, room + full * BATCH * STEP_CHUNKS, place, gathered, exchange);                                   \
    filling = filling + 1 < STAGES ? filling + 1 : 0;                                                              \
    full = full + 1 < STAGES ? full + 1 : 0;                                                                       \
  }                                                                                                                \
  WAIT_FOR_COPIES;                                                                                                 \
  barrier(CLK_LOCAL_MEM_FENCE)

// Hands the sums out in vectors of four channels, 16 rows of a warp at a time: WRITE(row, channel, v).
#define WRITE_SUMS(WRITE, sum, room, p)                                                                            \
  __local float *const mine = (__local float *)room + get_local_id(0) / 32 * WARP_SUMS;                            \
  UNROLL for (int i = 0; i < TALL; i++) {                                                                          \
    UNROLL for (int j = 0; j < WIDE; j++) {                                                                        \
      __local float *to = mine + LANE / 4 * OUT_WIDTH + j * 8 + LANE % 4 * 2;                                      \
      *(__local float2 *)to = sum[i][j].xy;                                                                        \
      *(__local float2 *)(to + 8 * OUT_WIDTH) = sum[i][j].zw;                                                      \
    }                                                                                                              \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                                  \
    UNROLL for (int part = 0; part < WARP_COLUMNS / 8; part++) {                                                   \
      const int at = part * 32 + LANE, r = at / 4 % 16, c = at / 64 * 16 + at % 4 * 4;                             \
      const V v = *(__local const V *)(mine + r * OUT_WIDTH + c);                                                  \
      WRITE(p.first_row + p.warp_row + i * 16 + r, p.first_column + p.warp_column + c, v);                         \
    }                                                                                                              \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                                  \
  }

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
  input_values left[LEFT_COPIES], right[RIGHT_COPIES];
  int y[LEFT_COPIES], x[LEFT_COPIES], depth[RIGHT_COPIES];
} Walk;

INLINE Walk start_walk(const Product product, const Place p, input_values x, input_values w, const int steps,
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
    walk.right[j] = w + ((size_t)panel * (TAPS * product.k) + ROW_OF(j)) * BLOCK + PIECE_START(j);
    walk.depth[j] = panel < product.panels ? ROW_OF(j) : 1 << 30;
  }
  return walk;
}

INLINE void copy_step(__local Chunk *to, const Product product, Walk *walk) {
  const int add_y = product.y.offset + walk->at_y * product.y.step, ky = product.y.first + walk->at_y * product.y.every;
  const int add_x = product.x.offset + walk->at_x * product.x.step, kx = product.x.first + walk->at_x * product.x.every;
  const long plane = (long)walk->block * product.images * product.height * product.width;
  const long from = plane + add_y * product.width + add_x;
  const int inside = walk->steps > 0, depth = walk->block * BLOCK, row = (ky * KERNEL_W + kx) * product.k + depth;
  UNROLL for (int j = 0; j < LEFT_COPIES; j++) if (IS_COPY(j, LEFT_CHUNKS)) {
    const int valid = inside && is_in(walk->y[j] + add_y, product.height) && is_in(walk->x[j] + add_x, product.width);
    copy_chunk(to + TARGET_OF(j), chunk_at(walk->left[j], from), valid);
  }
  UNROLL for (int j = 0; j < RIGHT_COPIES; j++) if (IS_COPY(j, RIGHT_CHUNKS))
    copy_chunk(to + LEFT_CHUNKS + TARGET_OF(j), chunk_at(walk->right[j], row),
               inside && walk->depth[j] + depth < product.k);
  walk->steps--;
  if (++walk->block * BLOCK < product.k) return;
  walk->block = 0;
  if (++walk->at_x < product.x.count) return;
  walk->at_x = 0;
  walk->at_y++;
}

// y = activation((x * w) * scale + shift)
KERNEL convolution_units_forward(INPUT_VALUES(x), INPUT_VALUES(w), OUTPUT_VALUES(y), const int images, const int height,
                                 const int width, const int out_height, const int out_width, const int k,
                                 const int n EPILOGUE_ARGUMENTS) {
  __local Chunk room[ROOM];
  LOCAL_EXCHANGE(exchange);
  output_values y = START(y);
  const Place p = place_of_group();
  const int rows = images * out_height * out_width, blocks = (k + BLOCK - 1) / BLOCK;
  const int panels = (n + BLOCK - 1) / BLOCK;
  const Taps taps_y = {0, 1, KERNEL_H, INPUT_Y(0, 0), DILATION_Y}, taps_x = {0, 1, KERNEL_W, INPUT_X(0, 0), DILATION_X};
  const Product product = {rows, images, height, width, k, panels, taps_y, taps_x};
  const int steps = blocks * TAPS;
  Walk walk = start_walk(product, p, START(x), START(w), steps, out_height, out_width, STRIDE_Y, STRIDE_X);
  float4 sum[TALL][WIDE];
  clear(sum);
#define COPY(to) copy_step(to, product, &walk)
  MULTIPLY_STEPS(COPY, sum, room, steps, p, 1, exchange);
#undef COPY
#define WRITE(row, channel, v)                                                                     \
  if (row < rows && channel < panels * BLOCK)                                                      \
    store(y + ((size_t)((channel) / BLOCK) * rows + (row)) * BLOCK + (channel) % BLOCK,            \
          apply(affine_of(EPILOGUE, channel), v))
  WRITE_SUMS(WRITE, sum, room, p)
#undef WRITE
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

// dx = dy * w backwards, given transposed weights [n/16][taps][k][16]: here x is dy, k counts the forward pass's output
// channels, and height and width are those of dy. Pixels of dx that meet the same taps, every STRIDE_Y-th row and
// STRIDE_X-th column of an image, are a product of their own: number get_global_id(2).
KERNEL convolution_units_backward_data(INPUT_VALUES(x), INPUT_VALUES(w), const int images, const int height,
                                       const int width, const int in_height, const int in_width, const int k,
                                       const int n, GRADIENT_ARGUMENTS) {
  __local Chunk room[ROOM];
  LOCAL_EXCHANGE(exchange);
  const Gradient dx = GRADIENT;
  const Place p = place_of_group();
  const int top = get_group_id(2) / STRIDE_X, edge = get_group_id(2) % STRIDE_X;
  const int down = (in_height - top + STRIDE_Y - 1) / STRIDE_Y, across = (in_width - edge + STRIDE_X - 1) / STRIDE_X;
  const int rows = images * down * across, in_rows = images * in_height * in_width;
  const int blocks = (k + BLOCK - 1) / BLOCK, panels = (n + BLOCK - 1) / BLOCK;
  const Taps taps_y = taps_of(top, STRIDE_Y, DILATION_Y, KERNEL_H, PAD_TOP);
  const Taps taps_x = taps_of(edge, STRIDE_X, DILATION_X, KERNEL_W, PAD_LEFT);
  const int count = taps_y.count * taps_x.count, steps = p.first_row < rows ? blocks * count : 0;
  const Product product = {rows, images, height, width, k, panels, taps_y, taps_x};
  Walk walk = start_walk(product, p, START(x), START(w), steps, rows ? down : 1, rows ? across : 1, 1, 1);
  float4 sum[TALL][WIDE];
  clear(sum);
#define COPY(to) copy_step(to, product, &walk)
  MULTIPLY_STEPS(COPY, sum, room, steps, p, 1, exchange);
#undef COPY
#define WRITE(row, channel, v)                                                                               \
  if (row < rows && channel < panels * BLOCK) {                                                              \
    const int y = (row) / across * STRIDE_Y + top + (row) / (across * down) * (in_height - down * STRIDE_Y); \
    const int pixel = y * in_width + (row) % across * STRIDE_X + edge;                                       \
    write_gradient(dx, ((size_t)((channel) / BLOCK) * in_rows + pixel) * BLOCK + (channel) % BLOCK, v);      \
  }
  WRITE_SUMS(WRITE, sum, room, p)
#undef WRITE
}

// Rows of a weight gradient: the 16 channels of a block as a tap reads them, the taps of a block one after the other.
// The next step to copy: 16 pixels of dy from `row` on, of which this work-item copies the one at (image, y, x).
typedef struct {
  int row, image, y, x;
  input_values left[LEFT_COPIES], right[RIGHT_COPIES];
  int add_y[LEFT_COPIES], add_x[LEFT_COPIES], is_panel[RIGHT_COPIES];
} Seen;

INLINE Seen start_seen(const Place p, input_values x, input_values dy, const Sizes s, const int blocks,
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

INLINE void copy_seen(__local Chunk *to, Seen *seen, const Sizes s, const int stop) {
  const int inside = seen->row + ROW_OF(0) < stop, y = seen->y * STRIDE_Y, x = seen->x * STRIDE_X;
  const long from = ((long)seen->image * s.height + y) * s.width + x;
  UNROLL for (int j = 0; j < LEFT_COPIES; j++) if (IS_COPY(j, LEFT_CHUNKS))
    copy_chunk(to + TARGET_OF(j), chunk_at(seen->left[j], from),
               inside && is_in(y + seen->add_y[j], s.height) && is_in(x + seen->add_x[j], s.width));
  UNROLL for (int j = 0; j < RIGHT_COPIES; j++) if (IS_COPY(j, RIGHT_CHUNKS))
    copy_chunk(to + LEFT_CHUNKS + TARGET_OF(j), chunk_at(seen->right[j], seen->row), inside && seen->is_panel[j]);
  seen->row += 16;
  for (seen->x += 16; seen->x >= s.out_width; seen->x -= s.out_width)
    if (++seen->y == s.out_height) {
      seen->y = 0;
      seen->image++;
    }
}

// partials[group]: [n/16][taps][k][16] = (add ? what was there : 0) + x^T dy over the `span` rows of dy of group
// get_global_id(2)
KERNEL convolution_units_backward_weights(INPUT_VALUES(x), INPUT_VALUES(dy), OUTPUT(partials), const int images,
                                          const int height, const int width, const int out_height, const int out_width,
                                          const int k, const int n, const int span, const int add) {
  __local Chunk room[ROOM];
  LOCAL_EXCHANGE(exchange);
  const Place p = place_of_group();
  const int rows = images * out_height * out_width, group = get_group_id(2), panels = (n + BLOCK - 1) / BLOCK;
  const int start = group * span, stop = start + span < rows ? start + span : rows, blocks = (k + BLOCK - 1) / BLOCK;
  const int steps = start < stop ? (stop - start + 15) / 16 : 0;
  Seen seen = start_seen(p, START(x), START(dy), SIZES, blocks, panels, start);
  float4 sum[TALL][WIDE];
  clear(sum);
#define COPY(to) copy_seen(to, &seen, SIZES, stop)
  MULTIPLY_STEPS(COPY, sum, room, steps, p, 0, exchange);
#undef COPY
  output dw = START(partials) + (size_t)group * panels * TAPS * k * BLOCK;
#define WRITE(row, channel, v)                                                                                \
  {                                                                                                           \
    const int block = (row) / BLOCK / TAPS, depth = block * BLOCK + (row) % BLOCK;                            \
    if (block < blocks && depth < k && channel < panels * BLOCK) {                                            \
      const size_t weight_row = (size_t)((channel) / BLOCK) * (TAPS * k) + (row) / BLOCK % TAPS * k + depth;  \
      output to = dw + weight_row * BLOCK + (channel) % BLOCK;                                                \
      store(to, add ? v + load(to) : v);                                                                      \
    }                                                                                                         \
  }
  WRITE_SUMS(WRITE, sum, room, p)
#undef WRITE
}
