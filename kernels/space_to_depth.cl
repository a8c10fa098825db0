// Squares of size x size pixels as channels of one pixel, and back.
#include "blocked.h"
#include "activation.h"
#include "band.h"
#include "gradient.h"

// dx: m rows, images of height x width pixels of `channels`; x: the same values in `from_channels`. Of a square's
// pixels, which follow each other row by row, each has its channels side by side.
KERNEL space_to_depth(INPUT(x), const int m, const int count, const int height, const int width, const int channels,
                      const int from_channels, const int size, GRADIENT_OUTPUT) {
  FROM(x) GRADIENT_POINTERS
  BAND
  const int lanes = channels - block * BLOCK < BLOCK ? channels - block * BLOCK : BLOCK;
  for (int row = start; row < stop; row++) {
    const int image = row / (height * width), iy = row / width % height, ix = row % width;
    V v = (V)0;
    for (int lane = 0; lane < lanes; lane++) {
      const int c = block * BLOCK + lane;
#if BACK
      const size_t from_m = m / (size * size), from = (image * (height / size) + iy / size) * (width / size) + ix / size;
      const int channel = (iy % size * size + ix % size) * channels + c;
#else
      const int pixel = c / from_channels, channel = c % from_channels;
      const size_t from_m = (size_t)m * size * size;
      const size_t from = ((size_t)(image * height + iy) * size + pixel / size) * width * size + ix * size + pixel % size;
#endif
      LANE(v, lane) = x[((size_t)(channel / BLOCK) * from_m + from) * BLOCK + channel % BLOCK];
    }
    WRITE_GRADIENT(((size_t)block * m + row) * BLOCK, v)
  }
}
