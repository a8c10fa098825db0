// Activations that are not fused into what comes before. OWN: this layer's activation (1 ReLU, 2 ReLU6, 3 SiLU);
// ACTIVATION and MASK: that of the layer before, for the gradient.
#include "blocked.h"
#include "activation.h"
#include "band.h"
#include "gradient.h"
#include "sigmoid.h"

KERNEL activation_forward(INPUT(x), OUTPUT(y), const int m, const int count) {
  FROM(x) INTO(y)
  BAND
  for (int row = start; row < stop; row++) {
    const size_t at = ((size_t)block * m + row) * BLOCK;
    V v = LOAD(x + at);
#if OWN == 3
    v *= sigmoid(v);
#else
    RELU_FORWARD(v)
#endif
#if OWN == 2
    RELU6_FORWARD(v)
#endif
    STORE(y + at, v);
  }
}

// `own` is what the derivative is taken from: a rectifier's output, SiLU's input.
KERNEL activation_backward(INPUT(own_in), INPUT(dy), const int m, const int count, GRADIENT_OUTPUT) {
  FROM(own_in) FROM(dy) GRADIENT_POINTERS
  BAND
  for (int row = start; row < stop; row++) {
    const size_t at = ((size_t)block * m + row) * BLOCK;
    const V own = LOAD(own_in + at);
    V g = LOAD(dy + at);
#if OWN == 3
    const V s = sigmoid(own);
    g *= s * ((V)1 + own * ((V)1 - s));
#else
    g = own > (V)0 ? g : (V)0;
#endif
#if OWN == 2
    g = own < (V)6 ? g : (V)0;
#endif
    WRITE_GRADIENT(at, g)
  }
}
