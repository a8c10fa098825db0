// Images of one row or one column beside whole ones: repeated along the axes where they have a single pixel, and summed
// up along them. An image of `from_h` x `from_w` pixels becomes one of `height` x `width`.
#include "blocked.h"
#include "activation.h"
#include "band.h"
#include "gradient.h"

// dx[image, py, px] = factor * x[image, py or 0, px or 0]: m rows of dx
KERNEL repeat(INPUT(x), const int m, const int count, const int from_h, const int from_w, const int height,
              const int width, const float factor, GRADIENT_OUTPUT) {
  FROM(x) GRADIENT_POINTERS
  BAND
  for (int row = start; row < stop; row++) {
    const int image = row / (height * width), py = row / width % height, px = row % width;
    const int from = (image * from_h + (from_h == 1 ? 0 : py)) * from_w + (from_w == 1 ? 0 : px);
    const V v = LOAD(x + ((size_t)block * (m / (height * width)) * from_h * from_w + from) * BLOCK);
    WRITE_GRADIENT(((size_t)block * m + row) * BLOCK, v * factor)
  }
}

// The way back: dx[image, py, px] = factor * the sum of x over all pixels that it would be repeated to
KERNEL sum_repeated(INPUT(x), const int m, const int count, const int from_h, const int from_w, const int height,
                    const int width, const float factor, GRADIENT_OUTPUT) {
  FROM(x) GRADIENT_POINTERS
  BAND
  const int down = height == 1 ? from_h : 1, right = width == 1 ? from_w : 1;
  for (int row = start; row < stop; row++) {
    const int image = row / (height * width), py = row / width % height, px = row % width;
    input first = x + (((size_t)block * (m / (height * width)) + image) * from_h * from_w + py * from_w + px) * BLOCK;
    V sum = (V)0;
    for (int y = 0; y < down; y++) for (int i = 0; i < right; i++) sum += LOAD(first + (y * from_w + i) * BLOCK);
    WRITE_GRADIENT(((size_t)block * m + row) * BLOCK, sum * factor)
  }
}
