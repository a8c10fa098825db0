// The formats that tensors are stored in: the numbers of Storage in edgelearn/ops/formats.py, and how vectors of
// values are read and written. Integers of 8 bits stand for scale * (q - zero), by the record of their range
// (range.h).
//   STORED is the format of a kernel's stored input, WRITTEN that of its result.
#ifndef STORED
#define STORED FLOAT32
#endif
#ifndef WRITTEN
#define WRITTEN FLOAT32
#endif
#include "range.h"

typedef VECTOR(char) Chars;
typedef VECTOR(short) Shorts;
typedef __global const char *restrict bytes;

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
// The whole numbers q + zero, all of them floats
INLINE void store_int8(__global char *pointer, const V q, const V zero) {
  *(__global Chars *)pointer = VECTOR(convert_char)(VECTOR(as_int)(q + (zero + ROUND_SHIFT)) - (Ints)0x4B400000);
}
// The whole numbers nearest to t, as by `nearest`, plus zero: with ROUND_SHIFT they are the lowest bits of a float.
INLINE void store_nearest_above(__global char *pointer, const V t, const Ints zero) {
  *(__global Chars *)pointer = VECTOR(convert_char)(VECTOR(as_int)(t + ROUND_SHIFT) - ((Ints)0x4B400000 - zero));
}
INLINE void store_nearest_int8(__global char *pointer, const V t, const float zero) {
  store_nearest_above(pointer, t, (Ints)(int)zero);
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
#if STORED == FLOAT16 || STORED == BFLOAT16
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

// As INPUT_IF
#define STORED_IF(flag, x) JOIN(STORED_IF_, flag)(x)
#define STORED_IF_0(x)
#define STORED_IF_1(x) , INPUT_STORED(x)

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
#elif STORED == BFLOAT16
#define LOAD_STORED(x, at, decoding) load_bfloat((x).values + (at))
#else
#define LOAD_STORED(x, at, decoding) load((x).values + (at))
#endif

// The type of a written value
#if WRITTEN == INT8
typedef char Written;
#elif WRITTEN == FLOAT16 || WRITTEN == BFLOAT16
typedef ushort Written;
#else
typedef float Written;
#endif
