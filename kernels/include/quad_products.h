// The loops of a convolution of 8-bit integers on a unit that adds up four products at a time (quads.h), instead of
// those in window_products.h, which says what whoever includes this defines.
#include "quad_columns.h"

#define COLUMNS_FORWARD SPAN              // that a tile meets in a row of its input
#define COLUMNS_BACKWARD (TILE + (KERNEL_W - 1) * DILATION_X / STRIDE_X + 1)
// Pieces of 16 bytes that `columns` pixels take, and the length of a strip: pieces in whole quads
#define PIECES(columns) (((columns) * IN_BLOCK + QUAD - 1) / BLOCK + 1)
#define STRIP(columns) ((IN_BLOCK == BLOCK ? (columns) + QUAD - 1 : PIECES(columns) + QUAD - 1) / QUAD * QUAD)

typedef int4 Pixel;
typedef Pixel __attribute__((aligned(4))) Pixel_in_memory;
typedef Pixel __attribute__((aligned(1))) Bytes_in_memory;

INLINE void clear(Quads *sum, const int count) { UNROLL for (int i = 0; i < count; i++) sum[i] = (Quads)0; }

// strip = the pixels of a row from column `first` on, as unsigned bytes
INLINE void load_strip(Pixel *strip, Data row, const int first, const int columns, const int width, const short zero) {
  const int padding = zero + 128;
#if IN_BLOCK == BLOCK && ROWS_AT_ONCE && TAPS > 1  // pixels of one tap, read once each, are there sooner one by one
  Data from = row + first * BLOCK;
  if (first >= 0 && first + STRIP(columns) <= width) {
    UNROLL for (int q = 0; q < columns; q += QUAD)
      *(Quads_in_memory *)(strip + q) = *(__global const Quads_in_memory *)(from + q * BLOCK) ^ (Quads)OFFSET;
  } else UNROLL for (int q = 0; q < columns; q += QUAD) {
    const int outside = clamp_quad(-first - q), stop = clamp_quad(width - first - q);
    *(Quads_in_memory *)(strip + q) = rows_of_some(from + q * BLOCK, outside, stop, (char)zero) ^ (Quads)OFFSET;
  }
#elif IN_BLOCK == BLOCK
  if (first >= 0 && first + columns <= width) {
    __global const Pixel_in_memory *from = (__global const Pixel_in_memory *)(row + first * BLOCK);
    UNROLL for (int q = 0; q < columns; q++) strip[q] = from[q] ^ (Pixel)OFFSET;
  } else for (int q = 0; q < columns; q++) {
    const int ix = first + q;
    strip[q] = ix >= 0 && ix < width ? *(__global const Pixel_in_memory *)(row + ix * BLOCK) ^ (Pixel)OFFSET
                                     : (Pixel)(padding * ONES);
  }
#elif ROWS_AT_ONCE
  const int start = first * IN_BLOCK, stop = width * IN_BLOCK;
  UNROLL for (int i = 0; i < PIECES(columns); i += QUAD) {
    const int at = start + i * BLOCK;
    *(Quads_in_memory *)(strip + i) = bytes_of_some(row + at, -at, stop - at, (char)zero) ^ (Quads)OFFSET;
  }
#else
  const int start = first * IN_BLOCK, stop = width * IN_BLOCK, pieces = PIECES(columns);
  __global const Bytes_in_memory *from = (__global const Bytes_in_memory *)(row + start);
  if (start >= 0 && start + pieces * BLOCK <= stop) {
    UNROLL for (int i = 0; i < pieces; i++) strip[i] = from[i] ^ (Pixel)OFFSET;
  } else for (int i = 0; i < pieces; i++) {
    const int at = start + i * BLOCK;
    if (at >= 0 && at + BLOCK <= stop) strip[i] = from[i] ^ (Pixel)OFFSET;
    else for (int j = 0; j < BLOCK; j++)
      ((uchar *)&strip[i])[j] = at + j >= 0 && at + j < stop ? (uchar)(row[at + j] + 128) : (uchar)padding;
  }
#endif
}

// The same as numbers that Fours are made of
INLINE void load_numbers(Unsigned *numbers, Data row, const int first, const int columns, const int length,
                         const int width, const short zero) {
#if UNIT == AVX2
  Pixel strip[STRIP(COLUMNS_FORWARD) > STRIP(COLUMNS_BACKWARD) ? STRIP(COLUMNS_FORWARD) : STRIP(COLUMNS_BACKWARD)];
  load_strip(strip, row, first, columns, width, zero);
  UNROLL for (int q = 0; q < length; q++) store_unsigned(numbers + q * BLOCK, strip[q]);
#else
  load_strip((Pixel *)numbers, row, first, columns, width, zero);
#endif
}

