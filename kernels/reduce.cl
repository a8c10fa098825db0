// Sums over rows.
#include "blocked.h"
#include "group_sum.h"

// sums[group]: (add ? what was there : 0) + the sum of each channel over the rows of a group, `count` a member
KERNEL channel_sums(INPUT_VALUES(x), OUTPUT(sums), const int m, const int blocks, const int count, const int add) {
  LOCAL_SHARES(shares);
  input_values x = ITEM_START(x);
  const int group = get_group_id(0), block = get_global_id(1), start = group * MEMBERS * count;
  const int stop = start + MEMBERS * count < m ? start + MEMBERS * count : m;
  V sum = (V)0;
  for (int row = start + ITEM % MEMBERS; row < stop; row += MEMBERS) sum += load(x + ((size_t)block * m + row) * BLOCK);
  sum = group_sum(sum, shares);
  output total = ITEM_START(sums) + ((size_t)group * blocks + block) * BLOCK;
  if (IS_FIRST_MEMBER) store(total, add ? sum + load(total) : sum);
}
