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
  for (int row = band.start; row < band.stop; row++) {
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
