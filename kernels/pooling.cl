// Pooling over blocked matrices. Windows never count their padding.
#include "blocked.h"
#include "activation.h"
#include "band.h"
#include "gradient.h"
#include "group_sum.h"
#include "window.h"

// y[image] = the mean of `pixels` rows of x: an image a work-group
KERNEL global_average_forward(INPUT(x), OUTPUT(y), const int images, const int pixels) {
  FROM(x) INTO(y)
  GROUP_SUM_MEMORY
  const int image = get_group_id(0), block = get_global_id(1);
  const size_t first = ((size_t)block * images + image) * pixels * BLOCK;
  V sum = (V)0;
  for (int p = ITEM % MEMBERS; p < pixels; p += MEMBERS) sum += LOAD(x + first + p * BLOCK);
  GROUP_SUM(sum)
  if (LEADS) STORE(y + ((size_t)block * images + image) * BLOCK, sum * (1.0f / pixels));
}

KERNEL global_average_backward(INPUT(dy), const int m, const int count, const int pixels, GRADIENT_OUTPUT) {
  FROM(dy) GRADIENT_POINTERS
  BAND
  for (int row = start; row < stop; row++) {
    const V share = LOAD(dy + ((size_t)block * (m / pixels) + row / pixels) * BLOCK) * (1.0f / pixels);
    WRITE_GRADIENT(((size_t)block * m + row) * BLOCK, share)
  }
}

#define CLIP(v, low, high) ((v) < (low) ? (low) : (v) > (high) ? (high) : (v))

#define PIXEL_OF_ROW(py, px, height, width)                                       \
  const int image = row / ((height) * (width)), py = row / (width) % (height), px = row % (width);

// The input pixels [top, bottom) x [left, right) of output pixel (oy, ox)
#define WINDOW_OF(oy, ox)                                                         \
  const int top = CLIP(INPUT_Y(oy, 0), 0, height), bottom = CLIP(INPUT_Y(oy, KERNEL_H), 0, height); \
  const int left = CLIP(INPUT_X(ox, 0), 0, width), right = CLIP(INPUT_X(ox, KERNEL_W), 0, width);

// For each output pixel (oy, ox) whose window holds input pixel (iy, ix)
#define FIRST_WITH(reach, kernel, stride) ((reach) < (kernel) ? 0 : ((reach) - (kernel)) / (stride) + 1)
#define LAST_WITH(reach, stride, count) ((reach) / (stride) < (count) ? (reach) / (stride) : (count) - 1)
#define FOR_WINDOWS_WITH(iy, ix)                                                  \
  const int reach_y = REACH_Y(iy, 0), last_y = LAST_WITH(reach_y, STRIDE_Y, out_height); \
  const int reach_x = REACH_X(ix, 0), last_x = LAST_WITH(reach_x, STRIDE_X, out_width); \
  for (int oy = FIRST_WITH(reach_y, KERNEL_H, STRIDE_Y); oy <= last_y; oy++)       \
    for (int ox = FIRST_WITH(reach_x, KERNEL_W, STRIDE_X); ox <= last_x; ox++)

KERNEL max_forward(INPUT(x), OUTPUT(y), const int m, const int count, const int height, const int width,
                   const int out_height, const int out_width) {
  FROM(x) INTO(y)
  BAND
  for (int row = start; row < stop; row++) {
    PIXEL_OF_ROW(oy, ox, out_height, out_width)
    WINDOW_OF(oy, ox)
    input plane = x + ((size_t)block * (m / (out_height * out_width)) + image) * height * width * BLOCK;
    V most = LOAD(plane + (top * width + left) * BLOCK);
    for (int iy = top; iy < bottom; iy++) for (int ix = left; ix < right; ix++) {
      const V v = LOAD(plane + (iy * width + ix) * BLOCK);
      most = ((v > most) | (v != v)) ? v : most;  // a NaN stays
    }
    STORE(y + ((size_t)block * m + row) * BLOCK, most);
  }
}

// Each window's gradient goes to the first of its pixels that holds the maximum y.
KERNEL max_backward(INPUT(x), INPUT(y), INPUT(dy), const int m, const int count, const int height, const int width,
                    const int out_height, const int out_width, GRADIENT_OUTPUT) {
  FROM(x) FROM(y) FROM(dy) GRADIENT_POINTERS
  BAND
  for (int row = start; row < stop; row++) {
    PIXEL_OF_ROW(py, px, height, width)
    const size_t plane_index = (size_t)block * (m / (height * width)) + image;
    input plane = x + plane_index * height * width * BLOCK;
    const V own = LOAD(plane + (py * width + px) * BLOCK);
    V sum = (V)0;
    FOR_WINDOWS_WITH(py, px) {
      WINDOW_OF(oy, ox)
      const size_t at = (plane_index * out_height * out_width + oy * out_width + ox) * BLOCK;
      const V most = LOAD(y + at), gradient = LOAD(dy + at);
      V share = own == most ? gradient : (V)0;
      for (int iy = top; iy <= py; iy++) for (int ix = left; ix < (iy < py ? right : px); ix++) {
        const V earlier = LOAD(plane + (iy * width + ix) * BLOCK);
        share = earlier == most ? (V)0 : share;
      }
      sum += share;
    }
    WRITE_GRADIENT(((size_t)block * m + row) * BLOCK, sum)
  }
}

KERNEL average_forward(INPUT(x), OUTPUT(y), const int m, const int count, const int height, const int width,
                       const int out_height, const int out_width) {
  FROM(x) INTO(y)
  BAND
  for (int row = start; row < stop; row++) {
    PIXEL_OF_ROW(oy, ox, out_height, out_width)
    WINDOW_OF(oy, ox)
    input plane = x + ((size_t)block * (m / (out_height * out_width)) + image) * height * width * BLOCK;
    V sum = (V)0;
    for (int iy = top; iy < bottom; iy++) for (int ix = left; ix < right; ix++)
      sum += LOAD(plane + (iy * width + ix) * BLOCK);
    STORE(y + ((size_t)block * m + row) * BLOCK, sum * (1.0f / ((bottom - top) * (right - left))));
  }
}

KERNEL average_backward(INPUT(dy), const int m, const int count, const int height, const int width,
                        const int out_height, const int out_width, GRADIENT_OUTPUT) {
  FROM(dy) GRADIENT_POINTERS
  BAND
  for (int row = start; row < stop; row++) {
    PIXEL_OF_ROW(py, px, height, width)
    const size_t plane_index = (size_t)block * (m / (height * width)) + image;
    V sum = (V)0;
    FOR_WINDOWS_WITH(py, px) {
      WINDOW_OF(oy, ox)
      const V gradient = LOAD(dy + (plane_index * out_height * out_width + oy * out_width + ox) * BLOCK);
      sum += gradient * (1.0f / ((bottom - top) * (right - left)));
    }
    WRITE_GRADIENT(((size_t)block * m + row) * BLOCK, sum)
  }
}