// The sums of the weights of PANELS blocks over the channels and over `together` neighbouring taps at a time
INLINE void keep_totals(Kept *kept, Data w, const int channels, const int panel, const int together) {
  if (kept->panel == panel) return;
  kept->panel = panel;
  for (int tap = 0; tap < TAPS; tap += together) UNROLL for (int j = 0; j < PANELS; j++) {
    Data weights = w + ((size_t)(panel + j) * TAPS + tap) * channels * BLOCK;
    Quads total = (Quads)0;
    for (int row = 0; row < together * channels; row += QUAD)
      total = add_fours(total, ONE_EACH, fours_of_rows(weights + row * BLOCK, together * channels - row));
    kept->totals[tap / together][j] = total;
  }
}

// sum[i] += the four numbers at numbers[i * step] * PANELS times four weights, `panel_stride` apart
INLINE void add_products(Quads sum[TILE][PANELS], const Unsigned *numbers, const int step, Data weights,
                         const int panel_stride, const int count) {
  Fours column[PANELS];
  UNROLL for (int j = 0; j < PANELS; j++) column[j] = fours_of_rows(weights + j * (size_t)panel_stride, count);
  UNROLL for (int i = 0; i < TILE; i++) {
    const Fours value = fours_of_one(numbers + i * step);
    UNROLL for (int j = 0; j < PANELS; j++) sum[i][j] = add_fours(sum[i][j], value, column[j]);
  }
}

// totals += the kept sums number `index`
INLINE void count_kept(Quads totals[PANELS], const Kept *kept, const int index) {
  UNROLL for (int j = 0; j < PANELS; j++) totals[j] += kept->totals[index][j];
}

// sum = -a * the weights of the taps counted: what unsigned bytes will add too much
INLINE void start_sums(Quads sum[TILE][PANELS], const Quads totals[PANELS], const short zero) {
  UNROLL for (int j = 0; j < PANELS; j++) {
    const Quads excess = totals[j] * (zero + 128);
    UNROLL for (int i = 0; i < TILE; i++) sum[i][j] = -excess;
  }
}

INLINE void forward_tile(const Outputs target, Data x, Data w, const Sizes s, const int channels, const int image,
                         const int oy, const int ox, const int panel, const short zero) {
  Quads sum[TILE][PANELS], totals[PANELS];
  Pixel strip[STRIP(COLUMNS_FORWARD) * sizeof(Unsigned)];
  Unsigned *numbers = (Unsigned *)strip;
  clear(totals, PANELS);
  if (zero != -128) {
    keep_totals(target.kept, w, channels, panel, KERNEL_W);
    for (int ky = 0; ky < KERNEL_H; ky++)
      if (INPUT_Y(oy, ky) >= 0 && INPUT_Y(oy, ky) < s.height) count_kept(totals, target.kept, ky);
  }
  start_sums(sum, totals, zero);
  const int panel_stride = TAPS * channels * BLOCK;
  for (int ky = 0; ky < KERNEL_H; ky++) {
    const int iy = INPUT_Y(oy, ky);
    if (iy < 0 || iy >= s.height) continue;
    for (int first = 0; first < channels; first += IN_BLOCK) {
      const int count = channels - first < IN_BLOCK ? channels - first : IN_BLOCK;
      Data plane = x + (size_t)(first / IN_BLOCK * s.images + image) * s.height * s.width * IN_BLOCK;
      load_numbers(numbers, plane + iy * s.width * IN_BLOCK, INPUT_X(ox, 0), COLUMNS_FORWARD, STRIP(COLUMNS_FORWARD),
                   s.width, zero);
      for (int kx = 0; kx < KERNEL_W; kx += WIDE) {
        Data weights = w + ((size_t)(panel * TAPS + ky * KERNEL_W + kx) * channels + first) * BLOCK;
        for (int c = 0; c < count * WIDE; c += QUAD)
          add_products(sum, numbers + kx * DILATION_X * IN_BLOCK + c, STRIDE_X * IN_BLOCK,
                       weights + c * BLOCK, panel_stride, count * WIDE - c);
      }
    }
  }
  write_outputs(target, sum, s, image, oy, ox, panel);
}

