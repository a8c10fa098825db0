// The loops of a depthwise convolution of 8-bit integers on a unit that adds up four products at a time (quads.h),
// instead of those in depthwise_products.h: a quad holds four neighbouring pixels of a row, of each of 16 channels, and
// meets a quad of the kernel's taps. Taps that reach over few columns serve several outputs with one quad of pixels.
#include "quads.h"
#include "quad_columns.h"

#define COLUMNS_FORWARD ((KERNEL_W - 1) * DILATION_X + 1)  // of a row that an output meets
#define COLUMNS_BACKWARD ((KERNEL_W - 1) * DILATION_X / STRIDE_X + 1)
#define ROW_QUADS(columns) (((columns) + QUAD - 1) / QUAD)
#define SHARING(columns, step) ((step) == 1 && (columns) < QUAD ? QUAD + 1 - (columns) : 1)  // outputs that share a quad

// A row of the kernel: quads of taps, or those of one quad by how many columns they are shifted; last, their sum
#define TOTAL (ROW_QUADS(COLUMNS_FORWARD) + QUAD - 1)
typedef Quads Taps[KERNEL_H][TOTAL + 1];
#define SETS_BACKWARD STRIDE_X  // one for each residue

INLINE void clear(Quads *sums, const int count) { UNROLL for (int i = 0; i < count; i++) sums[i] = (Quads)0; }

INLINE void add_tap(Quads *row, bytes w, const int block, const int ky, const int kx, const int column) {
  row[column / QUAD] |= bytes_of_row(w + (block * TAPS + ky * KERNEL_W + kx) * BLOCK) << column % QUAD * 8;
}
INLINE void finish_taps(Quads *row, const int columns, const int step) {
  row[TOTAL] = (Quads)0;
  UNROLL for (int g = 0; g < ROW_QUADS(columns); g++) row[TOTAL] = add_quads(row[TOTAL], (Quads)ONES, row[g]);
  UNROLL for (int i = 1; i < SHARING(columns, step); i++) row[i] = row[0] << 8 * i;
}

INLINE void load_taps(Taps taps, bytes w, const int block) {
  UNROLL for (int ky = 0; ky < KERNEL_H; ky++) {
    clear(taps[ky], TOTAL);
    UNROLL for (int kx = 0; kx < KERNEL_W; kx++) add_tap(taps[ky], w, block, ky, kx, kx * DILATION_X);
    finish_taps(taps[ky], COLUMNS_FORWARD, STRIDE_X);
  }
}

// The first output column that input column `residue` of a tile meets, relative to the tile's
INLINE int first_reach(const int residue) {
  UNROLL for (int kx = KERNEL_W - 1; kx >= 0; kx--)
    if (REACH_X(residue, kx) % STRIDE_X == 0) return REACH_X(residue, kx) / STRIDE_X;
  return 0;
}
INLINE void load_taps_backward(Taps taps, bytes w, const int block, const int residue) {
  UNROLL for (int ky = 0; ky < KERNEL_H; ky++) {
    clear(taps[ky], TOTAL);
    UNROLL for (int kx = 0; kx < KERNEL_W; kx++) if (REACH_X(residue, kx) % STRIDE_X == 0)
      add_tap(taps[ky], w, block, ky, kx, REACH_X(residue, kx) / STRIDE_X - first_reach(residue));
    finish_taps(taps[ky], COLUMNS_BACKWARD, 1);
  }
}

// Which pixels of a tile's quads exist: the same in all rows that it meets
typedef ushort Masks[TILE][ROW_QUADS(COLUMNS_FORWARD)];
INLINE void set_masks(Masks masks, const int first, const int width, const int columns, const int step) {
  UNROLL for (int i = 0; i < TILE; i += SHARING(columns, step)) UNROLL for (int g = 0; g < ROW_QUADS(columns); g++) {
    const int column = first + i * step + g * QUAD;
    masks[i][g] = mask_of_rows(clamp_quad(-column), clamp_quad(width - column));
  }
}

// sum[i] += the products of the columns of a row from `first` + i * `step` on with a row of taps
INLINE void add_row(Quads sum[TILE], Data row, const int first, const Masks masks, const Quads *taps, const int columns,
                    const int step, const short zero) {
  UNROLL for (int i = 0; i < TILE; i += SHARING(columns, step)) UNROLL for (int g = 0; g < ROW_QUADS(columns); g++) {
    const Quads x = quads_by_mask(row + (first + i * step + g * QUAD) * BLOCK, masks[i][g], (char)zero) ^ (Quads)OFFSET;
    UNROLL for (int j = 0; j < SHARING(columns, step); j++)
      if (i + j < TILE) sum[i + j] = add_quads(sum[i + j], x, taps[g + j]);
  }
}

