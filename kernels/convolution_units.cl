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
INLINE __global const Chunk *chunk_at(input_values x, const size_t row, const int piece) {
  return (__global const Chunk *)(x + row * BLOCK + piece * PIECE);
}

// Copies 16 rows of columns [first, first + COLUMNS) of a blocked matrix of `height` rows: those from `row` on, before
// `stop`
INLINE void copy_rows(__local Chunk *to, input_values from, const int height, const int first, const int blocks,
                      const int row, const int stop, const int columns) {
  UNROLL for (int j = 0; j < (columns * CHUNKS + GROUP - 1) / GROUP; j++) {
    const int i = j * GROUP + get_local_id(0), block = i / (16 * CHUNKS), r = i / CHUNKS % 16, piece = i % CHUNKS;
    const int valid = first / BLOCK + block < blocks && row + r < stop;
    const size_t at = valid ? (size_t)(first / BLOCK + block) * height + row + r : 0;
    if (columns * CHUNKS % GROUP == 0 || i < columns * CHUNKS)
      copy_chunk(to + block * 16 * CHUNKS + chunk(r, piece), chunk_at(from, at, piece), valid);
  }
}

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

// Runs the pipeline: COPY(step, to) begins to copy a step, which may lie behind the last one.
#define MULTIPLY_STEPS(COPY, sum, room, steps, place, gathered, exchange)                                          \
  const int batches = (steps + BATCH - 1) / BATCH;                                                                 \
  for (int stage = 0; stage < STAGES - 1; stage++) {                                                               \
    for (int s = 0; s < BATCH; s++) COPY(stage * BATCH + s, room + (stage * BATCH + s) * STEP_CHUNKS);             \
    COMMIT_COPIES;                                                                                                 \
  }                                                                                                                \
  for (int batch = 0; batch < batches; batch++) {                                                                  \
    WAIT_FOR_ALL_BUT_ONE;                                                                                          \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                                  \
    const int ahead = batch + STAGES - 1;                                                                          \
    __local Chunk *next = room + ahead % STAGES * BATCH * STEP_CHUNKS;                                             \
    for (int s = 0; s < BATCH; s++) COPY(ahead * BATCH + s, next + s * STEP_CHUNKS);                               \
    COMMIT_COPIES;                                                                                                 \
    multiply(sum, room + batch % STAGES * BATCH * STEP_CHUNKS, place, gathered, exchange);                         \
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

// A forward product, or one for the gradient of an input: `rows` pixels of a grid, `down` x `across` an image. A
// pixel's place times a step, plus what a tap adds, is where it reads x, of height x width; there are zeros around x.
typedef struct {
  input_values x, w;
  int rows, images, height, width, k, blocks, panels;
} Product;
typedef struct { int y[LEFT_COPIES], x[LEFT_COPIES], at[LEFT_COPIES]; } Pixels;

INLINE void find_pixels(Pixels *pixels, const Product product, const Place p, const int down, const int across,
                        const int step_y, const int step_x) {
  UNROLL for (int j = 0; j < LEFT_COPIES; j++) {
    const int i = j * GROUP + get_local_id(0), r = p.first_row + i / CHUNKS;
    const int y = r / across % down * step_y;
    pixels->x[j] = r % across * step_x;
    pixels->y[j] = i < LEFT_CHUNKS && r < product.rows ? y : -(1 << 30);
    pixels->at[j] = (r / (across * down) * product.height + y) * product.width + pixels->x[j];
  }
}

// Copies a step: 16 channels of tap (ky, kx), which reads x at (add_y, add_x)
INLINE void copy_step(__local Chunk *to, const Product product, const Pixels *pixels, const Place p, const int block,
                      const int tap, const int add_y, const int add_x) {
  const int inside = block < product.blocks;
  const long plane = (long)block * product.images * product.height * product.width + add_y * product.width + add_x;
  UNROLL for (int j = 0; j < LEFT_COPIES; j++) {
    const int i = j * GROUP + get_local_id(0), piece = i % CHUNKS;
    const int valid = inside && is_in(pixels->y[j] + add_y, product.height)
                      && is_in(pixels->x[j] + add_x, product.width);
    if (LEFT_CHUNKS % GROUP == 0 || i < LEFT_CHUNKS)
      copy_chunk(to + chunk(i / CHUNKS, piece), chunk_at(product.x, valid ? plane + pixels->at[j] : 0, piece), valid);
  }
  const int first = tap * product.k;
  copy_rows(to + LEFT_CHUNKS, product.w, TAPS * product.k, p.first_column, inside ? product.panels : 0,
            first + block * BLOCK, first + product.k, COLUMNS);
}

INLINE void copy_forward_step(__local Chunk *to, const Product product, const Pixels *pixels, const Place p,
                              const int step) {
  const int block = step / TAPS, tap = step % TAPS;
  copy_step(to, product, pixels, p, block, tap, INPUT_Y(0, tap / KERNEL_W), INPUT_X(0, tap % KERNEL_W));
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
  const Product product = {START(x), START(w), rows, images, height, width, k, blocks, panels};
  Pixels pixels;
  find_pixels(&pixels, product, p, out_height, out_width, STRIDE_Y, STRIDE_X);
  float4 sum[TALL][WIDE];
  clear(sum);
#define COPY(step, to) copy_forward_step(to, product, &pixels, p, step)
  MULTIPLY_STEPS(COPY, sum, room, blocks * TAPS, p, 1, exchange);
#undef COPY
#define WRITE(row, channel, v)                                                                     \
  if (row < rows && channel < panels * BLOCK)                                                      \
    store(y + ((size_t)((channel) / BLOCK) * rows + (row)) * BLOCK + (channel) % BLOCK,            \
          apply(affine_of(EPILOGUE, channel), v))
  WRITE_SUMS(WRITE, sum, room, p)
#undef WRITE
}

// The taps of one axis that the pixels of a gradient with a residue meet: every `every`-th from `first` on, `count` of
// them; none if `count` is 0
typedef struct { int first, every, count; } Taps;
INLINE Taps taps_of(const int residue, const int stride, const int dilation, const int size, const int pad) {
  int first = size, every = size, count = 0;
  for (int tap = size - 1; tap >= 0; tap--) if ((residue + pad - tap * dilation) % stride == 0) {
    if (count++) every = first - tap;
    first = tap;
  }
  return (Taps){first, every, count};
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
  const Product product = {START(x), START(w), rows, images, height, width, k, steps ? blocks : 0, panels};
  Pixels pixels;
  find_pixels(&pixels, product, p, rows ? down : 1, rows ? across : 1, 1, 1);
  float4 sum[TALL][WIDE];
  clear(sum);
#define COPY(step, to)                                                                                       \
  {                                                                                                          \
    const int number = count ? (step) % count : 0, block = count ? (step) / count : 0;                       \
    const int ky = taps_y.first + (count ? number / taps_x.count : 0) * taps_y.every;                        \
    const int kx = taps_x.first + (count ? number % taps_x.count : 0) * taps_x.every;                        \
    copy_step(to, product, &pixels, p, block, ky * KERNEL_W + kx, REACH_Y(top, ky) / STRIDE_Y,               \
              REACH_X(edge, kx) / STRIDE_X);                                                                 \
  }
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
// What it reads of x: `rows` pixels of dy in all, of which this group has those before `stop`.
typedef struct { input_values x; int rows, images, height, width, out_height, out_width, stop, blocks; } Seen;

// Copies 16 rows of x, from `row` of dy on, as the taps of the tile's rows read them
INLINE void copy_seen(__local Chunk *to, const Seen s, const Place p, const int row) {
  UNROLL for (int j = 0; j < LEFT_COPIES; j++) {
    const int i = j * GROUP + get_local_id(0), r = row + i / CHUNKS % 16, piece = i % CHUNKS;
    const int number = p.first_row / BLOCK + i / (16 * CHUNKS), tap = number % TAPS, block = number / TAPS;
    const int y = r / s.out_width % s.out_height * STRIDE_Y + INPUT_Y(0, tap / KERNEL_W);
    const int column = r % s.out_width * STRIDE_X + INPUT_X(0, tap % KERNEL_W);
    const int valid = block < s.blocks && r < s.stop && is_in(y, s.height) && is_in(column, s.width);
    const long image = (long)block * s.images + r / (s.out_width * s.out_height);
    const size_t at = valid ? (image * s.height + y) * s.width + column : 0;
    if (LEFT_CHUNKS % GROUP == 0 || i < LEFT_CHUNKS)
      copy_chunk(to + i / (16 * CHUNKS) * 16 * CHUNKS + chunk(i / CHUNKS % 16, piece), chunk_at(s.x, at, piece), valid);
  }
}

// partials[group]: [n/16][taps][k][16] = (add ? what was there : 0) + x^T dy over the `span` rows of dy of group
// get_global_id(2)
KERNEL convolution_units_backward_weights(INPUT_VALUES(x), INPUT_VALUES(dy), OUTPUT(partials), const int images,
                                          const int height, const int width, const int out_height, const int out_width,
                                          const int k, const int n, const int span, const int add) {
  __local Chunk room[ROOM];
  LOCAL_EXCHANGE(exchange);
  input_values dy = START(dy);
  const Place p = place_of_group();
  const int rows = images * out_height * out_width, group = get_group_id(2), panels = (n + BLOCK - 1) / BLOCK;
  const int start = group * span, stop = start + span < rows ? start + span : rows, blocks = (k + BLOCK - 1) / BLOCK;
  const int steps = start < stop ? (stop - start + 15) / 16 : 0;
  const Seen seen = {START(x), rows, images, height, width, out_height, out_width, stop, blocks};
  float4 sum[TALL][WIDE];
  clear(sum);
#define COPY(step, to)                                                                                        \
  {                                                                                                           \
    copy_seen(to, seen, p, start + (step) * 16);                                                              \
    copy_rows((to) + LEFT_CHUNKS, dy, rows, p.first_column, panels, start + (step) * 16, stop, COLUMNS);      \
  }
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