INLINE void backward_tile(const Gradients target, Data dy, Data t, const Sizes s, const int out, const int image,
                          const int iy, const int ix, const int panel, const short zero) {
  Quads sum[TILE][PANELS], totals[PANELS];
  Pixel strip[STRIP(COLUMNS_BACKWARD) * sizeof(Unsigned)];
  Unsigned *numbers = (Unsigned *)strip;
  clear(totals, PANELS);
  keep_totals(target.kept, t, out, panel, 1);
  for (int ky = 0; ky < KERNEL_H; ky++) {
    const int reach_y = REACH_Y(iy, ky);
    if (reach_y < 0 || reach_y % STRIDE_Y != 0 || reach_y / STRIDE_Y >= s.out_height) continue;
    for (int kx = 0; kx < KERNEL_W; kx++)
      if (REACH_X(ix, kx) % STRIDE_X == 0) count_kept(totals, target.kept, ky * KERNEL_W + kx);
  }
  start_sums(sum, totals, zero);
  const int panel_stride = TAPS * out * BLOCK;
  const int far = REACH_X(ix, KERNEL_W - 1), edge = (far < 0 ? far - STRIDE_X + 1 : far) / STRIDE_X;
  for (int ky = 0; ky < KERNEL_H; ky++) {
    const int reach_y = REACH_Y(iy, ky), oy = reach_y / STRIDE_Y;
    if (reach_y < 0 || reach_y % STRIDE_Y != 0 || oy >= s.out_height) continue;
    for (int first = 0; first < out; first += BLOCK) {
      const int count = out - first < BLOCK ? out - first : BLOCK;
      Data plane = dy + (size_t)(first / BLOCK * s.images + image) * s.out_height * s.out_width * BLOCK;
      load_numbers(numbers, plane + oy * s.out_width * BLOCK, edge, COLUMNS_BACKWARD, STRIP(COLUMNS_BACKWARD),
                   s.out_width, zero);
      for (int kx = 0; kx < KERNEL_W; kx++) {
        const int reach_x = REACH_X(ix, kx);
        if (reach_x % STRIDE_X != 0) continue;
        Data weights = t + ((size_t)(panel * TAPS + ky * KERNEL_W + kx) * out + first) * BLOCK;
        for (int c = 0; c < count; c += QUAD)
          add_products(sum, numbers + (reach_x / STRIDE_X - edge) * BLOCK + c, BLOCK,
                       weights + c * BLOCK, panel_stride, count - c);
      }
    }
  }
  write_gradients(target, sum, s, image, iy, ix, panel);
}

// The quads of four pixels of a row from column `first` on, every STRIDE_X-th, as unsigned bytes: lane i has the
// values number `channel` + i. Pixels outside the row, and those after the first `count`, hold what padding does.
INLINE Quads quads_of_pixels(Data row, const int first, const int count, const int width, const int channel,
                             const short zero) {
#if IN_BLOCK == BLOCK
  return quads_of_columns(row, first, STRIDE_X, count, width, zero);
#else
#define AT(q) *(__global const Row_at_any_place *)(row + (first + (q) * STRIDE_X) * IN_BLOCK + channel)
  if (count == QUAD && first >= 0 && (first + (QUAD - 1) * STRIDE_X) * IN_BLOCK + channel + BLOCK <= width * IN_BLOCK)
    return quads_of_four(AT(0), AT(1), AT(2), AT(3)) ^ (Quads)OFFSET;
#undef AT
#define AT(q) as_char16(*(const Bytes_in_memory *)((const char *)strip + (q) * STRIDE_X * IN_BLOCK + channel))
  const int mask = count < QUAD ? (1 << 8 * count) - 1 : -1;
  Pixel strip[STRIP((QUAD - 1) * STRIDE_X + WIDE) + 1];
  load_strip(strip, row, first, (QUAD - 1) * STRIDE_X + WIDE, width, zero);
  return (quads_of_four(AT(0), AT(1), AT(2), AT(3)) & mask) | ((zero + 128) * ONES & ~mask);
#undef AT
#endif
}

