// Kernels over the m rows of each block, row by row: get_global_id(1) is the block, and a work-item handles `count` of
// its rows: on CPUs consecutive ones, on GPUs rows that lie apart, so that neighbouring work-items read neighbouring rows.
// Most of them write a Gradient (gradient.h).
#include "blocked.h"
#include "gradient.h"

#define ROWS_ARGUMENTS const int m, const int count

typedef struct { int block, start, stop, step; } Band;  // rows of a block from `start` on, before `stop`

INLINE Band band_of(const int m, const int count) {
#if VECTORS > 1
  return (Band){get_global_id(1), ITEM, m, (int)get_global_size(0) / VECTORS};
#else
  const int start = ITEM * count;
  return (Band){get_global_id(1), start, start + count < m ? start + count : m, 1};
#endif
}

// Offset of a row of a block that has m rows
INLINE size_t row_at(const int block, const int m, const int row) { return ((size_t)block * m + row) * BLOCK; }

typedef struct { int image, y, x; } Position;

// Where row `row` of images of height x width lies, by two divisions, which take GPUs long
INLINE Position position_of(const int row, const int height, const int width) {
  const int line = row / width, image = line / height;
  return (Position){image, line - image * height, row - line * width};
}

// Channels of a block, of `channels` in all
INLINE int channels_of(const int block, const int channels) {
  return channels - block * BLOCK < BLOCK ? channels - block * BLOCK : BLOCK;
}

// With PADDED, a kernel that doesn't keep the zeros of padding channels writes them by UNPADDED.
#if PADDED
#define PADDING_ARGUMENTS , const int channels
#define UNPADDED(v, block) (FIRST_CHANNEL + POSITIONS < (Ints)channels_of(block, channels) ? v : (V)0)
#else
#define PADDING_ARGUMENTS
#define UNPADDED(v, block) (v)
#endif

// Offset of one value: channel c of a row of a tensor that has m rows
INLINE size_t value_at(const int c, const size_t m, const size_t row) {
  return ((size_t)(c / BLOCK) * m + row) * BLOCK + c % BLOCK;
}
