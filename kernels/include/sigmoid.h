// 1 / (1 + exp(-v)) of a vector, within a few units in the last place: the exponential that OpenCL has is a call an
// element on PoCL. exp(u) = 2^n exp(r) with n the integer nearest to u / ln 2, so that |r| < 0.35. Adding 1.5 * 2^23
// leaves n in the lowest bits. Beyond |v| = 87 float32 ends: the result is 0 or 1.
#define SIGMOID_SHIFT 12582912.0f

INLINE V sigmoid(const V v) {
  V u = (V)0 - v;
  u = u > (V)87 ? (V)87 : u;
  u = u < (V)-87 ? (V)-87 : u;
  const V shifted = u * 1.44269504f + SIGMOID_SHIFT, n = shifted - SIGMOID_SHIFT;
  const V r = (u - n * 0.693359375f) + n * 2.12194440e-4f;  // ln 2 in two parts, the first exact in few bits
  V e = r * (1.0f / 720) + (1.0f / 120);
  e = e * r + (1.0f / 24);
  e = e * r + (1.0f / 6);
  e = e * r + 0.5f;
  e = e * r + 1.0f;
  e = e * r + 1.0f;
  e *= VECTOR(as_float)((VECTOR(as_int)(shifted) + 127) << 23);
  const V s = (V)1 / ((V)1 + e);
  return v < (V)-87 ? (V)0 : s;
}