// The same as Fours
INLINE Fours fours_of_pixels(Data row, const int first, const int count, const int width, const int channel,
                             const short zero) {
#if UNIT == AVX2 && IN_BLOCK == BLOCK
#define AT(q) *(__global const Row_in_memory *)(row + (first + (q) * STRIDE_X) * BLOCK)
  if (count == QUAD && first >= 0 && first + (QUAD - 1) * STRIDE_X < width)
    return fours_of_unsigned(AT(0), AT(1), AT(2), AT(3));
#undef AT
  char16 pixel[QUAD];
  UNROLL for (int q = 0; q < QUAD; q++) {
    const int ix = first + q * STRIDE_X, inside = q < count && ix >= 0 && ix < width;
    const char16 read = *(__global const Row_in_memory *)(row + (inside ? ix : within(first, width)) * BLOCK);
    pixel[q] = inside ? read : (char16)zero;
  }
  return fours_of_unsigned(pixel[0], pixel[1], pixel[2], pixel[3]);
#else
  return fours_of(quads_of_pixels(row, first, count, width, channel, zero), 0);
#endif
}

// As in window_products.h. Inputs are the unsigned factor: with u = x + 128 and a = zero + 128, the sum of (x - zero) *
// (g - dy_zero) is that of u * g - a * (g - dy_zero) - dy_zero * u. Pixels in the padding hold a: they add nothing, nor
// do those that stand for outputs after the end of a row.
INLINE void weight_tile(const Weights target, Data x, Data dy, const Sizes s, const int tap, const int channel,
                        const int panel, const int first, const int last, const short zero, const short dy_zero) {
  Quads sum[DEPTH][PANELS], of_gradients[PANELS], of_inputs = (Quads)0;
  clear(&sum[0][0], DEPTH * PANELS);
  clear(of_gradients, PANELS);
  const int ky = tap / (KERNEL_W / WIDE), kx = tap % (KERNEL_W / WIDE), a = zero + 128;
  const int block = IN_BLOCK == BLOCK ? channel / BLOCK : 0, begin = IN_BLOCK == BLOCK ? channel % BLOCK : 0;
  const size_t panel_stride = (size_t)s.images * s.out_height * s.out_width * BLOCK;
  const int edge = INPUT_X(0, kx), above = INPUT_Y(0, ky);
  // Rows of an image whose inputs exist
  const int top = above < 0 ? (-above + STRIDE_Y - 1) / STRIDE_Y : 0, reach = s.height - 1 - above;
  const int below = reach < 0 ? 0 : reach / STRIDE_Y + 1, bottom = below < s.out_height ? below : s.out_height;
  int image = first / s.out_height, oy = first % s.out_height, quads = 0;
  oy = oy < top ? top : oy;
  if (oy >= bottom) {
    oy = top;
    image++;
  }
  int left = top < bottom ? last - (image * s.out_height + oy) : 0;  // rows, if there were no others
  Data p = x + ((size_t)(block * s.images + image) * s.height + oy * STRIDE_Y + above) * s.width * IN_BLOCK;
  Data d = dy + (((size_t)panel * s.images + image) * s.out_height + oy) * s.out_width * BLOCK;
  for (int ox = 0; left > 0; quads++) {
    const int ix = ox * STRIDE_X + edge, count = s.out_width - ox < QUAD ? s.out_width - ox : QUAD;
    const Fours inputs = fours_of_pixels(p, ix, count, s.width, channel, zero);
    of_inputs = add_fours(of_inputs, inputs, ONE_EACH);
    Fours column[PANELS];
    UNROLL for (int j = 0; j < PANELS; j++) column[j] = fours_of_rows(d + j * panel_stride + ox * BLOCK, count);
    if (a) UNROLL for (int j = 0; j < PANELS; j++) of_gradients[j] = add_fours(of_gradients[j], ONE_EACH, column[j]);
    UNROLL for (int i = 0; i < DEPTH; i++) {
      const Fours value = lane_of(&inputs, begin + i);
      UNROLL for (int j = 0; j < PANELS; j++) sum[i][j] = add_fours(sum[i][j], value, column[j]);
    }
    ox += QUAD;
    if (ox >= s.out_width) {
      ox = 0;
      const int next = oy + 1 == bottom, skipped = next ? s.out_height - bottom + top : 0;
      oy = next ? top : oy + 1;
      left -= 1 + skipped;
      d += (1 + skipped) * s.out_width * BLOCK;
      p += (next ? s.height - (bottom - top - 1) * STRIDE_Y : STRIDE_Y) * s.width * IN_BLOCK;
    }
  }
  UNROLL for (int j = 0; j < PANELS; j++) of_gradients[j] = (of_gradients[j] - quads * QUAD * dy_zero) * a;
  UNROLL for (int i = 0; i < DEPTH; i++) {
    UNROLL for (int j = 0; j < PANELS; j++) sum[i][j] -= of_gradients[j] + ((int *)&of_inputs)[begin + i] * dy_zero;
  }
  write_weights(target, sum, tap, channel, panel);
}
