// How a backward kernel writes the gradient of its input, or any kernel a plain result.
// MASK: the input is the output of a fused activation; the gradient is multiplied by its derivative: this share of it,
// or, as MASK_SUM, the sum with the shares of all other consumers, which none of them has multiplied.
// MASKED_BY is the format of that output: VALUES like the gradient, or, in files that include stored.h, INT8.
// ACCUMULATE: another consumer of the input has already written its share, to which this one is added.
// NORM_SUMS: the kernel also leaves records of what it writes, for the BatchNorm whose result it is the gradient of.
#include "activation.h"
#include "moments.h"

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

// With NORM_SUMS `activation` is what was normalized, y, of which the output follows: activation(y * scale + shift).
typedef struct { input mean, deviation_inverse, scale, shift; output sums; } Norm;
#if NORM_SUMS
#define NORM_ARGUMENTS \
  , INPUT(norm_mean), INPUT(norm_inverse), INPUT(norm_scale), INPUT(norm_shift), OUTPUT(norm_sums)
#define NORM                                                                                                  \
  ((Norm){ITEM_START(norm_mean), ITEM_START(norm_inverse), ITEM_START(norm_scale), ITEM_START(norm_shift), \
          ITEM_START(norm_sums)})
#else
#define NORM_ARGUMENTS
#define NORM ((Norm){0, 0, 0, 0, 0})
#endif

#if MASK && MASKED_BY == INT8
typedef struct { output_values dx; bytes activation; float scale, zero; } Gradient;
#define GRADIENT_ARGUMENTS OUTPUT_VALUES(dx), INPUT_OF(char, activation), INPUT(activation_range)
#define GRADIENT                                                                           \
  ((Gradient){ITEM_START(dx), ITEM_START(activation), START(activation_range)[SCALE_OF], \
              START(activation_range)[ZERO]})
#else
typedef struct { output_values dx; input_values activation; Norm norm; } Gradient;
#if MASK || NORM_SUMS
#define GRADIENT_ARGUMENTS OUTPUT_VALUES(dx), INPUT_VALUES(activation) NORM_ARGUMENTS
#define GRADIENT ((Gradient){ITEM_START(dx), ITEM_START(activation), NORM})
#else
#define GRADIENT_ARGUMENTS OUTPUT_VALUES(dx)
#define GRADIENT ((Gradient){ITEM_START(dx), 0, NORM})
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

// Sums of a group of rows of a block of channels, and what they are taken with
typedef struct { V sum, product, mean, scale, shift; } NormSums;
INLINE NormSums norm_sums(const Gradient gradient, const int block) {
  NormSums s = {(V)0, (V)0, (V)0, (V)0, (V)0};
#if NORM_SUMS
  s.mean = load(gradient.norm.mean + block * BLOCK);
  s.scale = load(gradient.norm.scale + block * BLOCK);
  s.shift = load(gradient.norm.shift + block * BLOCK);
#endif
  return s;
}

// write_gradient by a kernel that can take the sums
INLINE void add_gradient(const Gradient gradient, NormSums *s, const size_t at, V v) {
#if NORM_SUMS
  const V y = load(gradient.activation + at), z = activate(y * s->scale + s->shift);
#if MASK && MASK != MASK_SUM
  v = through_activation(z, v);
#endif
#if ACCUMULATE
  v += load(gradient.dx + at);
#endif
#if MASK == MASK_SUM
  v = through_activation(z, v);
#endif
  store(gradient.dx + at, v);
  s->sum += v;
  s->product += v * (y - s->mean);
#else
  write_gradient(gradient, at, v);
#endif
}

INLINE void leave_norm_sums(const Gradient gradient, const NormSums s, const int group, const int block,
                            const int blocks) {
#if NORM_SUMS
  const V inverse = load(gradient.norm.deviation_inverse + block * BLOCK);
  store_sums(gradient.norm.sums, group, block, blocks, s.sum, s.product * inverse);
#endif
}
