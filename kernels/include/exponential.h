// exp and log of vectors, within a few units in the last place: those that OpenCL has are a call an element on PoCL.
//
// exp(u) = 2^n exp(r) with n the integer nearest to u / ln 2, so that |r| < 0.35. Adding 1.5 * 2^23 leaves n in the
// lowest bits.
#define EXPONENT_SHIFT 12582912.0f

INLINE V clamped(const V v, const float low, const float high) {
  const V u = v > (V)high ? (V)high : v;
  return u < (V)low ? (V)low : u;
}

// exp(u) for |u| <= 87
INLINE V exponential_within(const V u) {
  const V shifted = u * 1.44269504f + EXPONENT_SHIFT, n = shifted - EXPONENT_SHIFT;
  const V r = (u - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts, the first exact in few bits
  V e = r * (1.0f / 720) + (1.0f / 120);
  e = e * r + (1.0f / 24);
  e = e * r + (1.0f / 6);
  e = e * r + 0.5f;
  e = e * r + 1.0f;
  e = e * r + 1.0f;
  return e * VECTOR(as_float)((VECTOR(as_int)(shifted) + 127) << 23);
}

// The same, and at the ends of that range beyond
INLINE V exponential(const V v) { return exponential_within(clamped(v, -87, 87)); }

// exp(v) - 1 for v <= 87: near 0 by its series, where the difference would lose digits
INLINE V exponential_less_one(const V v) {
  V e = v * (1.0f / 5040) + (1.0f / 720);
  e = e * v + (1.0f / 120);
  e = e * v + (1.0f / 24);
  e = e * v + (1.0f / 6);
  e = e * v + 0.5f;
  e = e * v + 1.0f;
  return ((v > (V)-0.35f) & (v < (V)0.35f)) ? e * v : exponential(v) - (V)1;
}

// log(v) = n ln 2 + log(1 + m), 1 + m from sqrt(1/2) to sqrt(2); -infinity at 0, NaN below
INLINE V logarithm(const V v) {
  const Ints tiny = v < (V)0x1p-126f;
  const Ints bits = VECTOR(as_int)(tiny ? v * 0x1p23f : v), whole = (bits - 0x3F3504F3) >> 23;
  const V m = VECTOR(as_float)(bits - (whole << 23)) - (V)1, square = m * m;
  const V n = VECTOR(convert_float)(whole - (tiny ? (Ints)23 : (Ints)0));
  V p = m * 7.0376836292e-2f - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  V y = p * m * square - n * 2.12194440e-4f;
  y = (m + (y - square * 0.5f)) + n * 0.693359375f;
  y = v < (V)INFINITY ? y : v;  // infinity and NaN
  y = v == (V)0 ? (V)-INFINITY : y;
  return v < (V)0 ? (V)NAN : y;
}

// log(1 + e) for e from 0 to 1: the rounding of 1 + e is divided out (Kahan)
INLINE V logarithm_of_one_plus(const V e) {
  const V sum = (V)1 + e;
  return sum == (V)1 ? e : logarithm(sum) * e / (sum - (V)1);
}
