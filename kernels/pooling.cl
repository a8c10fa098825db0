// Pooling over blocked matrices. Windows never count their padding.
#include "blocked.h"
#include "stored.h"
#include "elementwise.h"
#include "group_sum.h"
#include "window.h"

// y[image] = the mean of `pixels` rows of x; one work-group an image
KERNEL global_average_forward(INPUT_VALUES(x), OUTPUT_VALUES(y), const int images, const int pixels) {
  LOCAL_SHARES(shares);
  input_values x = ITEM_START(x);
  output_values y = ITEM_START(y);
  const int image = get_group_id(0), block = get_global_id(1);
  const size_t first = row_at(block, images * pixels, image * pixels);
  V sum = (V)0;
  MANY for (int p = ITEM % MEMBERS; p < pixels; p += MEMBERS) sum += load(x + first + p * BLOCK);
  sum = group_sum(sum, shares);
  if (IS_FIRST_MEMBER) store(y + row_at(block, images, image), sum * (1.0f / pixels));
}

KERNEL global_average_backward(INPUT_VALUES(dy), ROWS_ARGUMENTS, const int pixels, GRADIENT_ARGUMENTS) {
  input_values dy = ITEM_START(dy);
  const Gradient dx = GRADIENT;
  const Band band = band_of(m, count);
  SEVERAL for (int row = band.start; row < band.stop; row += band.step) {
    const V share = load(dy + row_at(band.block, m / pixels, row / pixels)) * (1.0f / pixels);
    write_gradient(dx, row_at(band.block, m, row), share);
  }
}

#define SIZES_ARGUMENTS const int height, const int width, const int out_height, const int out_width

typedef struct { int top, bottom, left, right; } Box;  // pixels [top, bottom) x [left, right)

INLINE int clip(const int v, const int low, const int high) { return v < low ? low : v > high ? high : v; }

#ifdef KERNEL_H
// The input pixels of output pixel (oy, ox)
INLINE Box window_of(const Sizes s, const int oy, const int ox) {
  return (Box){clip(INPUT_Y(oy, 0), 0, s.height), clip(INPUT_Y(oy, KERNEL_H), 0, s.height),
               clip(INPUT_X(ox, 0), 0, s.width), clip(INPUT_X(ox, KERNEL_W), 0, s.width)};
}

// First output row or column whose window reaches an input at `reach`, and one after the last
INLINE int first_with(const int reach, const int kernel_size, const int stride) {
  return reach < kernel_size ? 0 : (reach - kernel_size) / stride + 1;
}
INLINE int end_with(const int reach, const int stride, const int size) {
  return reach / stride < size ? reach / stride + 1 : size;
}

// The output pixels whose windows hold input pixel (iy, ix), MOST_ROWS x MOST_COLUMNS at most
#define MOST_ROWS ((KERNEL_H + STRIDE_Y - 1) / STRIDE_Y)
#define MOST_COLUMNS ((KERNEL_W + STRIDE_X - 1) / STRIDE_X)
INLINE Box outputs_with(const Sizes s, const int iy, const int ix) {
  const int reach_y = REACH_Y(iy, 0), reach_x = REACH_X(ix, 0);
  return (Box){first_with(reach_y, KERNEL_H, STRIDE_Y), end_with(reach_y, STRIDE_Y, s.out_height),
               first_with(reach_x, KERNEL_W, STRIDE_X), end_with(reach_x, STRIDE_X, s.out_width)};
}

// The maxima are selected among VALUES or, with INTEGERS, among 8-bit integers as they are stored. Numbers are as wide
// as what is compared.
#ifndef INTEGERS
#define INTEGERS 0
#endif
#if INTEGERS
typedef char Candidate;
typedef Chars Candidates, Numbers;
INLINE Candidates candidates_at(__global const char *p) { return *(__global const Chars *)p; }
INLINE void write_selected(__global char *p, const Candidates v) { *(__global Chars *)p = v; }
INLINE Candidates larger(const Candidates v, const Candidates most) { return v > most ? v : most; }
INLINE Chars chars_of(const Numbers numbers) { return numbers; }
#else
typedef Value Candidate;
typedef V Candidates;
typedef Ints Numbers;
INLINE Candidates candidates_at(__global const Value *p) { return load(p); }
INLINE void write_selected(__global Value *p, const Candidates v) { store(p, v); }
INLINE Candidates larger(const Candidates v, const Candidates most) {
  return ((v > most) | (v != v)) ? v : most;  // a NaN stays
}
INLINE Chars chars_of(const Numbers numbers) { return VECTOR(convert_char)(numbers); }
#endif
typedef __global const Candidate *restrict candidates;

