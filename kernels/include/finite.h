// Flags of gradients that are not finite
#ifndef FINITE_H
#define FINITE_H

// flags[place, vector] = 1 where `rest`, a sum of v - v over the values written, is not 0: then some v is a NaN or an
// infinity
INLINE void write_flag(output flags, const int place, const V rest) {
#if VECTOR_WIDTH == 4
  const float4 quarter = rest;
#else
  const float8 half_sum = rest.lo + rest.hi;
  const float4 quarter = half_sum.lo + half_sum.hi;
#endif
  const int is_finite = quarter.x + quarter.y + quarter.z + quarter.w == 0.0f;
  flags[place * VECTORS + FIRST_CHANNEL / VECTOR_WIDTH] = is_finite ? 0.0f : 1.0f;
}

#endif
