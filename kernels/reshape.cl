// Another shape for the same values. In a reshaped tensor a value keeps its place in its example's C order,
// place = row of the example * channels + channel, so every value of dx is looked up in x, forward and backward.
#include "blocked.h"
#include "activation.h"
#include "band.h"
#include "gradient.h"

// x: `from_rows` rows an example of `from_channels` channels; dx: m rows in all, `to_rows` an example of `to_channels`.
KERNEL reshape(INPUT(x), const int m, const int count, const int from_rows, const int from_channels, const int to_rows,
               const int to_channels, GRADIENT_OUTPUT) {
  FROM(x) GRADIENT_POINTERS
  BAND
  const size_t from_m = (size_t)(m / to_rows) * from_rows;
  const int lanes = to_channels - block * BLOCK < BLOCK ? to_channels - block * BLOCK : BLOCK;
  for (int row = start; row < stop; row++) {
    const int place = row % to_rows * to_channels + block * BLOCK;
    size_t from = (size_t)(row / to_rows) * from_rows + place / from_channels;
    int channel = place % from_channels;
    V v = (V)0;
    for (int lane = 0; lane < lanes; lane++) {
      LANE(v, lane) = x[((channel / BLOCK) * from_m + from) * BLOCK + channel % BLOCK];
      if (++channel == from_channels) { channel = 0; from++; }
    }
    WRITE_GRADIENT(((size_t)block * m + row) * BLOCK, v)
  }
}
