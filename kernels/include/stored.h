// A tensor that is read as it is stored. STORED: 0 as floats; 1 as halves; 2 as integers, with the record of their range.
// INPUT_STORED(x) in a kernel's arguments, FROM_STORED(x) in its body (or JOB_STORED, for STORED_WORDS words of a job),
// STORED_BLOCK once the block is known, then LOAD_STORED(x, where).
#ifndef STORED
#define STORED 0
#endif
#include "vectors.h"
#include "half.h"
#include "quantize.h"

#if STORED == 2
#define STORED_WORDS 2
#define INPUT_STORED(x) INPUT_Q(x), INPUT(x##_range)
#define FROM_STORED(x) bytes x = x##_memory + (size_t)x##_start * 4 * BLOCK + FIRST_LANE; RANGE_OF(x, x##_range_start)
#define JOB_STORED(x, word)                                                        \
  bytes x = x##_memory + (size_t)job[word] * 4 * BLOCK + FIRST_LANE;               \
  RANGE_OF(x, job[(word) + 1])
#if PER_CHANNEL
#define RANGE_OF(x, start) input x##_range = x##_range_memory + (size_t)(start) * BLOCK + FIRST_LANE;
#else
#define RANGE_OF(x, start) input x##_range = x##_range_memory + (size_t)(start) * BLOCK;
#endif
#define STORED_BLOCK(x, block)                                                     \
  const V x##_step = FIELD(x##_range, SCALE_OF, block), x##_zero = FIELD(x##_range, ZERO, block);
#define LOAD_STORED(x, at) ((TO_FLOATS(LOAD_Q(x + (at))) - x##_zero) * x##_step)
#elif STORED == 1
#define STORED_WORDS 1
#define INPUT_STORED(x) INPUT_WORDS(ushort, x)
#define HALVES_AT(x, start) __global const ushort *restrict x = x##_memory + (size_t)(start) * 2 * BLOCK + FIRST_LANE;
#define FROM_STORED(x) HALVES_AT(x, x##_start)
#define JOB_STORED(x, word) HALVES_AT(x, job[word])
#define STORED_BLOCK(x, block)
#define LOAD_STORED(x, at) LOAD_HALVES(x + (at))
#else
#define STORED_WORDS 1
#define INPUT_STORED(x) INPUT(x)
#define FROM_STORED(x) FROM(x)
#define JOB_STORED(x, word) JOB_INPUT(x, word)
#define STORED_BLOCK(x, block)
#define LOAD_STORED(x, at) LOAD(x + (at))
#endif
