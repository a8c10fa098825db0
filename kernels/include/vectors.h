// What a work-item handles at a time, in other types: the LANES of a V as 8, 16 and 32 bits wide integers, and tensors of
// bytes.
#if LANES == 4
typedef char4 Q;
typedef short4 S;
typedef ushort4 H;
typedef int4 A;
#define TO_CHARS convert_char4
#define TO_SHORTS convert_short4
#define TO_INTS convert_int4
#define TO_FLOATS convert_float4
#define TO_HALVES convert_ushort4
#define BITS_OF as_int4
#define OF_BITS as_float4
#else
typedef char16 Q;
typedef short16 S;
typedef ushort16 H;
typedef int16 A;
#define TO_CHARS convert_char16
#define TO_SHORTS convert_short16
#define TO_INTS convert_int16
#define TO_FLOATS convert_float16
#define TO_HALVES convert_ushort16
#define BITS_OF as_int16
#define OF_BITS as_float16
#endif
typedef __global const char *restrict bytes;

#define INPUT_Q(x) INPUT_WORDS(char, x)
#define OUTPUT_Q(x) __global char *restrict x##_memory, const uint x##_start
#define FROM_Q(x) bytes x = x##_memory + (size_t)x##_start * 4 * BLOCK;
#define INTO_Q(x) __global char *restrict x = x##_memory + (size_t)x##_start * 4 * BLOCK;
#define LOAD_Q(pointer) TO_INTS(TO_SHORTS(*(__global const Q *)(pointer)))
