// How a kernel writes its result, whose m rows are pixels of images: WRITE_RESULT(block, row, v). As floats; or
// QUANTIZED by a range that is known by then: 1, as integers, 2, as the floats that these stand for. What is written is
// noted (see found.h).
#include "vectors.h"
#include "quantize.h"
#include "found.h"
#include "scalars.h"

// t: whole numbers as floats
#define STORE_Q(pointer, t) (*(__global Q *)(pointer) = TO_CHARS(BITS_OF((t) + MAGIC) - (A)0x4B400000))

#ifndef QUANTIZED
#define QUANTIZED 0
#endif

#if QUANTIZED && STOCHASTIC
#define DRAW_ARGUMENTS                                                             \
  , INPUT_WORDS(uint, scalars), INPUT_WORDS(float, counters), const int pixels, const int blocks, const int tensor
#define DRAW_POINTERS                                                              \
  FROM_WORDS(uint, scalars) FROM_WORDS(float, counters)                            \
  const uint2 seed_ = (uint2)(scalars[SEED], scalars[SEED + 1]);                   \
  const int before_ = (int)counters[SEEN];
#define ROUNDED(t, v, block, row)                                                  \
  UNIFORM_FROM(drawn_, ((row) % pixels * blocks + (block)) * BLOCK + FIRST_LANE, before_ + (row) / pixels, tensor, \
               scalars[STEP], seed_)                                               \
  QUANTIZE_STOCHASTIC(t, v, inverse_, lowest_, highest_, drawn_)
#else
#define DRAW_ARGUMENTS
#define DRAW_POINTERS
#define ROUNDED(t, v, block, row) QUANTIZE_NEAREST(t, v, inverse_, lowest_, highest_)
#endif

#if QUANTIZED
#if QUANTIZED == 1
#define OUTPUT_RESULT OUTPUT_Q(result)
#define INTO_RESULT INTO_Q(result) result += FIRST_LANE;
#define STORE_RESULT(at, v, t) STORE_Q(result + (at), (t) + zero_);
#else
#define OUTPUT_RESULT OUTPUT(result)
#define INTO_RESULT INTO(result)
// an infinity becomes a NaN, which is noticed; a limit would not be
#define STORE_RESULT(at, v, t) STORE(result + (at), DEQUANTIZE(t, result_range[SCALE_OF]) + ((v) - (v)));
#endif
#define RESULT_ARGUMENTS                                                           \
  OUTPUT_RESULT, INPUT_WORDS(float, result_range), const float bottom, const float top DRAW_ARGUMENTS FOUND_ARGUMENTS
#define RESULT_POINTERS                                                            \
  INTO_RESULT FROM_WORDS(float, result_range) DRAW_POINTERS FOUND_POINTERS         \
  const float zero_ = result_range[ZERO];                                          \
  const V inverse_ = (V)result_range[INVERSE], lowest_ = (V)(bottom - zero_), highest_ = (V)(top - zero_);
#define WRITE_RESULT(block, row, v)                                                \
  {                                                                                \
    const V value_ = (v);                                                          \
    V t_;                                                                          \
    ROUNDED(t_, value_, block, row)                                                \
    NOTE(value_)                                                                   \
    NOTE_CLIPPED(value_ * inverse_, lowest_, highest_)                             \
    NOTE_BECOMES(value_, DEQUANTIZE(t_, result_range[SCALE_OF]))                   \
    STORE_RESULT(((size_t)(block) * m + (row)) * BLOCK, value_, t_)                \
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
