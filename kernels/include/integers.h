// Kernels that multiply 8-bit integers and add the products up in 32-bit ones. Tensors of integers are blocked like all
// others: the 16 channels of a row are 16 bytes. Padding channels hold the zero point, so they count as zeros.
//
// The result leaves a kernel as floats or, where its range is known (QUANTISED), as integers. No two operations may be
// contracted to one: results are the same to the bit on every device.
#include "blocked.h"
#include "activation.h"
#include "quantise.h"
#include "found.h"
#include "scalars.h"
#pragma OPENCL FP_CONTRACT OFF

#if LANES == 4
typedef char4 Q;
typedef short4 S;
typedef int4 A;
#define TO_CHARS convert_char4
#define TO_SHORTS convert_short4
#define TO_INTS convert_int4
#define TO_FLOATS convert_float4
#define BITS_OF as_int4
#else
typedef char16 Q;
typedef short16 S;
typedef int16 A;
#define TO_CHARS convert_char16
#define TO_SHORTS convert_short16
#define TO_INTS convert_int16
#define TO_FLOATS convert_float16
#define BITS_OF as_int16
#endif
typedef __global const char *restrict bytes;

#define INPUT_Q(x) INPUT_WORDS(char, x)
#define OUTPUT_Q(x) __global char *restrict x##_memory, const uint x##_start
#define FROM_Q(x) bytes x = x##_memory + (size_t)x##_start * 4 * BLOCK;
#define INTO_Q(x) __global char *restrict x = x##_memory + (size_t)x##_start * 4 * BLOCK;
// A tensor of integers and the record of its range.
#define INPUT_RANGED(x) INPUT_Q(x), INPUT_WORDS(float, x##_range)
#define FROM_RANGED(x) FROM_Q(x) FROM_WORDS(float, x##_range)

// Through 16 bits, so that compilers see that products fit instructions for pairs of those.
#define LOAD_Q(pointer) TO_INTS(TO_SHORTS(*(__global const Q *)(pointer)))
#define LOAD_CENTRED(pointer, zero) TO_INTS(TO_SHORTS(*(__global const Q *)(pointer)) - (S)(zero))
#define CENTRED(value, zero) ((int)(short)((value) - (zero)))
// t: whole numbers as floats
#define STORE_Q(pointer, t) (*(__global Q *)(pointer) = TO_CHARS(BITS_OF((t) + MAGIC) - (A)0x4B400000))

#ifndef QUANTISED
#define QUANTISED 0
#endif

#if QUANTISED && STOCHASTIC
#define DRAW_ARGUMENTS                                                             \
  , INPUT_WORDS(uint, scalars), INPUT_WORDS(float, counters), const int pixels, const int blocks, const int tensor
#define DRAW_POINTERS                                                              \
  FROM_WORDS(uint, scalars) FROM_WORDS(float, counters)                            \
  const uint2 seed_ = (uint2)(scalars[SEED], scalars[SEED + 1]);                   \
  const int before_ = (int)counters[SEEN];
#define ROUNDED(t, v, block, row)                                                  \
  UNIFORM(drawn_, (row) % pixels * blocks + (block), before_ + (row) / pixels, tensor, scalars[STEP], seed_) \
  QUANTISE_STOCHASTIC(t, v, inverse_, lowest_, highest_, drawn_)
#else
#define DRAW_ARGUMENTS
#define DRAW_POINTERS
#define ROUNDED(t, v, block, row) QUANTISE_NEAREST(t, v, inverse_, lowest_, highest_)
#endif

// Where a kernel's result goes, whose m rows are pixels of images: WRITE_RESULT(block, row, v).
#if QUANTISED
#define RESULT_ARGUMENTS                                                           \
  OUTPUT_Q(result), INPUT_WORDS(float, result_range), const float bottom, const float top DRAW_ARGUMENTS FOUND_ARGUMENTS
#define RESULT_POINTERS                                                            \
  INTO_Q(result) FROM_WORDS(float, result_range) DRAW_POINTERS FOUND_POINTERS      \
  const float zero_ = result_range[ZERO];                                          \
  const V inverse_ = (V)result_range[INVERSE], lowest_ = (V)(bottom - zero_), highest_ = (V)(top - zero_);
#define WRITE_RESULT(block, row, v)                                                \
  {                                                                                \
    const V value_ = (v);                                                          \
    V t_;                                                                          \
    ROUNDED(t_, value_, block, row)                                                \
    NOTE(value_)                                                                   \
    NOTE_CLIPPED(value_ * inverse_, lowest_, highest_)                             \
    NOTE_BECOMES(value_, DEQUANTISE(t_, result_range[SCALE_OF]))                   \
    STORE_Q(result + ((size_t)(block) * m + (row)) * BLOCK, t_ + zero_);           \
  }
#else
#define RESULT_ARGUMENTS OUTPUT(result) FOUND_ARGUMENTS
#define RESULT_POINTERS INTO(result) FOUND_POINTERS
#define WRITE_RESULT(block, row, v)                                                \
  {                                                                                \
    const V value_ = (v);                                                          \
    NOTE(value_)                                                                   \
    STORE(result + ((size_t)(block) * m + (row)) * BLOCK, value_);                 \
  }
#endif

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
