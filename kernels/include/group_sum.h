// Sums over the MEMBERS of a work-group that have the same lanes, in order: GROUP_SUM(v) makes v their sum. Those of one
// member LEAD. On CPUs a work-group has one member.
#define MEMBERS (GROUP / PARTS)
#define LEADS (get_local_id(0) < PARTS)
#if GROUP > PARTS
#define GROUP_SUM_MEMORY __local V shares_[GROUP];
#define GROUP_SUM(v)                                                              \
  {                                                                               \
    shares_[get_local_id(0)] = v;                                                 \
    barrier(CLK_LOCAL_MEM_FENCE);                                                 \
    v = shares_[FIRST_LANE / LANES];                                              \
    for (int i_ = 1; i_ < MEMBERS; i_++) v += shares_[i_ * PARTS + FIRST_LANE / LANES]; \
    barrier(CLK_LOCAL_MEM_FENCE);                                                 \
  }
#else
#define GROUP_SUM_MEMORY
#define GROUP_SUM(v)
#endif
