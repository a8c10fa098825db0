// Inverted dropout (Srivastava et al. 2014, section 10): nothing is stored, the backward pass draws the same bits again.
#include "blocked.h"
#include "activation.h"
#include "band.h"
#include "gradient.h"
#include "philox.h"
#include "scalars.h"

#define KEPT(word) ((float)((word) >> 8) * 0x1p-24f >= rate ? scale : 0.0f)

// dx = x * scale where a uniform number is at least `rate`, else 0. Value i of an example (pixel by pixel, channels
// padded to whole blocks) has word i % 4 of counter (i / 4, place in the mini-batch, layer, step) under the key `seed`:
// the same whatever the device and the micro-batch, whose first example is number counters[SEEN]. An example has words
// for `drawn` pixels: all of them, or one that stands for all.
KERNEL dropout(INPUT(x), INPUT_WORDS(uint, scalars), INPUT(counters), const int m, const int count,
               const int images, const int drawn, const int layer, const float rate, const float scale,
               GRADIENT_OUTPUT) {
  FROM(x) FROM(counters) FROM_WORDS(uint, scalars) GRADIENT_POINTERS
  BAND
  const int pixels = m / images, blocks = get_global_size(1), before = (int)counters[SEEN];
  const uint2 seed = (uint2)(scalars[SEED], scalars[SEED + 1]);
  V factor;
  for (int row = start; row < stop; row++) {
    const size_t at = ((size_t)block * m + row) * BLOCK;
    const int draws = drawn > 1 || row == start || row % pixels == 0;
    if (draws) for (int quarter = 0; quarter < BLOCK / 4; quarter++) {
      const uint first = (row % drawn * blocks + block) * (BLOCK / 4) + quarter;
      const uint4 words = philox((uint4)(first, before + row / pixels, layer, scalars[STEP]), seed);
      LANE(factor, quarter * 4) = KEPT(words.x);
      LANE(factor, quarter * 4 + 1) = KEPT(words.y);
      LANE(factor, quarter * 4 + 2) = KEPT(words.z);
      LANE(factor, quarter * 4 + 3) = KEPT(words.w);
    }
    WRITE_GRADIENT(at, LOAD(x + at) * factor)
  }
}
