// Sums over rows and over partial results.
#include "blocked.h"

// total = (add ? total : 0) + the sum of `count` partial arrays of `blocks` blocks
KERNEL sum_partials(INPUT(partials), OUTPUT(total), const int blocks, const int count, const int add,
                    const int chunk) {
  FROM(partials) INTO(total)
  const int stop = (get_global_id(0) + 1) * chunk < blocks ? (get_global_id(0) + 1) * chunk : blocks;
  for (int b = get_global_id(0) * chunk; b < stop; b++) {
    V sum = add ? LOAD(total + b * BLOCK) : (V)0;
    for (int p = 0; p < count; p++) sum += LOAD(partials + ((size_t)p * blocks + b) * BLOCK);
    STORE(total + b * BLOCK, sum);
  }
}

// partials[group][channels]: the sum of each channel over the rows of a group
KERNEL channel_sums(INPUT(x), OUTPUT(partials), const int m, const int blocks, const int count) {
  FROM(x) INTO(partials)
  const int block = get_global_id(0), group = get_global_id(1);
  if (block >= blocks) return;
  const int start = group * count, stop = start + count < m ? start + count : m;
  V sum = (V)0;
  for (int row = start; row < stop; row++) sum += LOAD(x + ((size_t)block * m + row) * BLOCK);
  STORE(partials + ((size_t)group * blocks + block) * BLOCK, sum);
}
