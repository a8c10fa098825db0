// Channels moved within another number of them.
#include "blocked.h"
#include "activation.h"
#include "band.h"
#include "gradient.h"

// channel c of dx, which has `channels` = channel c + shift of x, which has `from_channels`, or 0 outside those
KERNEL move_channels(INPUT(x), const int m, const int count, const int from_channels, const int channels,
                     const int shift, GRADIENT_OUTPUT) {
  FROM(x) GRADIENT_POINTERS
  BAND
  for (int row = start; row < stop; row++) {
    V v = (V)0;
    for (int lane = 0; lane < BLOCK; lane++) {
      const int c = block * BLOCK + lane, from = c + shift;
      if (c < channels && from >= 0 && from < from_channels)
        LANE(v, lane) = x[((size_t)(from / BLOCK) * m + row) * BLOCK + from % BLOCK];
    }
    WRITE_GRADIENT(((size_t)block * m + row) * BLOCK, v)
  }
}
