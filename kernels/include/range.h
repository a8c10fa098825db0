// Integers that stand for real numbers: see edgelearn/ops/formats.py.
// A range record is a block of 16 floats. Records of formats with a range for each channel (PER_CHANNEL) have, for
// each 16 channels, such a block for each field: [channels/16][16 fields][16].

#include "range_fields.h"

#ifndef STOCHASTIC
#define STOCHASTIC 0
#endif
#ifndef PER_CHANNEL
#define PER_CHANNEL 0
#endif

// Records have 16 fields, whatever the vector width.
typedef float16 Record;
typedef Record __attribute__((aligned(4))) Record_in_memory;
INLINE Record load_record(__global const float *pointer) { return *(__global const Record_in_memory *)pointer; }
INLINE void store_record(__global float *pointer, const Record record) {
  *(__global Record_in_memory *)pointer = record;
}

// Where a work-item reads the record of an input
#define RANGE_CHANNEL (PER_CHANNEL ? FIRST_CHANNEL : 0)
#define RANGE_START(x) (START(x) + RANGE_CHANNEL)

// A field of a tensor's record, for the channels of a block
INLINE V field(input range, const int number, const int block) {
#if PER_CHANNEL
  return load(range + (block * BLOCK + number) * BLOCK);
#else
  return (V)range[number];
#endif
}

// 1.5 * 2^23: adding and subtracting it rounds |t| < 2^22 to the nearest integer, halves to even
#define ROUND_SHIFT 12582912.0f
INLINE V nearest(const V t) { return (t + ROUND_SHIFT) - ROUND_SHIFT; }
INLINE Record nearest_of_record(const Record t) { return (t + ROUND_SHIFT) - ROUND_SHIFT; }

// t, kept within [lowest, highest]: the format's least and most integer less the zero point. A NaN stays a NaN; on
// NVIDIA's GPUs it becomes `lowest`, which takes fewer instructions, and is noticed where values are observed.
INLINE V bounded(const V t, const V lowest, const V highest) {
#ifdef __NV_CL_C_VERSION
  return fmin(fmax(t, lowest), highest);
#else
  const V above = t < lowest ? lowest : t;
  return above > highest ? highest : above;
#endif
}
INLINE Record scaled_record(const Record v, const Record inverse, const Record lowest, const Record highest) {
  Record t = v * inverse;
  t = t < lowest ? lowest : t;
  return t > highest ? highest : t;
}

// The next integer that is not above t; in one instruction where the compiler says so
#if !defined(FLOOR) && defined(__has_builtin)
#if __has_builtin(__builtin_elementwise_floor)
#define FLOOR __builtin_elementwise_floor
#endif
#endif
INLINE V whole_below(const V t) {
#ifdef FLOOR
  return FLOOR(t);
#else
  const V near = nearest(t);
  return near - (near > t ? (V)1 : (V)0);
#endif
}

// The integer of v less the zero point, as a float. Rounding to nearest ignores the `uniform` number of (0, 1), which
// stochastic rounding adds before it takes the integer below. A NaN stays a NaN, as in `bounded`.
INLINE V quantized(const V v, const V inverse, const V lowest, const V highest, const V uniform) {
#pragma OPENCL FP_CONTRACT OFF
#if STOCHASTIC
  return bounded(whole_below(v * inverse + uniform), lowest, highest);
#else
  return nearest(bounded(v * inverse, lowest, highest));
#endif
}

// Uniform numbers of (0, 1) for the values of DRAWN_ROWS rows: CPUs draw those of eight rows side by side.
#if VECTOR_WIDTH == 4
#define DRAWN_ROWS 1
typedef uint RowNumbers;
#define ROW_STEPS 0
#else
#define DRAWN_ROWS 8
typedef uint8 RowNumbers;
#define ROW_STEPS ((uint8)(0, 1, 2, 3, 4, 5, 6, 7))
#endif
typedef struct { V of[DRAWN_ROWS]; } Uniform;

#if STOCHASTIC
#include "philox.h"
// Row i begins with value number first[i], a multiple of VECTOR_WIDTH, of example number example[i] of the mini-batch.
// The numbers are the same whatever the device and the micro-batch: value i has half number i % 8, the low ones first,
// of the four words of counter (i / 8, example, tensor, step). A half of 16 bits h stands for (h + 0.5) / 65536: a value
// is rounded up with a probability that is off by 2^-17 at most.
INLINE Uniform uniform_numbers(const RowNumbers first, const RowNumbers example, const uint tensor, const uint step,
                               const uint2 seed) {
#if VECTOR_WIDTH == 4
  const uint4 words = philox((uint4)(first / 8, example, tensor, step), seed, FEW_ROUNDS);
  const uint2 own = first & 4 ? words.hi : words.lo;
  return (Uniform){{convert_float4((uint4)(own.x & 0xFFFF, own.x >> 16, own.y & 0xFFFF, own.y >> 16)) * 0x1p-16f
                    + 0x1p-17f}};
#else
  const DrawnRows drawn = philox_rows(first / 8, example, tensor, step, seed);
  Uniform uniform;
  UNROLL for (int i = 0; i < DRAWN_ROWS; i++)
    uniform.of[i] = convert_float16(convert_int16(drawn.of[i])) * 0x1p-16f + 0x1p-17f;
  return uniform;
#endif
}
#endif

// Scales and zero points of ranges [low, high], which contain 0
typedef struct { Record scale, zero; } Parameters;
#define LEAST_SCALE 0x1p-100f
INLINE Parameters parameters_of(const Record low, const Record high, const int bits, const int symmetric) {
  const float most = (float)((1 << (bits - 1)) - 1);
  Record width = high - low;
  if (symmetric) width = -low > high ? -low : high;
  Record scale = width / (symmetric ? most : 2.0f * most + 1.0f);
  scale = scale < (Record)LEAST_SCALE ? (Record)LEAST_SCALE : scale;
  Record zero = nearest_of_record(-low / scale) - most - 1.0f;
  if (symmetric) zero = (Record)0;
  return (Parameters){scale, zero};
}
