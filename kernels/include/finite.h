// The sum of a vector's elements, and flags of gradients that are not finite
#ifndef FINITE_H
#define FINITE_H

INLINE float sum_of_elements(const V v) {
#if VECTOR_WIDTH == 4
  const float4 quarter = v;
#else
  const float8 half_sum = v.lo + v.hi;
  const float4 quarter = half_sum.lo + half_sum.hi;
#endif
  return quarter.x + quarter.y + quarter.z + quarter.w;
}

// flags[place, vector] = 1 where `rest`, a sum of v - v over the values written, is not 0: then some v is a NaN or an
// infinity
INLINE void write_flag(output flags, const int place, const V rest) {
  flags[place * VECTORS + FIRST_CHANNEL / VECTOR_WIDTH] = sum_of_elements(rest) == 0.0f ? 0.0f : 1.0f;
}

#endif
