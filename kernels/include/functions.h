// Functions whose derivative follows from the input (the argument is called x then, not z), or that don't keep 0. Otherwise
// as in activation.h. Kernels that apply them include this file before epilogue.h.
#include "blocked.h"
#include "activation.h"

INLINE V softplus_forward(const V v, const float a, const float b) {
  return (v < (V)0 ? (V)0 : v) + logarithm_of_one_plus(exponential(v < (V)0 ? v : -v));
}
INLINE V softplus_backward(const V z, const V g, const float a, const float b) {
  return g * -exponential_less_one(-z);
}

// exp(v) is the square of exp(v / 2), which is finite for longer
INLINE V exp_forward(const V v, const float a, const float b) {
  const V root = exponential(v * 0.5f);
  return root * root;
}
INLINE V exp_backward(const V z, const V g, const float a, const float b) { return g * z; }

INLINE V sqrt_forward(const V v, const float a, const float b) { return sqrt(v); }
INLINE V sqrt_backward(const V z, const V g, const float a, const float b) { return g * 0.5f / z; }

INLINE V rsqrt_forward(const V v, const float a, const float b) { return (V)1 / sqrt(v); }
INLINE V rsqrt_backward(const V z, const V g, const float a, const float b) { return g * -0.5f * (z * z * z); }

INLINE V reciprocal_forward(const V v, const float a, const float b) { return (V)1 / v; }
INLINE V reciprocal_backward(const V z, const V g, const float a, const float b) { return -g * (z * z); }

INLINE V affine_forward(const V v, const float a, const float b) { return v * a + b; }
INLINE V affine_backward(const V any, const V g, const float a, const float b) { return g * a; }

INLINE V log_forward(const V v, const float a, const float b) { return logarithm(v); }
INLINE V log_backward(const V x, const V g, const float a, const float b) { return g / x; }

INLINE V square_forward(const V v, const float a, const float b) { return v * v; }
INLINE V square_backward(const V x, const V g, const float a, const float b) { return g * (x * 2); }

INLINE V abs_forward(const V v, const float a, const float b) { return v < (V)0 ? -v : v; }
INLINE V abs_backward(const V x, const V g, const float a, const float b) {
  return x < (V)0 ? -g : x > (V)0 ? g : (V)0;
}

INLINE V silu_forward(const V v, const float a, const float b) { return v * sigmoid(v); }
INLINE V silu_backward(const V x, const V g, const float a, const float b) {
  const V s = sigmoid(x);
  return g * (s * ((V)1 + x * ((V)1 - s)));
}

// v times hard_sigmoid(v)
INLINE V hard_swish_forward(const V v, const float a, const float b) { return v * hard_sigmoid_forward(v, a, b); }
INLINE V hard_swish_backward(const V x, const V g, const float a, const float b) {
  const V s = hard_sigmoid_forward(x, a, b);
  return g * (s + clip_backward(s, x * a, 0, 1));
}

// v times the integral of the normal distribution up to v. Below 0 that is exp(-v^2 / 2) times Mills' ratio over
// sqrt(2 pi), here a quotient of polynomials of |v| whose relative error is 1.3e-7 up to 13, where the exponential ends.
INLINE V gelu_forward(const V v, const float a, const float b) {
  const V size = VECTOR(as_float)(VECTOR(as_int)(v) & 0x7FFFFFFF), z = size > (V)13 ? (V)13 : size;
  V p = z * 2.370546962e-7f + 1.437614393e-2f;
  p = p * z + 1.076667092e-1f;
  p = p * z + 3.399768303e-1f;
  p = p * z + 0.5f;
  V q = z * 3.606360805e-2f + 2.693230103e-1f;
  q = q * z + 8.945328348e-1f;
  q = q * z + 1.477831241f;
  q = q * z + 1.0f;
  const V beyond = exponential_within(z * z * -0.5f) * (p / q);
  return (v < (V)0 ? (V)0 : v) - z * beyond;
}

// The derivative is 1/2 + v r(v^2): r by a quotient of polynomials whose error times v is 5e-9 up to 6, beyond which the
// derivative is within 4e-8 of 0 or 1
INLINE V gelu_backward(const V x, const V g, const float a, const float b) {
  const V near = clamped(x, -6, 6), u = near * near;
  V p = u * -2.887927566e-11f + 1.300195763e-8f;
  p = p * u + 1.121780909e-6f;
  p = p * u + 3.202721219e-5f;
  p = p * u + 2.851670565e-4f;
  p = p * u + 1.356913617e-2f;
  p = p * u - 1.804114946e-2f;
  p = p * u + 7.978845225e-1f;
  V q = u * 3.635937245e-7f + 1.081151504e-5f;
  q = q * u + 2.585919719e-4f;
  q = q * u + 4.150059539e-3f;
  q = q * u + 4.558166668e-2f;
  q = q * u + 3.107216228e-1f;
  q = q * u + 1.0f;
  return g * (x < (V)-6 ? (V)0 : near * (p / q) + 0.5f);
}

// v sigmoid(2 u), which is v (1 + tanh u) / 2, for u = sqrt(2 / pi) (v + 0.044715 v^3)
INLINE V gelu_tanh_forward(const V v, const float a, const float b) {
  return v * sigmoid(v * (v * v * 0.0713548163f + 1.59576912f));
}
INLINE V gelu_tanh_backward(const V x, const V g, const float a, const float b) {
  const V near = clamped(x, -20, 20), square = near * near;  // the derivative is 0 or 1 beyond
  const V s = sigmoid(near * (square * 0.0713548163f + 1.59576912f));
  return g * (s + s * ((V)1 - s) * near * (square * 0.214064449f + 1.59576912f));
}

// tanh(softplus(v)), by powers of exp(-|v|), which are finite
INLINE V tanh_of_softplus(const V v) {
  const V e = exponential(v < (V)0 ? v : -v), square = e * e;
  const V above = ((V)1 + e * 2) / ((V)1 + e * 2 + square * 2), below = (square + e * 2) / (square + e * 2 + 2);
  return v < (V)0 ? below : above;
}

INLINE V mish_forward(const V v, const float a, const float b) {
  return (v < (V)-87 ? (V)-87 : v) * tanh_of_softplus(v);
}
INLINE V mish_backward(const V x, const V g, const float a, const float b) {
  const V t = tanh_of_softplus(x);
  return g * (t + x * ((V)1 - t * t) * sigmoid(x));
}
