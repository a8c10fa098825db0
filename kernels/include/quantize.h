// Integers that stand for real numbers: see edgelearn/ops/formats.py.
// A range record is a block of 16 floats. Records of formats with a range for each channel have, for each 16 channels,
// such a block for each of them: [channels/16][16 fields][16].

#define SCALE_OF 0        // a step, in the tensor's units
#define INVERSE 1         // 1 / scale
#define ZERO 2            // the integer that stands for 0
#define LOW 3             // the range in use
#define HIGH 4
#define LEAST_FOUND 5     // what the last mini-batch really held (0 included)
#define MOST_FOUND 6
#define CLIPPED 7         // values beyond the range in use
#define COUNT 8           // values
#define SIGNAL 9          // sums for traces: v * v,
#define NOISE 10          // (v - w) * (v - w) with w the value that v became,
#define PRODUCT 11        // v * w,
#define RESULT 12         // w * w
#define NEXT_LOW 13       // the range that the next mini-batch starts from
#define NEXT_HIGH 14
#define UPDATES 15        // mini-batches that the next range knows of

#ifndef STOCHASTIC
#define STOCHASTIC 0
#endif
#ifndef PER_CHANNEL
#define PER_CHANNEL 0
#endif

// A field of a tensor's record, for the 16 channels of a block.
#if PER_CHANNEL
#define FIELD(record, field, block) LOAD((record) + ((block) * BLOCK + (field)) * BLOCK)
#else
#define FIELD(record, field, block) ((V)((record)[field]))
#endif

// 1.5 * 2^23: adding and subtracting it rounds |t| < 2^22 to the nearest integer, halves to even
#define MAGIC 12582912.0f
#define ROUND_NEAREST(t) (((t) + MAGIC) - MAGIC)

// t = integer of v less the zero point, as floats: v / scale, kept within [bottom, top], rounded. A NaN stays a NaN.
// `bottom` and `top` are the format's least and most less the zero point; `uniform` is in [0, 1).
#define QUANTIZE_NEAREST(t, v, inverse, bottom, top)                               \
  t = (v) * (inverse);                                                             \
  t = t < (bottom) ? (bottom) : t;                                                 \
  t = t > (top) ? (top) : t;                                                       \
  t = ROUND_NEAREST(t);
#define QUANTIZE_STOCHASTIC(t, v, inverse, bottom, top, uniform)                   \
  t = (v) * (inverse);                                                             \
  t = t < (bottom) ? (bottom) : t;                                                 \
  t = t > (top) ? (top) : t;                                                       \
  {                                                                                \
    const V near_ = ROUND_NEAREST(t), floor_ = near_ - (near_ > t ? (V)1 : (V)0);  \
    t = floor_ + ((uniform) < t - floor_ ? (V)1 : (V)0);                           \
  }
#define DEQUANTIZE(t, scale) ((t) * (scale))

#if STOCHASTIC
#include "philox.h"
// A uniform number of [0, 1) for each lane, for the values that begin at number `first`, a multiple of 4, of example
// `example` of the mini-batch: the same whatever the device and the micro-batch.
#if LANES == 4
#define WORDS(first, example, tensor, step, seed) philox((uint4)((first) / 4, example, tensor, step), seed)
#define FLOATS(words) convert_float4(words)
#else
#define WORDS(first, example, tensor, step, seed) philox_row((first) / 4, example, tensor, step, seed)
#define FLOATS(words) convert_float16(words)
#endif
#define UNIFORM_FROM(uniform, first, example, tensor, step, seed)                  \
  const V uniform = FLOATS(WORDS(first, example, tensor, step, seed) >> 8) * 0x1p-24f;
#define UNIFORM(uniform, row, example, tensor, step, seed) \
  UNIFORM_FROM(uniform, (row) * BLOCK, example, tensor, step, seed)
#endif

// scale and zero point for [low, high], which contains 0; of type L, float or V
#define LEAST_SCALE 0x1p-100f
#define PARAMETERS(L, low, high, scale, zero, bits, symmetric)                     \
  {                                                                                \
    const float most_ = (float)((1 << ((bits) - 1)) - 1);                          \
    L width_ = (high) - (low);                                                     \
    if (symmetric) width_ = -(low) > (high) ? -(low) : (high);                     \
    scale = width_ / ((symmetric) ? most_ : 2.0f * most_ + 1.0f);                  \
    scale = scale < (L)LEAST_SCALE ? (L)LEAST_SCALE : scale;                       \
    zero = ROUND_NEAREST(-(low) / scale) - most_ - 1.0f;                           \
    if (symmetric) zero = (L)0;                                                    \
  }
