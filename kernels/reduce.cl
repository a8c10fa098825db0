// Sums over rows.
#include "blocked.h"
#include "group_sum.h"

// sums[group]: (add ? what was there : 0) + the sum of each channel over the rows of a group, `count` a member
KERNEL channel_sums(INPUT(x), OUTPUT(sums), const int m, const int blocks, const int count, const int add) {
  FROM(x) INTO(sums)
  GROUP_SUM_MEMORY
  const int group = get_group_id(0), block = get_global_id(1), start = group * MEMBERS * count;
  const int stop = start + MEMBERS * count < m ? start + MEMBERS * count : m;
  V sum = (V)0;
  for (int row = start + ITEM % MEMBERS; row < stop; row += MEMBERS) sum += LOAD(x + ((size_t)block * m + row) * BLOCK);
  GROUP_SUM(sum)
  output total = sums + ((size_t)group * blocks + block) * BLOCK;
  if (LEADS) STORE(total, add ? sum + LOAD(total) : sum);
}
