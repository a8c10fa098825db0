// The blocked matrix: every tensor is rows x channels, stored as [channels/16][rows][16]. Channels are padded with
// zeros to a multiple of 16, and every kernel keeps the padding zero.
//
// Macros hold what the host sets when it compiles a kernel (sizes, variants) and bind arguments that only some variants
// have. Everything else is an inline function.
//
// Arithmetic uses plain operators and no vector built-ins (vload16, fma, min, max): PoCL 3.0 does not inline those on
// CPUs, which costs a factor of five to ten.

// All functions are inlined, and built-in ones are compiled for the same processor: no vector is passed that a processor
// without registers of its size would pass in another way, as this remark of Clang's warns.
#if defined(__clang__) && defined(__x86_64__)
#pragma clang diagnostic ignored "-Wpsabi"
#endif

#define BLOCK 16
#define INLINE static inline __attribute__((always_inline))
#define UNROLL __attribute__((opencl_unroll_hint))

// A work-item handles VECTOR_WIDTH channels of a block: on CPUs all 16, a vector register; on GPUs 4, so that
// neighbouring work-items read neighbouring words. VECTORS work-items share a block. ITEM is the number of the block or
// tile, FIRST_CHANNEL the first channel of the block that this work-item handles.
#ifndef VECTOR_WIDTH
#define VECTOR_WIDTH 16
#endif
#define VECTORS (BLOCK / VECTOR_WIDTH)

// Before a loop over rows: on NVIDIA's GPUs several of them are read before the first is used. Intel's compiler warns of the
// hint where it can't follow it.
#if GROUP > VECTORS && defined(__NV_CL_C_VERSION)
#define SEVERAL __attribute__((opencl_unroll_hint(4)))
#define MANY __attribute__((opencl_unroll_hint(8)))
#else
#define SEVERAL
#define MANY
#endif

#define ITEM ((int)get_global_id(0) / VECTORS)
#ifndef FIRST_CHANNEL
#define FIRST_CHANNEL ((int)get_global_id(0) % VECTORS * VECTOR_WIDTH)
#endif

// VECTOR(float) is the vector type of that width, VECTOR(convert_int) the conversion to such a vector.
#define JOIN_EXPANDED(name, width) name##width
#define JOIN(name, width) JOIN_EXPANDED(name, width)
#define VECTOR(name) JOIN(name, VECTOR_WIDTH)
typedef VECTOR(float) V;
typedef VECTOR(int) Ints;
#if VECTOR_WIDTH == 16
typedef V __attribute__((aligned(4))) V_in_memory;
#else
typedef V V_in_memory;
#endif
#if VECTOR_WIDTH == 4
#define POSITIONS ((Ints)(0, 1, 2, 3))
#else
#define POSITIONS ((Ints)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15))
#endif
#define ELEMENT(vector, i) ((float *)&(vector))[i]

typedef __global const float *restrict input;
typedef __global float *restrict output;

// A kernel gets a tensor as the memory it lies in and its offset there, in units of 64 bytes (a block of 16 floats).
// INPUT(x) and OUTPUT(x) declare the two arguments. START(x) is a pointer to the tensor, ITEM_START(x) to the first
// channel that this work-item handles. Sub-buffers would do the same, but NVIDIA's driver (580) crashes when
// overlapping sub-buffers are released.
#define INPUT_OF(type, x) __global const type *restrict x##_memory, const uint x##_start
#define OUTPUT_OF(type, x) __global type *restrict x##_memory, const uint x##_start
#define INPUT(x) INPUT_OF(float, x)
#define OUTPUT(x) OUTPUT_OF(float, x)

// An argument after others that only some variants have: FLAG is 0 or 1.
#define INPUT_OF_IF(flag, type, x) JOIN(INPUT_IF_, flag)(type, x)
#define INPUT_IF_0(type, x)
#define INPUT_IF_1(type, x) , INPUT_OF(type, x)
#define INPUT_IF(flag, x) INPUT_OF_IF(flag, float, x)
#define OUTPUT_IF(flag, x) JOIN(OUTPUT_IF_, flag)(x)
#define OUTPUT_IF_0(x)
#define OUTPUT_IF_1(x) , OUTPUT(x)
#define START_AT(x, offset) (x##_memory + (size_t)(offset) * (4 * BLOCK / sizeof(*x##_memory)))
#define START(x) START_AT(x, x##_start)
#define ITEM_START(x) (START(x) + FIRST_CHANNEL)
#define POINTER_IF(flag, x) JOIN(POINTER_IF_, flag)(x)  // ITEM_START of an argument that only some variants have, else 0
#define POINTER_IF_0(x) 0
#define POINTER_IF_1(x) ITEM_START(x)

#include "values.h"

// On CPUs a work-group is one work-item; on GPUs it has GROUP.
#ifndef GROUP
#define GROUP 1
#endif
#define KERNEL __kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
