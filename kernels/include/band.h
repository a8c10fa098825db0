// A work-item does `count` of the m rows of one block: rows [start, stop).
#define BAND                                                                      \
  const int group = ITEM, block = get_global_id(1);                   \
  const int start = group * count, stop = start + count < m ? start + count : m;
