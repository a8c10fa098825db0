// Functions of single values, in pairs by the names of edgelearn/ops/elementwise.py, with two parameters a and b:
//   NAME_forward(v, a, b)        the value
//   NAME_backward(z, g, a, b)    g times the derivative, taken from the output z
// ACTIVATION is the function that a kernel applies as it writes, or by whose derivative it multiplies a gradient. Those
// here keep 0, so that the padding of channels stays zero, but for the last two, which are applied where there is no padding;
// functions.h has others.
//
// Compared this way round, a NaN is passed on and noticed; (v > 0 ? v : 0) would turn it into 0.
#include "sigmoid.h"

#ifndef ACTIVATION
#define ACTIVATION linear_
#endif
#ifndef ACTIVATION_A
#define ACTIVATION_A 0.0f
#endif
#ifndef ACTIVATION_B
#define ACTIVATION_B 0.0f
#endif

INLINE V linear_forward(const V v, const float a, const float b) { return v; }
INLINE V linear_backward(const V z, const V g, const float a, const float b) { return g; }

INLINE V relu_forward(const V v, const float a, const float b) { return v < (V)0 ? (V)0 : v; }
INLINE V relu_backward(const V z, const V g, const float a, const float b) { return z > (V)0 ? g : (V)0; }

INLINE V relu6_forward(const V v, const float a, const float b) {
  const V r = v < (V)0 ? (V)0 : v;
  return r > (V)6 ? (V)6 : r;
}
INLINE V relu6_backward(const V z, const V g, const float a, const float b) {
  return ((z > (V)0) & (z < (V)6)) ? g : (V)0;
}

// From a to b
INLINE V clip_forward(const V v, const float a, const float b) {
  const V r = v < (V)a ? (V)a : v;
  return r > (V)b ? (V)b : r;
}
INLINE V clip_backward(const V z, const V g, const float a, const float b) {
  return ((z > (V)a) & (z < (V)b)) ? g : (V)0;
}

INLINE V leaky_relu_forward(const V v, const float a, const float b) { return v < (V)0 ? v * a : v; }
INLINE V leaky_relu_backward(const V z, const V g, const float a, const float b) { return z > (V)0 ? g : g * a; }

// b times (v, or a (exp(v) - 1) below 0)
INLINE V elu_forward(const V v, const float a, const float b) {
  return (v < (V)0 ? exponential_less_one(v) * a : v) * b;
}
INLINE V elu_backward(const V z, const V g, const float a, const float b) {
  return g * (z > (V)0 ? (V)b : z + a * b);
}

// Near 0 by a polynomial, where 1 - 2 / (exp(2 v) + 1) would lose digits
INLINE V tanh_forward(const V v, const float a, const float b) {
  const V square = v * v;
  V p = square * -5.70498872745e-3f + 2.06390887954e-2f;
  p = p * square - 5.37397155531e-2f;
  p = p * square + 1.33314422036e-1f;
  p = p * square - 3.33332819422e-1f;
  const V far = (V)1 - (V)2 / (exponential(v * 2) + (V)1);
  return square < (V)0.390625f ? p * square * v + v : far;
}
INLINE V tanh_backward(const V z, const V g, const float a, const float b) { return g * ((V)1 - z * z); }

INLINE V softsign_forward(const V v, const float a, const float b) { return v / ((V)1 + (v < (V)0 ? -v : v)); }
INLINE V softsign_backward(const V z, const V g, const float a, const float b) {
  const V left = (V)1 - (z < (V)0 ? -z : z);
  return g * left * left;
}

INLINE V sigmoid_forward(const V v, const float a, const float b) { return sigmoid(v); }
INLINE V sigmoid_backward(const V z, const V g, const float a, const float b) { return g * (z * ((V)1 - z)); }

// a v + b, from 0 to 1
INLINE V hard_sigmoid_forward(const V v, const float a, const float b) { return clip_forward(v * a + b, 0, 1); }
INLINE V hard_sigmoid_backward(const V z, const V g, const float a, const float b) {
  return clip_backward(z, g * a, 0, 1);
}

// Macros, since functions.h, whose functions ACTIVATION may name as well, comes after this file.
#define activate(v) JOIN(ACTIVATION, forward)(v, ACTIVATION_A, ACTIVATION_B)
#define through_activation(z, g) JOIN(ACTIVATION, backward)(z, g, ACTIVATION_A, ACTIVATION_B)
