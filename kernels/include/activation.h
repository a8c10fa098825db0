// Activations that a kernel applies as it writes, and their derivatives taken from the activation's own output.
// ACTIVATION: 0 linear, 1 ReLU, 2 ReLU6.

#ifndef ACTIVATION
#define ACTIVATION 0
#endif

#define LINEAR_FORWARD(v)
#define RELU_FORWARD(v) v = v > (V)0 ? v : (V)0;
#define RELU6_FORWARD(v) v = v > (V)0 ? v : (V)0; v = v < (V)6 ? v : (V)6;

#if ACTIVATION == 2
#define ACTIVATE(v) { RELU6_FORWARD(v) }
#define PASSES(z) ((z > (V)0) & (z < (V)6))
#elif ACTIVATION == 1
#define ACTIVATE(v) { RELU_FORWARD(v) }
#define PASSES(z) (z > (V)0)
#else
#define ACTIVATE(v)
#define PASSES(z) ((z == z) | (z != z))
#endif
