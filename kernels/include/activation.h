// Activations that a kernel applies as it writes, and their derivatives taken from the activation's own output.
// ACTIVATION: 0 linear, 1 ReLU, 2 ReLU6.

#ifndef ACTIVATION
#define ACTIVATION 0
#endif

#define LINEAR_FORWARD(v)
// Compared this way round, a NaN goes through and is noticed; (v > 0 ? v : 0) would make it a 0.
#define RELU_FORWARD(v) v = v < (V)0 ? (V)0 : v;
#define RELU6_FORWARD(v) RELU_FORWARD(v) v = v > (V)6 ? (V)6 : v;

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
