// How a backward kernel writes the gradient of its input, or any kernel a plain result.
// MASK: the input is the output of a fused activation; the gradient is multiplied by its derivative: this share of it,
// or, as MASK_SUM, the sum with the shares of all other consumers, which none of them has multiplied.
// MASKED_BY is the format of that output: VALUES like the gradient, or, in files that include stored.h, INT8.
// ACCUMULATE: another consumer of the input has already written its share, to which this one is added.
#include "activation.h"

#define MASK_SUM 2
#ifndef MASK
#define MASK 0
#endif
#ifndef ACCUMULATE
#define ACCUMULATE 0
#endif
#ifndef MASKED_BY
#define MASKED_BY FLOAT32
#endif

#if MASK && MASKED_BY == INT8
typedef struct { output_values dx; bytes activation; float scale, zero; } Gradient;
#define GRADIENT_ARGUMENTS OUTPUT_VALUES(dx), INPUT_OF(char, activation), INPUT(activation_range)
#define GRADIENT                                                                           \
  ((Gradient){ITEM_START(dx), ITEM_START(activation), START(activation_range)[SCALE_OF], \
              START(activation_range)[ZERO]})
#else
typedef struct { output_values dx; input_values activation; } Gradient;
#if MASK
#define GRADIENT_ARGUMENTS OUTPUT_VALUES(dx), INPUT_VALUES(activation)
#define GRADIENT ((Gradient){ITEM_START(dx), ITEM_START(activation)})
#else
#define GRADIENT_ARGUMENTS OUTPUT_VALUES(dx)
#define GRADIENT ((Gradient){ITEM_START(dx), 0})
#endif
#endif

INLINE V masked(const Gradient gradient, const size_t at, const V v) {
#if MASK && MASKED_BY == INT8
  return through_activation(dequantized(gradient.activation + at, (V)gradient.scale, (V)gradient.zero), v);
#elif MASK
  return through_activation(load(gradient.activation + at), v);
#else
  return v;
#endif
}

INLINE void write_gradient(const Gradient gradient, const size_t at, V v) {
#if MASK != MASK_SUM
  v = masked(gradient, at, v);
#endif
#if ACCUMULATE
  v += load(gradient.dx + at);
#endif
#if MASK == MASK_SUM
  v = masked(gradient, at, v);
#endif
  store(gradient.dx + at, v);
}