// The same functions as in depthwise_products.h: outputs of a tile, and gradients of its inputs
INLINE void forward_tile(Quads sum[TILE], Data plane, const Taps taps, const Sizes s, const int oy, const int ox,
                         const short zero) {
  Quads excess = (Quads)0;
  Masks masks;
  clear(sum, TILE);
  set_masks(masks, INPUT_X(ox, 0), s.width, COLUMNS_FORWARD, STRIDE_X);
  UNROLL for (int ky = 0; ky < KERNEL_H; ky++) {
    const int iy = INPUT_Y(oy, ky);
    if (iy < 0 || iy >= s.height) continue;
    excess += taps[ky][TOTAL];
    add_row(sum, plane + iy * s.width * BLOCK, INPUT_X(ox, 0), masks, taps[ky], COLUMNS_FORWARD, STRIDE_X, zero);
  }
  UNROLL for (int i = 0; i < TILE; i++) sum[i] -= excess * (zero + 128);
}

INLINE void backward_tile(Quads sum[TILE], Data plane, const Taps taps, const Sizes s, const int iy, const int ox,
                          const int residue, const short zero) {
  Quads excess = (Quads)0;
  Masks masks;
  clear(sum, TILE);
  set_masks(masks, ox + first_reach(residue), s.out_width, COLUMNS_BACKWARD, 1);
  UNROLL for (int ky = 0; ky < KERNEL_H; ky++) {
    const int reach_y = REACH_Y(iy, ky), oy = reach_y / STRIDE_Y;
    if (reach_y < 0 || reach_y % STRIDE_Y != 0 || oy >= s.out_height) continue;
    excess += taps[ky][TOTAL];
    add_row(sum, plane + oy * s.out_width * BLOCK, ox + first_reach(residue), masks, taps[ky], COLUMNS_BACKWARD, 1,
            zero);
  }
  UNROLL for (int i = 0; i < TILE; i++) sum[i] -= excess * (zero + 128);
}

// sum = for each tap, the products of the inputs and the gradients of rows `first` to `last` - 1 of all images of a
// block. With u = x + 128 and a = zero + 128, that of (x - zero) * (g - dy_zero) is that of u * g - a * (g - dy_zero) -
// dy_zero * u.
INLINE void sum_weight_products(Quads sum[TAPS], Data x, Data dy, const Sizes s, const int first, const int last,
                                const short zero, const short dy_zero) {
  Quads of_inputs[TAPS], of_gradients[KERNEL_H];
  int quads[KERNEL_H];
  clear(sum, TAPS);
  clear(of_inputs, TAPS);
  clear(of_gradients, KERNEL_H);
  UNROLL for (int ky = 0; ky < KERNEL_H; ky++) quads[ky] = 0;
  for (int row = first; row < last; row++) {
    const int image = row / s.out_height, oy = row % s.out_height;
    Data plane = x + (size_t)image * s.height * s.width * BLOCK, d = dy + (size_t)row * s.out_width * BLOCK;
    for (int ox = 0; ox < s.out_width; ox += QUAD) {
      const int count = s.out_width - ox < QUAD ? s.out_width - ox : QUAD;
      const Quads g = count == QUAD ? quads_of_rows(d + ox * BLOCK) : quads_of_some(d + ox * BLOCK, 0, count, 0);
      UNROLL for (int ky = 0; ky < KERNEL_H; ky++) {
        const int iy = INPUT_Y(oy, ky);
        if (iy < 0 || iy >= s.height) continue;
        quads[ky]++;
        of_gradients[ky] = add_quads(of_gradients[ky], (Quads)ONES, g);
        UNROLL for (int kx = 0; kx < KERNEL_W; kx++) {
          const int tap = ky * KERNEL_W + kx;
          const Quads u = quads_of_columns(plane + iy * s.width * BLOCK, INPUT_X(ox, kx), STRIDE_X, count, s.width, zero);
          sum[tap] = add_quads(sum[tap], u, g);
          of_inputs[tap] = add_quads(of_inputs[tap], u, (Quads)ONES);
        }
      }
    }
  }
  UNROLL for (int tap = 0; tap < TAPS; tap++) {
    const int ky = tap / KERNEL_W;
    sum[tap] -= (of_gradients[ky] - quads[ky] * QUAD * dy_zero) * (zero + 128) + of_inputs[tap] * dy_zero;
  }
}
