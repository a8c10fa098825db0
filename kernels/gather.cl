// Affine gather: each coordinate of the result leads to one of the source, or to none. Transposition, slices, padding
// and broadcasting, forward and backward.
#include "elementwise.h"

// An axis of the result is a row of `table`: with t = STEP * coordinate + BEGIN, the source coordinate is t / DIVISOR if
// that is whole and t in [LOW, HIGH); if it is CLAMPED, the nearest t in there. It moves the source's row by ROW_STRIDE, its channel by CHANNEL_STRIDE for each 1.
// (edgelearn/ops/shapes.py)
enum { SIZE, STEP, BEGIN, DIVISOR, LOW, HIGH, CLAMPED, ROW_STRIDE, CHANNEL_STRIDE, WORDS };

typedef struct { int row, channel, exists; } Place;  // of a value in an example of the source

INLINE Place moved(Place place, __global const int *axis, const int coordinate) {
  int t = axis[STEP] * coordinate + axis[BEGIN];
  if (axis[CLAMPED]) t = t < axis[LOW] ? axis[LOW] : t < axis[HIGH] ? t : axis[HIGH] - 1;
  place.exists &= t >= axis[LOW] && t < axis[HIGH] && t % axis[DIVISOR] == 0;
  place.row += t / axis[DIVISOR] * axis[ROW_STRIDE];
  place.channel += t / axis[DIVISOR] * axis[CHANNEL_STRIDE];
  return place;
}

// dx = factor * x gathered, and `fill` where there is no source. An example has `rows` rows of `channels` in dx and
// `from_rows` in x; `axes` counts the channels' axis, the last one. aligned: channels keep their place within blocks.
KERNEL gather(INPUT(x), INPUT_OF(int, table), ROWS_ARGUMENTS, const int axes, const int from_rows, const int rows,
              const int channels, const int aligned, const float factor, const float fill, GRADIENT_ARGUMENTS) {
  input x = START(x);
  __global const int *restrict axis = START(table);
  __global const int *restrict last = axis + (axes - 1) * WORDS;
  const Gradient dx = GRADIENT;
  const Band band = band_of(m, count);
  const size_t from_m = (size_t)(m / rows) * from_rows;
  const int filled = channels_of(band.block, channels) - FIRST_CHANNEL;
  V empty = (V)0;
  for (int i = 0; i < VECTOR_WIDTH; i++) if (i < filled) ELEMENT(empty, i) = fill;
  for (int row = band.start; row < band.stop; row += band.step) {
    Place place = {row / rows * from_rows, 0, 1};
    for (int a = axes - 2, rest = row % rows; a >= 0; rest /= axis[a * WORDS + SIZE], a--)
      place = moved(place, axis + a * WORDS, rest % axis[a * WORDS + SIZE]);
    V v = empty;
    if (place.exists && aligned) {
      const int block = band.block + last[BEGIN] / BLOCK;
      v = load(x + (block * from_m + place.row) * BLOCK + FIRST_CHANNEL) * factor;
    } else if (place.exists) {
      for (int i = 0; i < VECTOR_WIDTH; i++) if (i < filled) {
        const Place from = moved(place, last, band.block * BLOCK + FIRST_CHANNEL + i);
        if (from.exists) ELEMENT(v, i) = x[value_at(from.channel, from_m, from.row)] * factor;
      }
    }
    write_gradient(dx, row_at(band.block, m, row), v);
  }
}
