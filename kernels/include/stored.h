// The formats that tensors are stored in: the numbers of Storage in edgelearn/ops/formats.py, and how vectors of
// values are read and written. Integers of 8 bits stand for scale * (q - zero), by the record of their range
// (range.h).
//   STORED is the format of a kernel's stored input, WRITTEN that of its result.
#define FLOAT32 0
#define FLOAT16 1
#define INT8 2

#ifndef STORED
#define STORED FLOAT32
#endif
#ifndef WRITTEN
#define WRITTEN FLOAT32
#endif
#include "range.h"

typedef VECTOR(char) Chars;
typedef VECTOR(short) Shorts;
typedef VECTOR(ushort) Halves;
typedef __global const char *restrict bytes;

// IEEE 754 half precision by integer arithmetic: devices without cl_khr_fp16 have no type for it, and PoCL does not
// inline vload_half and vstore_half.
#define HALF_INFINITY 0x7C00

// The bits of the halves nearest to v, ties to even: from 65520 on an infinity, below 2^-14 a multiple of 2^-24
INLINE Ints halves_of(const V v) {
  const Ints bits = VECTOR(as_int)(v), sign = (bits >> 16) & 0x8000, size = bits & 0x7FFFFFFF;
  const Ints normal = (size - 0x38000000 + 0xFFF + ((size >> 13) & 1)) >> 13;
  // 2^-24 is the last place of 1.5 * 2^-1: the sum is rounded there
  const Ints small = VECTOR(as_int)(VECTOR(as_float)(size) + (V)0.75f) - 0x3F400000;
  Ints half_bits = size < 0x38800000 ? small : normal;
  half_bits = size < 0x477FF000 ? half_bits : (Ints)HALF_INFINITY;  // 65520 is the first that becomes one
  half_bits = size > 0x7F800000 ? (Ints)0x7E00 : half_bits;
  return sign | half_bits;
}

// The values of halves, given their bits
INLINE V of_halves(const Ints half_bits) {
  const Ints size = half_bits & 0x7FFF, sign = (half_bits & 0x8000) << 16;
  const Ints normal = (size << 13) + (size < HALF_INFINITY ? (Ints)0x38000000 : (Ints)0x70000000);
  const Ints small = VECTOR(as_int)(VECTOR(convert_float)(size) * 0x1p-24f);
  return VECTOR(as_float)(sign | (size < 0x400 ? small : normal));
}

INLINE V load_half(__global const ushort *pointer) {
  return of_halves(VECTOR(convert_int)(*(__global const Halves *)pointer));
}
INLINE void store_half(__global ushort *pointer, const Ints half_bits) {
  *(__global Halves *)pointer = VECTOR(convert_ushort)(half_bits);
}

// Integers are read through 16 bits, so that compilers see that products fit instructions for pairs of those.
INLINE Ints load_int8(bytes pointer) {
  return VECTOR(convert_int)(VECTOR(convert_short)(*(__global const Chars *)pointer));
}
INLINE Ints load_centred(bytes pointer, const short zero) {
  return VECTOR(convert_int)(VECTOR(convert_short)(*(__global const Chars *)pointer) - (Shorts)zero);
}
INLINE V dequantized(bytes pointer, const V scale, const V zero) {
  return (VECTOR(convert_float)(load_int8(pointer)) - zero) * scale;
}
// `q`: whole numbers as floats
INLINE void store_int8(__global char *pointer, const V q) {
  *(__global Chars *)pointer = VECTOR(convert_char)(VECTOR(as_int)(q + ROUND_SHIFT) - (Ints)0x4B400000);
}

// A stored input, bound by INPUT_STORED(x) in a kernel's arguments and STORED_START(x), or STORED_JOB(x, word) for
// STORED_WORDS words of a job. Its record is there for INT8 alone.
#if STORED == INT8
typedef struct { bytes values; input range; } Stored;
#define STORED_WORDS 2
#define INPUT_STORED(x) INPUT_OF(char, x), INPUT(x##_range)
#define STORED_START(x) ((Stored){ITEM_START(x), RANGE_START(x##_range)})
#define STORED_JOB(x, word) \
  ((Stored){JOB_ITEM_START(x, word), START_AT(x##_range, job.words[(word) + 1]) + RANGE_CHANNEL})
#else
#if STORED == FLOAT16
typedef struct { __global const ushort *restrict values; } Stored;
#define INPUT_STORED(x) INPUT_OF(ushort, x)
#else
typedef struct { input values; } Stored;
#define INPUT_STORED(x) INPUT(x)
#endif
#define STORED_WORDS 1
#define STORED_START(x) ((Stored){ITEM_START(x)})
#define STORED_JOB(x, word) ((Stored){JOB_ITEM_START(x, word)})
#endif

typedef struct { V scale, zero; } Decoding;  // of the channels of a block; INT8 alone has one

INLINE Decoding decoding_of(const Stored x, const int block) {
#if STORED == INT8
  return (Decoding){field(x.range, SCALE_OF, block), field(x.range, ZERO, block)};
#else
  return (Decoding){(V)1, (V)0};
#endif
}

// The value at `at`, an expression so that the compiler may contract it with a sum it is part of
#if STORED == INT8
#define LOAD_STORED(x, at, decoding) \
  ((VECTOR(convert_float)(load_int8((x).values + (at))) - (decoding).zero) * (decoding).scale)
#elif STORED == FLOAT16
#define LOAD_STORED(x, at, decoding) load_half((x).values + (at))
#else
#define LOAD_STORED(x, at, decoding) load((x).values + (at))
#endif

// The type of a written value
#if WRITTEN == INT8
typedef char Written;
#elif WRITTEN == FLOAT16
typedef ushort Written;
#else
typedef float Written;
#endif
