// The blocked matrix: every tensor is rows x channels, stored as [channels/16][rows][16].
// A vector V holds the 16 channels of one row and block. Channels are padded with zeros to a multiple of 16,
// and every kernel keeps them zero.
//
// Why plain operators and no built-ins (vload16, fma, min, max): PoCL 3.0 does not inline its built-ins on CPUs,
// which costs five to ten times.

#define BLOCK 16

// A work-item handles LANES of a block's channels: all of them on CPUs, a vector register's worth; 4 on GPUs, so that
// neighbouring work-items read neighbouring words. PARTS work-items share a block: number ITEM, lanes from FIRST_LANE.
#ifndef LANES
#define LANES BLOCK
#endif
#define PARTS (BLOCK / LANES)
#define ITEM ((int)get_global_id(0) / PARTS)
#ifndef FIRST_LANE
#define FIRST_LANE ((int)get_global_id(0) % PARTS * LANES)
#endif
#if LANES == 4
typedef float4 V, V_unaligned;
#else
typedef float16 V;
typedef float16 __attribute__((aligned(4))) V_unaligned;
#endif
typedef __global const float *restrict input;
typedef __global float *restrict output;

// A kernel gets the memory that a tensor lies in and where it starts there, in blocks: INPUT(x) in its arguments,
// FROM(x) in its body, and x is a pointer to its first lane there; OUTPUT and INTO for what it writes. FROM_WORDS takes
// the start itself, for what isn't read lane by lane. Sub-buffers would do the same, but NVIDIA's driver (580) crashes
// when sub-buffers that overlap are released.
#define INPUT_WORDS(type, x) __global const type *restrict x##_memory, const uint x##_start
#define INPUT(x) INPUT_WORDS(float, x)
#define OUTPUT(x) __global float *restrict x##_memory, const uint x##_start
#define FROM_WORDS(type, x) __global const type *restrict x = x##_memory + (size_t)x##_start * BLOCK;
#define FROM(x) input x = x##_memory + (size_t)x##_start * BLOCK + FIRST_LANE;
#define INTO_WORDS(x) output x = x##_memory + (size_t)x##_start * BLOCK;
#define INTO(x) output x = x##_memory + (size_t)x##_start * BLOCK + FIRST_LANE;

#define LOAD(pointer) (*(__global const V_unaligned *)(pointer))
#define STORE(pointer, value) (*(__global V_unaligned *)(pointer) = (value))
#define LANE(vector, lane) ((float *)&(vector))[lane]

#define UNROLL __attribute__((opencl_unroll_hint))

// One work-item per tile. On CPUs a work-group is one tile; GPUs run GROUP tiles a work-group.
#ifndef GROUP
#define GROUP 1
#endif
#define KERNEL __kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
