// Space to depth: squares of size x size pixels become channels of one pixel, and back.
#include "elementwise.h"

// dx: m rows, images of height x width pixels of `channels`; x: the same values in `from_channels`. The pixels of a
// square follow each other row by row, each with its channels side by side.
KERNEL space_to_depth(INPUT(x), ROWS_ARGUMENTS, const int height, const int width, const int channels,
                      const int from_channels, const int size, GRADIENT_ARGUMENTS) {
  input x = ITEM_START(x);
  const Gradient dx = GRADIENT;
  const Band band = band_of(m, count);
  const int filled = channels_of(band.block, channels);
  for (int row = band.start; row < band.stop; row += band.step) {
    const int image = row / (height * width), iy = row / width % height, ix = row % width;
    V v = (V)0;
    for (int i = 0; i < filled; i++) {
      const int c = band.block * BLOCK + i;
#if BACK
      const size_t from_m = m / (size * size);
      const size_t from = (image * (height / size) + iy / size) * (width / size) + ix / size;
      const int channel = (iy % size * size + ix % size) * channels + c;
#else
      const int pixel = c / from_channels, channel = c % from_channels;
      const size_t from_m = (size_t)m * size * size;
      const size_t from_row = ((size_t)(image * height + iy) * size + pixel / size) * width * size;
      const size_t from = from_row + ix * size + pixel % size;
#endif
      ELEMENT(v, i) = x[value_at(channel, from_m, from)];
    }
    write_gradient(dx, row_at(band.block, m, row), v);
  }
}

#ifndef PIXEL_CHANNELS
#define PIXEL_CHANNELS 1
#endif
// dx = squares of 2 x 2 pixels of a network's input, stored without padding, as pixels of 4 * PIXEL_CHANNELS channels, zeros
// beyond the edge. dx: m rows, images of height x width.
KERNEL squares_of_pixels(INPUT(x), ROWS_ARGUMENTS, const int height, const int width, const int from_height,
                         const int from_width, GRADIENT_ARGUMENTS) {
  input x = START(x);
  const Gradient dx = GRADIENT;
  const Band band = band_of(m, count);
  SEVERAL for (int row = band.start; row < band.stop; row += band.step) {
    const int image = row / (height * width), top = row / width % height * 2, left = row % width * 2;
    V v = (V)0;
    UNROLL for (int i = 0; i < VECTOR_WIDTH; i++) {
      const int pixel = (FIRST_CHANNEL + i) / PIXEL_CHANNELS, channel = (FIRST_CHANNEL + i) % PIXEL_CHANNELS;
      const int iy = top + pixel / 2, ix = left + pixel % 2;
      if (pixel < 4 && iy < from_height && ix < from_width)
        ELEMENT(v, i) = x[((size_t)(image * from_height + iy) * from_width + ix) * PIXEL_CHANNELS + channel];
    }
    write_gradient(dx, row_at(band.block, m, row), v);
  }
}

// dx = the rows of x that `sources` says, zeros where that is below 0
KERNEL move_rows(INPUT(x), INPUT_OF(int, sources), ROWS_ARGUMENTS, const int from_m, GRADIENT_ARGUMENTS) {
  input x = ITEM_START(x);
  __global const int *sources = START(sources);
  const Gradient dx = GRADIENT;
  const Band band = band_of(m, count);
  for (int row = band.start; row < band.stop; row += band.step) {
    const int from = sources[row];
    write_gradient(dx, row_at(band.block, m, row), from < 0 ? (V)0 : load(x + row_at(band.block, from_m, from)));
  }
}
