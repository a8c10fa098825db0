// An image moved within another frame: zeros around it forward, cut out again backward.
#include "blocked.h"
#include "activation.h"
#include "band.h"
#include "gradient.h"

// dx at (iy, ix) of `height` x `width` = x at (iy + down, ix + right) of `from_height` x `from_width`, or 0 outside it
KERNEL move_image(INPUT(x), const int m, const int count, const int from_height, const int from_width, const int height,
                  const int width, const int down, const int right, GRADIENT_OUTPUT) {
  FROM(x) GRADIENT_POINTERS
  BAND
  for (int row = start; row < stop; row++) {
    const int image = row / (height * width), iy = row / width % height + down, ix = row % width + right;
    const size_t plane = ((size_t)block * (m / (height * width)) + image) * from_height * from_width;
    V v = (V)0;
    if (iy >= 0 && iy < from_height && ix >= 0 && ix < from_width) v = LOAD(x + (plane + iy * from_width + ix) * BLOCK);
    WRITE_GRADIENT(((size_t)block * m + row) * BLOCK, v)
  }
}