INLINE Candidates maximum(candidates plane, const Box box, const int width) {
  plane += (box.top * width + box.left) * BLOCK;
  Candidates most = candidates_at(plane);
  if (box.bottom - box.top == KERNEL_H && box.right - box.left == KERNEL_W) {
    UNROLL for (int tap = 1; tap < TAPS; tap++)
      most = larger(candidates_at(plane + (tap / KERNEL_W * width + tap % KERNEL_W) * BLOCK), most);
    return most;
  }
  for (int y = 0; y < box.bottom - box.top; y++) for (int x = 0; x < box.right - box.left; x++)
    most = larger(candidates_at(plane + (y * width + x) * BLOCK), most);
  return most;
}

INLINE V average(input_values plane, const Box box, const int width) {
  V sum = (V)0;
  for (int iy = box.top; iy < box.bottom; iy++) for (int ix = box.left; ix < box.right; ix++)
    sum += load(plane + (iy * width + ix) * BLOCK);
  return sum * (1.0f / ((box.bottom - box.top) * (box.right - box.left)));
}
#endif

KERNEL max_forward(INPUT_OF(Candidate, x), OUTPUT_OF(Candidate, y), ROWS_ARGUMENTS, SIZES_ARGUMENTS) {
  candidates x = ITEM_START(x);
  __global Candidate *restrict y = ITEM_START(y);
  const Band band = band_of(m, count);
  const int images = m / (out_height * out_width);
  const Sizes sizes = SIZES;
  for (int row = band.start; row < band.stop; row += band.step) {
    const Position p = position_of(row, out_height, out_width);
    candidates plane = x + row_at(band.block, images, p.image) * height * width;
    write_selected(y + row_at(band.block, m, row), maximum(plane, window_of(sizes, p.y, p.x), width));
  }
}

KERNEL average_forward(INPUT_VALUES(x), OUTPUT_VALUES(y), ROWS_ARGUMENTS, SIZES_ARGUMENTS) {
  input_values x = ITEM_START(x);
  output_values y = ITEM_START(y);
  const Band band = band_of(m, count);
  const int images = m / (out_height * out_width);
  const Sizes sizes = SIZES;
  for (int row = band.start; row < band.stop; row += band.step) {
    const Position p = position_of(row, out_height, out_width);
    input_values plane = x + row_at(band.block, images, p.image) * height * width;
    store(y + row_at(band.block, m, row), average(plane, window_of(sizes, p.y, p.x), width));
  }
}

// Each window's gradient goes to the first of its pixels that holds the maximum y.
KERNEL max_backward(INPUT_VALUES(x), INPUT_VALUES(y), INPUT_VALUES(dy), ROWS_ARGUMENTS, SIZES_ARGUMENTS,
                    GRADIENT_ARGUMENTS) {
  input_values x = ITEM_START(x), y = ITEM_START(y), dy = ITEM_START(dy);
  const Gradient dx = GRADIENT;
  const Band band = band_of(m, count);
  const int images = m / (height * width);
  const Sizes sizes = SIZES;
  for (int row = band.start; row < band.stop; row += band.step) {
    const Position p = position_of(row, height, width);
    const size_t plane_index = (size_t)band.block * images + p.image;
    input_values plane = x + plane_index * height * width * BLOCK;
    const V own = load(plane + (p.y * width + p.x) * BLOCK);
    const Box outputs = outputs_with(sizes, p.y, p.x);
    V sum = (V)0;
    for (int oy = outputs.top; oy < outputs.bottom; oy++) for (int ox = outputs.left; ox < outputs.right; ox++) {
      const Box box = window_of(sizes, oy, ox);
      const size_t at = (plane_index * out_height * out_width + oy * out_width + ox) * BLOCK;
      const V most = load(y + at), gradient = load(dy + at);
      V share = own == most ? gradient : (V)0;
      for (int iy = box.top; iy <= p.y; iy++) for (int ix = box.left; ix < (iy < p.y ? box.right : p.x); ix++) {
        const V earlier = load(plane + (iy * width + ix) * BLOCK);
        share = earlier == most ? (V)0 : share;
      }
      sum += share;
    }
    write_gradient(dx, row_at(band.block, m, row), sum);
  }
}

