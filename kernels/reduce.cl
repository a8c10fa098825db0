// Sums over rows.
#include "blocked.h"

// sums[group]: (add ? what was there : 0) + the sum of each channel over the `count` rows of a group
KERNEL channel_sums(INPUT(x), OUTPUT(sums), const int m, const int blocks, const int count, const int add) {
  FROM(x) INTO(sums)
  const int block = get_global_id(0), group = get_global_id(1);
  if (block >= blocks) return;
  const int start = group * count, stop = start + count < m ? start + count : m;
  const size_t at = ((size_t)group * blocks + block) * BLOCK;
  V sum = add ? LOAD(sums + at) : (V)0;
  for (int row = start; row < stop; row++) sum += LOAD(x + ((size_t)block * m + row) * BLOCK);
  STORE(sums + at, sum);
}
