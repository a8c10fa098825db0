// Zero padding: an image is moved into a frame of another size, forward with zeros around it, backward cut out again.
#include "elementwise.h"

// dx at (iy, ix) of `height` x `width` = x at (iy + down, ix + right) of `from_height` x `from_width`, or 0 outside it
KERNEL move_image(INPUT_VALUES(x), ROWS_ARGUMENTS, const int from_height, const int from_width, const int height,
                  const int width, const int down, const int right, GRADIENT_ARGUMENTS) {
  input_values x = ITEM_START(x);
  const Gradient dx = GRADIENT;
  const Band band = band_of(m, count);
  for (int row = band.start; row < band.stop; row += band.step) {
    const int image = row / (height * width), iy = row / width % height + down, ix = row % width + right;
    const size_t plane = ((size_t)band.block * (m / (height * width)) + image) * from_height * from_width;
    V v = (V)0;
    if (iy >= 0 && iy < from_height && ix >= 0 && ix < from_width) v = load(x + (plane + iy * from_width + ix) * BLOCK);
    write_gradient(dx, row_at(band.block, m, row), v);
  }
}