// The number of the tap of each window that first holds the maximum y; -1 beside a NaN
KERNEL max_taps(INPUT_OF(Candidate, x), INPUT_OF(Candidate, y), OUTPUT_OF(char, chosen), ROWS_ARGUMENTS,
                SIZES_ARGUMENTS) {
  candidates x = ITEM_START(x), y = ITEM_START(y);
  __global char *restrict chosen = ITEM_START(chosen);
  const Band band = band_of(m, count);
  const int images = m / (out_height * out_width);
  for (int row = band.start; row < band.stop; row += band.step) {
    const Position p = position_of(row, out_height, out_width);
    candidates plane = x + row_at(band.block, images, p.image) * height * width;
    const Candidates most = candidates_at(y + row_at(band.block, m, row));
    Numbers first = (Numbers)-1;
    UNROLL for (int tap = TAPS - 1; tap >= 0; tap--) {
      const int iy = INPUT_Y(p.y, tap / KERNEL_W), ix = INPUT_X(p.x, tap % KERNEL_W);
      if ((uint)iy < (uint)height && (uint)ix < (uint)width)
        first = candidates_at(plane + (iy * width + ix) * BLOCK) == most ? (Numbers)tap : first;
    }
    *(__global Chars *)(chosen + row_at(band.block, m, row)) = chars_of(first);
  }
}

// max_backward, given max_taps
KERNEL max_backward_taps(INPUT_OF(char, chosen), INPUT_VALUES(dy), ROWS_ARGUMENTS, SIZES_ARGUMENTS,
                         GRADIENT_ARGUMENTS) {
  __global const char *restrict chosen = ITEM_START(chosen);
  input_values dy = ITEM_START(dy);
  const Gradient dx = GRADIENT;
  const Band band = band_of(m, count);
  const int images = m / (height * width);
  const Sizes sizes = SIZES;
  for (int row = band.start; row < band.stop; row += band.step) {
    const Position p = position_of(row, height, width);
    const size_t plane_index = (size_t)band.block * images + p.image;
    const Box outputs = outputs_with(sizes, p.y, p.x);
    V sum = (V)0;
#if VECTORS > 1  // a GPU reads all of them before it looks which there are
    const size_t start = plane_index * out_height * out_width;
    UNROLL for (int j = 0; j < MOST_ROWS; j++) UNROLL for (int i = 0; i < MOST_COLUMNS; i++) {
      const int oy = outputs.top + j, ox = outputs.left + i, inside = oy < outputs.bottom && ox < outputs.right;
      const size_t at = (start + (inside ? oy * out_width + ox : 0)) * BLOCK;
      const int tap = inside ? (p.y - INPUT_Y(oy, 0)) * KERNEL_W + p.x - INPUT_X(ox, 0) : -2;
      const Ints first = VECTOR(convert_int)(*(__global const Chars *)(chosen + at));
      const V gradient = load(dy + at);
      sum += first == (Ints)tap ? gradient : (V)0;
    }
#else
    for (int oy = outputs.top; oy < outputs.bottom; oy++) for (int ox = outputs.left; ox < outputs.right; ox++) {
      const size_t at = (plane_index * out_height * out_width + oy * out_width + ox) * BLOCK;
      const int tap = (p.y - INPUT_Y(oy, 0)) * KERNEL_W + p.x - INPUT_X(ox, 0);
      const Ints first = VECTOR(convert_int)(*(__global const Chars *)(chosen + at));
      sum += first == (Ints)tap ? load(dy + at) : (V)0;
    }
#endif
    write_gradient(dx, row_at(band.block, m, row), sum);
  }
}

KERNEL average_backward(INPUT_VALUES(dy), ROWS_ARGUMENTS, SIZES_ARGUMENTS, GRADIENT_ARGUMENTS) {
  input_values dy = ITEM_START(dy);
  const Gradient dx = GRADIENT;
  const Band band = band_of(m, count);
  const int images = m / (height * width);
  const Sizes sizes = SIZES;
  for (int row = band.start; row < band.stop; row += band.step) {
    const Position p = position_of(row, height, width);
    const size_t plane_index = (size_t)band.block * images + p.image;
    const Box outputs = outputs_with(sizes, p.y, p.x);
    V sum = (V)0;
    for (int oy = outputs.top; oy < outputs.bottom; oy++) for (int ox = outputs.left; ox < outputs.right; ox++) {
      const Box box = window_of(sizes, oy, ox);
      const V gradient = load(dy + (plane_index * out_height * out_width + oy * out_width + ox) * BLOCK);
      sum += gradient * (1.0f / ((box.bottom - box.top) * (box.right - box.left)));
    }
    write_gradient(dx, row_at(band.block, m, row), sum);
  }
}
