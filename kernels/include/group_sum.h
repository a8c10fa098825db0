// Sums over the MEMBERS of a work-group that handle the same channels, in order. On CPUs a work-group has one member.
#define MEMBERS (GROUP / VECTORS)
#define IS_FIRST_MEMBER (get_local_id(0) < VECTORS)

// Local memory for group_sum, and for group_sums of `count` at once, declared by the kernel
#if GROUP > VECTORS
#define SEVERAL_LOCAL_SHARES(name, count) __local V name[(count) * GROUP]
#else
#define SEVERAL_LOCAL_SHARES(name, count) __local V *const name = 0
#endif
#define LOCAL_SHARES(name) SEVERAL_LOCAL_SHARES(name, 1)

// In two rounds: shares of the same channels become SUMMED sums, then one.
#if MEMBERS > 8
#define SUMMED 8
#else
#define SUMMED 1
#endif
INLINE void group_sums(V *v, const int count, __local V *shares) {
#if GROUP > VECTORS
  const int me = get_local_id(0), mine = me % VECTORS;
  UNROLL for (int n = 0; n < count; n++) shares[n * GROUP + me] = v[n];
  barrier(CLK_LOCAL_MEM_FENCE);
  if (me < SUMMED * VECTORS) {
    UNROLL for (int n = 0; n < count; n++) {
      V sum = shares[n * GROUP + me];
      UNROLL for (int i = 1; i < MEMBERS / SUMMED; i++) sum += shares[n * GROUP + me + i * SUMMED * VECTORS];
      shares[n * GROUP + me] = sum;
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  UNROLL for (int n = 0; n < count; n++) {
    v[n] = shares[n * GROUP + mine];
    UNROLL for (int i = 1; i < SUMMED; i++) v[n] += shares[n * GROUP + i * VECTORS + mine];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
#endif
}
INLINE V group_sum(V v, __local V *shares) {
  group_sums(&v, 1, shares);
  return v;
}
