/* The kernels of target c: one function for each meaning of a kernel of edgelearn's, with plain loops, in float32
   or of tensors of 8-bit integers (integers.c); a file for each family of layers.

   A function gets its arguments as an array. Their order stands beside each function; edgelearn/bundles/functions.py has the
   same. Tensors are [channels / 16][rows][16], so that inner loops run over 16 neighbouring floats, which compilers turn
   into vectors where there are any. */
#ifndef EDGELEARN_KERNELS_H
#define EDGELEARN_KERNELS_H

#include <stdint.h>

typedef union {
  float *p; /* a tensor, or null where the launch has none */
  int32_t i;
  float f;
} el_value;

enum { EL_MOST_VALUES = 56 };

/* Numbers of element-wise functions, in the order of FUNCTIONS in edgelearn/bundles/functions.py */
enum {
  EL_LINEAR, EL_RELU, EL_RELU6, EL_CLIP, EL_LEAKY_RELU, EL_ELU, EL_TANH, EL_SOFTSIGN, EL_SIGMOID, EL_HARD_SIGMOID,
  EL_SILU, EL_HARD_SWISH
};

/* Numbers of functions that only layers of their own apply, in the order of LAYERS there */
enum {
  EL_SOFTPLUS, EL_EXP, EL_SQRT, EL_RSQRT, EL_RECIPROCAL, EL_AFFINE, EL_LOG, EL_SQUARE, EL_ABS, EL_GELU, EL_GELU_TANH,
  EL_MISH
};

/* Numbers of functions of two operands, in the order of BINARY there */
enum {
  EL_ADD, EL_SUBTRACT, EL_MULTIPLY, EL_DIVIDE, EL_MAXIMUM, EL_MINIMUM, EL_PRELU, EL_GREATER, EL_LESS, EL_SAME, EL_WHERE,
  EL_OTHERWISE
};

#define EL_KERNELS(KERNEL)                                                                                            \
  KERNEL(fold_statistics) KERNEL(convolution_forward) KERNEL(convolution_backward_data)                               \
  KERNEL(convolution_backward_weights) KERNEL(depthwise_forward) KERNEL(depthwise_backward_data)                      \
  KERNEL(depthwise_backward_weights) KERNEL(pointwise_forward) KERNEL(pointwise_backward_data)                        \
  KERNEL(pointwise_backward_weights) KERNEL(few_rows_backward_data) KERNEL(transpose_blocks) KERNEL(scale_taps)       \
  KERNEL(whole_forward) KERNEL(whole_backward) KERNEL(normalize_forward) KERNEL(channel_sums)                         \
  KERNEL(global_average_forward) KERNEL(global_average_backward) KERNEL(max_forward) KERNEL(max_taps)                 \
  KERNEL(max_backward_taps) KERNEL(average_forward) KERNEL(average_backward) KERNEL(activation_forward)               \
  KERNEL(activation_backward) KERNEL(add) KERNEL(copy) KERNEL(pad_channels) KERNEL(reshape) KERNEL(softmax)           \
  KERNEL(softmax_cross_entropy) KERNEL(count_examples) KERNEL(finish_sum) KERNEL(finish_gamma) KERNEL(finish_bias)    \
  KERNEL(count_nonfinite) KERNEL(sgd) KERNEL(sgd_momentum) KERNEL(adam) KERNEL(commit) KERNEL(statistics)             \
  KERNEL(quantize) KERNEL(measured_range) KERNEL(next_range) KERNEL(check_finite) KERNEL(learn_range)                 \
  KERNEL(weight_statistics) KERNEL(weight_range) KERNEL(weight_quantize) KERNEL(transpose_integers)                   \
  KERNEL(quantized_convolution_forward) KERNEL(quantized_convolution_backward_data)                                   \
  KERNEL(quantized_convolution_backward_weights) KERNEL(quantized_depthwise_forward)                                  \
  KERNEL(quantized_depthwise_backward_data) KERNEL(quantized_depthwise_backward_weights)                              \
  KERNEL(integer_channel_sums) KERNEL(to_floats) KERNEL(stored_forward) KERNEL(stored_max_forward)                    \
  KERNEL(stored_max_taps) KERNEL(max_backward) KERNEL(dropout) KERNEL(combine) KERNEL(combine_gradient)               \
  KERNEL(combine_gradient_sum) KERNEL(repeat) KERNEL(sum_repeated) KERNEL(concatenate_forward)                        \
  KERNEL(concatenate_backward) KERNEL(move_image) KERNEL(stored_whole_forward) KERNEL(stored_whole_backward)          \
  KERNEL(grouped_forward) KERNEL(grouped_backward_data) KERNEL(grouped_backward_weights)                              \
  KERNEL(local_response_forward) KERNEL(local_response_terms) KERNEL(local_response_backward) KERNEL(begin)           \
  KERNEL(couple) KERNEL(uncouple) KERNEL(gather) KERNEL(move_channels) KERNEL(transpose_columns)                      \
  KERNEL(function_forward) KERNEL(function_backward) KERNEL(softmax_backward) KERNEL(log_softmax_backward)            \
  KERNEL(choose) KERNEL(set_statistics) KERNEL(normalize_examples) KERNEL(set_gradients)                              \
  KERNEL(normalize_examples_backward) KERNEL(weight_gradients) KERNEL(cell_forward) KERNEL(copy_states)               \
  KERNEL(cell_backward) KERNEL(turn_kernel) KERNEL(cell_sums) KERNEL(cell_backward_input)                             \
  KERNEL(cell_weights) KERNEL(cell_bias) KERNEL(attend) KERNEL(attention_statistics)                                  \
  KERNEL(attend_backward_queries) KERNEL(attend_backward_keys) KERNEL(rotate_pairs) KERNEL(take) KERNEL(give_back)    \
  KERNEL(give_back_shared) KERNEL(reduce) KERNEL(pass_to_maxima) KERNEL(rmsprop) KERNEL(lion) KERNEL(moving_average)  \
  KERNEL(proximal) KERNEL(square_sums) KERNEL(clip_factor) KERNEL(clip_by_factor) KERNEL(clip_values)                 \
  KERNEL(lamb_moments) KERNEL(lamb_ratio) KERNEL(lamb_step) KERNEL(regression) KERNEL(cosine_hinge)                   \
  KERNEL(binary_cross_entropy) KERNEL(categorical_cross_entropy) KERNEL(minimum_entropy) KERNEL(ctc)                  \
  KERNEL(triplets) KERNEL(triplet_gradient) KERNEL(prototypes) KERNEL(prototypical) KERNEL(prototypical_gradient)     \
  KERNEL(finish_outputs) KERNEL(transposed_backward_weights) KERNEL(transposed_groups_forward)                        \
  KERNEL(transposed_groups_backward_data) KERNEL(transposed_groups_backward_weights) KERNEL(map_image)                \
  KERNEL(space_to_depth) KERNEL(multiply) KERNEL(pack_bits) KERNEL(unpack_bits)

#define EL_DECLARE(name) void el_##name(const el_value *v);
EL_KERNELS(EL_DECLARE)
#undef EL_DECLARE

#endif
