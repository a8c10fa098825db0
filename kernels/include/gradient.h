// How a backward kernel writes the gradient of its input.
// MASK: the input is the output of a fused activation; its derivative is applied here (see activation.h).
// ACCUMULATE: the input has several consumers and another one has already written its share.

#ifndef MASK
#define MASK 0
#endif
#ifndef ACCUMULATE
#define ACCUMULATE 0
#endif

#if MASK
#define GRADIENT_OUTPUT OUTPUT(dx), INPUT(activation)
#define GRADIENT_POINTERS INTO(dx) FROM(activation)
#define MASKED(offset, v) { const V z_ = LOAD(activation + (offset)); v = PASSES(z_) ? v : (V)0; }
#else
#define GRADIENT_OUTPUT OUTPUT(dx)
#define GRADIENT_POINTERS INTO(dx)
#define MASKED(offset, v)
#endif

#if ACCUMULATE
#define ADDED(offset, v) v += LOAD(dx + (offset));
#else
#define ADDED(offset, v)
#endif

#define WRITE_GRADIENT(offset, v) { V g_ = (v); MASKED(offset, g_) ADDED(offset, g_) STORE(dx + (offset), g_); }
