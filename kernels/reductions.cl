// Reductions of an example over any of its axes: KIND is the sum, the maximum, or the share of each maximum in a
// gradient.
#include "elementwise.h"
#include "group_sum.h"

#include "reduction_kinds.h"
#ifndef KIND
#define KIND SUM
#endif
#define CHUNK 256  // values added one after the other: a float32 sum of a million has an error of 2e-4

// An axis of the result, or one that is reduced, is a row of a table: a coordinate moves the source's row by ROW_STRIDE
// and its channel by CHANNEL_STRIDE (edgelearn/ops/pooling.py).
enum { SIZE, ROW_STRIDE, CHANNEL_STRIDE, WORDS };

typedef struct { int row, channel; } Place;

INLINE Place moved(const Place place, __global const int *axis, const int coordinate) {
  return (Place){place.row + coordinate * axis[ROW_STRIDE], place.channel + coordinate * axis[CHANNEL_STRIDE]};
}

// The place of value number `rest`, in C order, of `axes` axes
INLINE Place place_of(Place place, __global const int *axis, const int axes, int rest) {
  for (int a = axes - 1; a >= 0; rest /= axis[a * WORDS + SIZE], a--)
    place = moved(place, axis + a * WORDS, rest % axis[a * WORDS + SIZE]);
  return place;
}

// A block of values from `place` on, along the axis that became the channels; aligned: these are the source's channels
INLINE V values_at(input x, const Place place, __global const int *channel_axis, const size_t m, const int block,
                   const int filled, const int aligned) {
  if (aligned) return load(x + (block * m + place.row) * BLOCK + FIRST_CHANNEL);
  V v = (V)0;
  for (int i = 0; i < VECTOR_WIDTH; i++) if (i < filled) {
    const Place at = moved(place, channel_axis, block * BLOCK + FIRST_CHANNEL + i);
    ELEMENT(v, i) = x[value_at(at.channel, m, at.row)];
  }
  return v;
}

INLINE V combined(const V a, const V b) {
#if KIND == MAXIMUM
  return ((b > a) | (b != b)) ? b : a;  // a NaN stays
#else
  return a + b;
#endif
}

INLINE V group_combined(const V v, __local V *shares) {
#if KIND == MAXIMUM && GROUP > VECTORS
  const int mine = FIRST_CHANNEL / VECTOR_WIDTH;
  shares[get_local_id(0)] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  V most = shares[mine];
  for (int i = 1; i < MEMBERS; i++) most = combined(most, shares[i * VECTORS + mine]);
  return most;
#elif KIND == MAXIMUM
  return v;
#else
  return group_sum(v, shares);
#endif
}

#if KIND == SHARE
#define SHARE_ARGUMENTS , INPUT(most), INPUT(dy)
#else
#define SHARE_ARGUMENTS
#endif

// y = factor * x reduced; or, with SHARE, dy divided by the number of values of x that equal `most`. y: m rows of
// `channels`, `rows` an example, where x has `from_rows`. `table` has the `axes` of y, then the `reduced` ones, of
// `total` coordinates. A work-group a row.
KERNEL reduce(INPUT(x), INPUT_OF(int, table), OUTPUT(y), const int m, const int axes, const int reduced,
              const int total, const int from_rows, const int rows, const int channels, const int aligned,
              const float factor SHARE_ARGUMENTS) {
  LOCAL_SHARES(shares);
  input x = START(x);
  __global const int *restrict axis = START(table);
  __global const int *restrict last = axis + (axes - 1) * WORDS;
  const int row = get_group_id(0), block = get_global_id(1), filled = channels_of(block, channels) - FIRST_CHANNEL;
  const size_t from_m = (size_t)(m / rows) * from_rows, at = row_at(block, m, row);
  const Place first = place_of((Place){row / rows * from_rows, 0}, axis, axes - 1, row % rows);
#if KIND == SHARE
  const V most_of_row = load(ITEM_START(most) + at);
#endif
  V all = KIND == MAXIMUM ? (V)-INFINITY : (V)0;
  for (int start = ITEM % MEMBERS; start < total; start += MEMBERS * CHUNK) {
    V sum = KIND == MAXIMUM ? (V)-INFINITY : (V)0;
    for (int p = start; p < total && p < start + MEMBERS * CHUNK; p += MEMBERS) {
      const Place place = place_of(first, axis + axes * WORDS, reduced, p);
      const V v = values_at(x, place, last, from_m, block, filled, aligned);
#if KIND == SHARE
      sum += v == most_of_row ? (V)1 : (V)0;
#else
      sum = combined(sum, v);
#endif
    }
    all = combined(all, sum);
  }
  all = group_combined(all, shares);
#if KIND == SHARE
  all = load(ITEM_START(dy) + at) / (all > (V)0 ? all : (V)1);
#else
  all *= factor;
#endif
  if (IS_FIRST_MEMBER) store(ITEM_START(y) + at, all);
}

// dx = share where x equals the maximum of its reduced values, else 0. `table` has the axes of x, with strides in
// `most`; aligned: channels of x are those of `most`.
KERNEL pass_to_maxima(INPUT(x), INPUT(most), INPUT(share), INPUT_OF(int, table), ROWS_ARGUMENTS, const int axes,
                      const int from_rows, const int rows, const int channels, const int aligned, GRADIENT_ARGUMENTS) {
  input x = ITEM_START(x), most = START(most), share = START(share);
  __global const int *restrict axis = START(table);
  __global const int *restrict last = axis + (axes - 1) * WORDS;
  const Gradient dx = GRADIENT;
  const Band band = band_of(m, count);
  const size_t from_m = (size_t)(m / rows) * from_rows;
  const int filled = channels_of(band.block, channels) - FIRST_CHANNEL;
  for (int row = band.start; row < band.stop; row += band.step) {
    const size_t at = row_at(band.block, m, row);
    const Place place = place_of((Place){row / rows * from_rows, 0}, axis, axes - 1, row % rows);
    const V top = values_at(most, place, last, from_m, band.block, filled, aligned);
    const V g = values_at(share, place, last, from_m, band.block, filled, aligned);
    write_gradient(dx, at, load(x + at) == top ? g : (V)0);
  }
}
