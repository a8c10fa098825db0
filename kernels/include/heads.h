// Attention over heads of channels: macros that its kernels are compiled with, their arguments, and rows of a head.
// Rows are image * steps + step, channels head * HEAD + channel, of keys and values those of the key head that `share`
// heads of queries read.
#include "elementwise.h"

#ifndef MASKED
#define MASKED 0
#endif
#if MASKED
#define MASK_START START(mask)
#else
#define MASK_START 0
#endif
#ifndef CAUSAL  // of kernels that don't attend
#define CAUSAL 0
#endif
#define NOTHING -1e30f
#define INPUT_MASK INPUT_OF_IF(MASKED, Value, mask)
#define LEAST(a, b) ((a) < (b) ? (a) : (b))

// n images with t queries and s keys each
#define ATTENTION_ARGUMENTS const int n, const int t, const int s, const int heads, const int share, const float scale

// Write a head's channels of one row; the last head keeps the padding zero.
INLINE void store_head(__global Value *y, const float *values, const int head, const int heads, const size_t m,
                       const size_t row) {
  UNROLL for (int c = 0; c < HEAD; c++) y[value_at(head * HEAD + c, m, row)] = rounded_value(values[c]);
  if (head == heads - 1)
    for (int c = heads * HEAD; c % BLOCK != 0; c++) y[value_at(c, m, row)] = 0;
}

// 1 if there is a key `key`, of s, which the mask doesn't hide
INLINE int is_there(__global const Value *mask, const int n, const int image, const int key, const int s) {
#if MASKED
  return key < s && float_of(mask[value_at(key, n, image)]) != 0.0f;
#else
  return key < s;
#endif
}

// 1 if the query sees a key that is `there`
INLINE int sees(const int there, const int key, const int query) {
#if CAUSAL
  return there && key <= query;
#else
  return there;
#endif
}
