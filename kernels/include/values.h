// Number formats of values in memory, and how halves become floats and back.
#include "stored_types.h"

typedef VECTOR(ushort) Halves;

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

// bfloat16 is the upper half of a float. Rounded to nearest, ties to even; a NaN stays one.
INLINE Ints bfloats_of(const V v) {
  const Ints bits = VECTOR(as_int)(v), rounded = bits + 0x7FFF + ((bits >> 16) & 1);
  return (((bits & 0x7FFFFFFF) > 0x7F800000 ? bits | 0x400000 : rounded) >> 16) & 0xFFFF;
}
INLINE V of_bfloats(const Ints bits) { return VECTOR(as_float)(bits << 16); }
#if VECTOR_WIDTH == 4
INLINE V load_bfloat(__global const ushort *pointer) {
  const uint2 pairs = *(__global const uint2 *)pointer;
  return as_float4((uint4)(pairs.x << 16, pairs.x & 0xFFFF0000, pairs.y << 16, pairs.y & 0xFFFF0000));
}
#else
INLINE V load_bfloat(__global const ushort *pointer) {
  return of_bfloats(VECTOR(convert_int)(*(__global const Halves *)pointer));
}
#endif

INLINE Ints load_bits(__global const ushort *pointer) {
  return VECTOR(convert_int)(*(__global const Halves *)pointer);
}
INLINE V load_half(__global const ushort *pointer) { return of_halves(load_bits(pointer)); }
INLINE void store_half(__global ushort *pointer, const Ints half_bits) {
  *(__global Halves *)pointer = VECTOR(convert_ushort)(half_bits);
}

// Activations, their gradients and the kernels of linear layers are VALUES (edgelearn/ops/emit.py): floats, or
// halves that are read and written as floats. INPUT_VALUES(x) and OUTPUT_VALUES(x) declare such arguments.
#ifndef VALUES
#define VALUES FLOAT32
#endif
#define OVERLOADED __attribute__((overloadable))
#if VALUES == FLOAT32
typedef float Value;
INLINE float float_of(const float v) { return v; }
INLINE Value rounded_value(const float v) { return v; }
#else
typedef ushort Value;
#if VALUES == BFLOAT16
INLINE V OVERLOADED load(__global const ushort *pointer) { return load_bfloat(pointer); }
#if CONVERTS_BFLOATS && VECTOR_WIDTH == 4  // NVIDIA's GPUs from compute capability 8.0 on round two at a time
INLINE uint pair_of_bfloats(const float low, const float high) {
  uint pair;
  __asm__("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
INLINE void OVERLOADED store(__global ushort *pointer, const V v) {
  *(__global uint2 *)pointer = (uint2)(pair_of_bfloats(v.x, v.y), pair_of_bfloats(v.z, v.w));
}
#else
INLINE void OVERLOADED store(__global ushort *pointer, const V v) { store_half(pointer, bfloats_of(v)); }
#endif
INLINE float float_of(const ushort v) { return as_float((int)v << 16); }
INLINE Value rounded_value(const float v) { return (Value)bfloats_of((V)v).s0; }
#elif VECTOR_WIDTH == 4
INLINE V OVERLOADED load(__global const ushort *pointer) { return vload_half4(0, (__global const half *)pointer); }
INLINE void OVERLOADED store(__global ushort *pointer, const V v) {
  vstore_half4_rte(v, 0, (__global half *)pointer);
}
INLINE float float_of(const ushort v) { return vload_half(0, (const half *)&v); }
INLINE Value rounded_value(const float v) { return (Value)halves_of((V)v).s0; }
#else
INLINE V OVERLOADED load(__global const ushort *pointer) { return load_half(pointer); }
INLINE void OVERLOADED store(__global ushort *pointer, const V v) { store_half(pointer, halves_of(v)); }
INLINE float float_of(const ushort v) { const V all = of_halves((Ints)v); return all.s0; }
INLINE Value rounded_value(const float v) { return (Value)halves_of((V)v).s0; }
#endif
#endif
INLINE V OVERLOADED load(__global const float *pointer) { return *(__global const V_in_memory *)pointer; }
INLINE void OVERLOADED store(__global float *pointer, const V v) { *(__global V_in_memory *)pointer = v; }

typedef __global const Value *restrict input_values;
typedef __global Value *restrict output_values;
#define INPUT_VALUES(x) INPUT_OF(Value, x)
#define OUTPUT_VALUES(x) OUTPUT_OF(Value, x)

// Factors of products, rounded to the 11 bits of TF32 where plain code stands for the matrix units; ties go away from 0.
#ifndef TF32
#define TF32 0
#endif
#if TF32
INLINE float OVERLOADED factor(const float v) { return as_float((as_int(v) + 0x1000) & ~0x1FFF); }
INLINE V OVERLOADED factor(const V v) { return VECTOR(as_float)((VECTOR(as_int)(v) + 0x1000) & ~0x1FFF); }
#else
INLINE float OVERLOADED factor(const float v) { return v; }
INLINE V OVERLOADED factor(const V v) { return v; }
#endif
