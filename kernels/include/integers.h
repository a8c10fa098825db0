// Kernels that multiply 8-bit integers and add the products up in 32-bit ones. Tensors of integers are blocked like all
// others: the 16 channels of a row are 16 bytes. Padding channels hold the zero point, so they count as zeros.
//
// The result leaves a kernel as floats or, where its range is known (QUANTIZED), as integers. No two operations may be
// contracted to one: results are the same to the bit on every device.
#include "blocked.h"
#include "vectors.h"
#include "activation.h"
#include "result.h"
#pragma OPENCL FP_CONTRACT OFF

// A tensor of integers and the record of its range.
#define INPUT_RANGED(x) INPUT_Q(x), INPUT_WORDS(float, x##_range)
#define FROM_RANGED(x) FROM_Q(x) FROM_WORDS(float, x##_range)

// Through 16 bits, so that compilers see that products fit instructions for pairs of those.
#define LOAD_CENTRED(pointer, zero) TO_INTS(TO_SHORTS(*(__global const Q *)(pointer)) - (S)(zero))
#define CENTRED(value, zero) ((int)(short)((value) - (zero)))

// Backward kernels: the derivative of the activation whose output the input is. MASK says how that output is kept: 1 as
// floats, 2 as integers. With ACCUMULATE another consumer of the input has already written its share, as floats.
#ifndef MASK
#define MASK 0
#endif
#ifndef ACCUMULATE
#define ACCUMULATE 0
#endif
#if MASK == 2
#define MASK_ARGUMENTS , INPUT_RANGED(activation)
#define MASK_POINTERS                                                              \
  FROM_RANGED(activation)                                                          \
  const float step_ = activation_range[SCALE_OF];                                  \
  const short floor_ = (short)activation_range[ZERO];
#define MASKED(block, row, v)                                                      \
  {                                                                                \
    V z_ = TO_FLOATS(LOAD_CENTRED(activation + ((size_t)(block) * m + (row)) * BLOCK, floor_)) * step_; \
    v = PASSES(z_) ? v : (V)0;                                                     \
  }
#elif MASK == 1
#define MASK_ARGUMENTS , INPUT(activation)
#define MASK_POINTERS FROM(activation)
#define MASKED(block, row, v)                                                      \
  { const V z_ = LOAD(activation + ((size_t)(block) * m + (row)) * BLOCK); v = PASSES(z_) ? v : (V)0; }
#else
#define MASK_ARGUMENTS
#define MASK_POINTERS
#define MASKED(block, row, v)
#endif
#if ACCUMULATE
#define ADDED(block, row, v) v += LOAD(result + ((size_t)(block) * m + (row)) * BLOCK);
#else
#define ADDED(block, row, v)
#endif
#define WRITE_GRADIENT(block, row, v)                                              \
  {                                                                                \
    V g_ = (v);                                                                    \
    MASKED(block, row, g_)                                                         \
    ADDED(block, row, g_)                                                          \
    WRITE_RESULT(block, row, g_)                                                   \
  }
