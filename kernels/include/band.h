// A work-item does `count` of the m rows of one block: rows [start, stop).
#define BAND                                                                      \
  const int group = get_global_id(0), block = get_global_id(1);                   \
  const int start = group * count, stop = start + count < m ? start + count : m;
