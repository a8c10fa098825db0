// Rotary positions: pairs of a head's channels turn by an angle that grows with the step.
#include "elementwise.h"

#ifndef POSITIONED
#define POSITIONED 0
#endif

// POSITIONED: each row's position is a number of another input, [steps / 16][images][16], else its step.
// Frequencies are exp(-pair * (rate + rest)), of which `rate` has so few bits that its product with `pair` is exact.
// dx = x with the pairs of each head turned, `back`: the other way. Pairs are neighbours, or lie half a head apart.
KERNEL rotate_pairs(INPUT(x) INPUT_IF(POSITIONED, positions), ROWS_ARGUMENTS, const int steps, const int channels, const int head_size,
                    const int interleaved, const int begin, const float rate, const float rest, const int back,
                    GRADIENT_ARGUMENTS) {
  input x = START(x);
  const Gradient dx = GRADIENT;
  const Band band = band_of(m, count);
  for (int row = band.start; row < band.stop; row += band.step) {
#if POSITIONED
    const float position = START(positions)[value_at(row % steps, m / steps, row / steps)] + begin;
#else
    const float position = row % steps + begin;
#endif
    V v = (V)0;
    for (int i = 0; i < VECTOR_WIDTH; i++) {
      const int channel = band.block * BLOCK + FIRST_CHANNEL + i, c = channel % head_size, half_size = head_size / 2;
      if (channel >= channels) continue;
      const int pair = interleaved ? c / 2 : c % half_size, second = interleaved ? c % 2 : c / half_size;
      const int other = channel + (interleaved ? (second ? -1 : 1) : (second ? -half_size : half_size));
      const float angle = position * (exp(-pair * rate) * exp(-pair * rest));
      const float turn = second != back ? sin(angle) : -sin(angle);
      ELEMENT(v, i) = x[value_at(channel, m, row)] * cos(angle) + x[value_at(other, m, row)] * turn;
    }
    write_gradient(dx, row_at(band.block, m, row), v);
  }
}
