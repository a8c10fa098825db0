// How a backward kernel writes the gradient of its input, or any kernel a plain result.
// MASK: the input is the output of a fused activation; the gradient is multiplied by its derivative: this share of it,
// or, as MASK_SUM, the sum with the shares of all other consumers, which none of them has multiplied.
// ACCUMULATE: another consumer of the input has already written its share, to which this one is added.
#include "activation.h"

#define MASK_SUM 2
#ifndef MASK
#define MASK 0
#endif
#ifndef ACCUMULATE
#define ACCUMULATE 0
#endif

typedef struct { output_values dx; input_values activation; } Gradient;

#if MASK
#define GRADIENT_ARGUMENTS OUTPUT_VALUES(dx), INPUT_VALUES(activation)
#define GRADIENT ((Gradient){ITEM_START(dx), ITEM_START(activation)})
#else
#define GRADIENT_ARGUMENTS OUTPUT_VALUES(dx)
#define GRADIENT ((Gradient){ITEM_START(dx), 0})
#endif

INLINE void write_gradient(const Gradient gradient, const size_t at, V v) {
#if MASK && MASK != MASK_SUM
  v = through_activation(load(gradient.activation + at), v);
#endif
#if ACCUMULATE
  v += load(gradient.dx + at);
#endif
#if MASK == MASK_SUM
  v = through_activation(load(gradient.activation + at), v);
#endif
  store(gradient.dx + at, v);
}
