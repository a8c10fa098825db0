// Inverted dropout (Srivastava et al. 2014, section 10). Nothing is stored: the backward pass draws the same bits
// again.
#include "elementwise.h"
#include "philox.h"
#include "scalars.h"

INLINE float dropout_factor(const uint word, const float rate, const float scale) {
  return (float)(word >> 8) * 0x1p-24f >= rate ? scale : 0.0f;
}

// dx = x * scale where a uniform number is at least `rate`, else 0. Value i of an example (pixel by pixel, channels
// padded to whole blocks) has word i % 4 of counter (i / 4, place in the mini-batch, layer, step) under the key `seed`:
// the same whatever the device and the micro-batch, whose first example is number counters[SEEN]. An example has words
// for `drawn` pixels: all of them, or one that stands for all.
KERNEL dropout(INPUT_VALUES(x), INPUT_OF(uint, scalars), INPUT(counters), ROWS_ARGUMENTS, const int images,
               const int drawn, const int layer, const float rate, const float scale, GRADIENT_ARGUMENTS) {
  input_values x = ITEM_START(x);
  input counters = START(counters);
  __global const uint *scalars = START(scalars);
  const Gradient dx = GRADIENT;
  const Band band = band_of(m, count);
  const int pixels = m / images, blocks = get_global_size(1), before = (int)counters[SEEN];
  const uint2 seed = (uint2)(scalars[SEED], scalars[SEED + 1]);
  V factor;
  for (int row = band.start; row < band.stop; row += band.step) {
    const size_t at = row_at(band.block, m, row);
    const int draws = drawn > 1 || row == band.start || row % pixels == 0;
    if (draws) for (int quarter = 0; quarter < BLOCK / 4; quarter++) {
      const uint first = (row % drawn * blocks + band.block) * (BLOCK / 4) + quarter;
      const uint4 words = philox((uint4)(first, before + row / pixels, layer, scalars[STEP]), seed, 10);
      ELEMENT(factor, quarter * 4) = dropout_factor(words.x, rate, scale);
      ELEMENT(factor, quarter * 4 + 1) = dropout_factor(words.y, rate, scale);
      ELEMENT(factor, quarter * 4 + 2) = dropout_factor(words.z, rate, scale);
      ELEMENT(factor, quarter * 4 + 3) = dropout_factor(words.w, rate, scale);
    }
    write_gradient(dx, at, load(x + at) * factor);
  }
}
