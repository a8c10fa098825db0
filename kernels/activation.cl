// Activations that are not fused into what comes before. OWN: this layer's activation (1 ReLU, 2 ReLU6);
// ACTIVATION and MASK: that of the layer before, for the gradient.
#include "blocked.h"
#include "activation.h"
#include "band.h"
#include "gradient.h"

KERNEL activation_forward(INPUT(x), OUTPUT(y), const int m, const int count) {
  FROM(x) INTO(y)
  BAND
  for (int row = start; row < stop; row++) {
    const size_t at = ((size_t)block * m + row) * BLOCK;
    V v = LOAD(x + at);
    RELU_FORWARD(v)
#if OWN == 2
    RELU6_FORWARD(v)
#endif
    STORE(y + at, v);
  }
}

KERNEL activation_backward(INPUT(y), INPUT(dy), const int m, const int count, GRADIENT_OUTPUT) {
  FROM(y) FROM(dy) GRADIENT_POINTERS
  BAND
  for (int row = start; row < stop; row++) {
    const size_t at = ((size_t)block * m + row) * BLOCK;
    const V own = LOAD(y + at);
    V g = LOAD(dy + at);
    g = own > (V)0 ? g : (V)0;
#if OWN == 2
    g = own < (V)6 ? g : (V)0;
#endif
    WRITE_GRADIENT(at, g)
  }
}
