// Element-wise kernels: copies, sums, and activations that are not fused into the layer before.
#include "elementwise.h"
#include "sigmoid.h"

// dx = x: how layers that only move values pass on a gradient
KERNEL copy(INPUT(x), ROWS_ARGUMENTS, GRADIENT_ARGUMENTS) {
  input x = ITEM_START(x);
  const Gradient dx = GRADIENT;
  const Band band = band_of(m, count);
  for (int row = band.start; row < band.stop; row++) {
    const size_t at = row_at(band.block, m, row);
    write_gradient(dx, at, load(x + at));
  }
}

// y = a + b
KERNEL add(INPUT(a), INPUT(b), OUTPUT(y), ROWS_ARGUMENTS) {
  input a = ITEM_START(a), b = ITEM_START(b);
  output y = ITEM_START(y);
  const Band band = band_of(m, count);
  for (int row = band.start; row < band.stop; row++) {
    const size_t at = row_at(band.block, m, row);
    store(y + at, load(a + at) + load(b + at));
  }
}

// OWN is this layer's activation; ACTIVATION and MASK in the backward kernel are those of the layer before.
INLINE V own_activation(const V v) {
#if OWN == SILU
  return v * sigmoid(v);
#elif OWN == RELU6
  return relu6(v);
#else
  return relu(v);
#endif
}

// g times the derivative at `own`: a rectifier's output, or SiLU's input
INLINE V own_derivative(const V own, V g) {
#if OWN == SILU
  const V s = sigmoid(own);
  g *= s * ((V)1 + own * ((V)1 - s));
#else
  g = own > (V)0 ? g : (V)0;
#endif
#if OWN == RELU6
  g = own < (V)6 ? g : (V)0;
#endif
  return g;
}

// y = activation(x)
KERNEL activation_forward(INPUT(x), OUTPUT(y), ROWS_ARGUMENTS) {
  input x = ITEM_START(x);
  output y = ITEM_START(y);
  const Band band = band_of(m, count);
  for (int row = band.start; row < band.stop; row++) {
    const size_t at = row_at(band.block, m, row);
    store(y + at, own_activation(load(x + at)));
  }
}

// dx = dy times the derivative
KERNEL activation_backward(INPUT(own), INPUT(dy), ROWS_ARGUMENTS, GRADIENT_ARGUMENTS) {
  input own = ITEM_START(own), dy = ITEM_START(dy);
  const Gradient dx = GRADIENT;
  const Band band = band_of(m, count);
  for (int row = band.start; row < band.stop; row++) {
    const size_t at = row_at(band.block, m, row);
    write_gradient(dx, at, own_derivative(load(own + at), load(dy + at)));
  }
}
