// Broadcasting of images with one row or one column: values are repeated along those axes, and summed backward. An
// image of `from_h` x `from_w` pixels becomes one of `height` x `width`.
#include "elementwise.h"

// dx[image, py, px] = factor * x[image, py or 0, px or 0]: m rows of dx
KERNEL repeat(INPUT(x), ROWS_ARGUMENTS, const int from_h, const int from_w, const int height, const int width,
              const float factor, GRADIENT_ARGUMENTS) {
  input x = ITEM_START(x);
  const Gradient dx = GRADIENT;
  const Band band = band_of(m, count);
  for (int row = band.start; row < band.stop; row += band.step) {
    const int image = row / (height * width), py = row / width % height, px = row % width;
    const int from = (image * from_h + (from_h == 1 ? 0 : py)) * from_w + (from_w == 1 ? 0 : px);
    const V v = load(x + row_at(band.block, m / (height * width) * from_h * from_w, from));
    write_gradient(dx, row_at(band.block, m, row), v * factor);
  }
}

// dx[image, py, px] = factor * the sum of x over the pixels that `repeat` would write from it
KERNEL sum_repeated(INPUT(x), ROWS_ARGUMENTS, const int from_h, const int from_w, const int height, const int width,
                    const float factor, GRADIENT_ARGUMENTS) {
  input x = ITEM_START(x);
  const Gradient dx = GRADIENT;
  const Band band = band_of(m, count);
  const int down = height == 1 ? from_h : 1, right = width == 1 ? from_w : 1;
  for (int row = band.start; row < band.stop; row += band.step) {
    const int image = row / (height * width), py = row / width % height, px = row % width;
    const int from = (image * from_h + py) * from_w + px;
    input first = x + row_at(band.block, m / (height * width) * from_h * from_w, from);
    V sum = (V)0;
    for (int y = 0; y < down; y++) for (int i = 0; i < right; i++) sum += load(first + (y * from_w + i) * BLOCK);
    write_gradient(dx, row_at(band.block, m, row), sum * factor);
  }
}
