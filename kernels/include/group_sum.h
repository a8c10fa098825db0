// Sums over the MEMBERS of a work-group that handle the same channels, in order. On CPUs a work-group has one member.
#define MEMBERS (GROUP / VECTORS)
#define IS_FIRST_MEMBER (get_local_id(0) < VECTORS)

// Before a loop of a member over rows: on NVIDIA's GPUs several are read before the first is added. Intel's compiler warns
// of the hint where it can't follow it.
#if GROUP > VECTORS && defined(__NV_CL_C_VERSION)
#define SEVERAL __attribute__((opencl_unroll_hint(4)))
#else
#define SEVERAL
#endif

// Local memory for group_sum, declared by the kernel
#if GROUP > VECTORS
#define LOCAL_SHARES(name) __local V name[GROUP]
#else
#define LOCAL_SHARES(name) __local V *const name = 0
#endif

// In two rounds: shares of the same channels become SUMMED sums, then one.
#if MEMBERS > 8
#define SUMMED 8
#else
#define SUMMED 1
#endif
INLINE V group_sum(const V v, __local V *shares) {
#if GROUP > VECTORS
  const int me = get_local_id(0), mine = me % VECTORS;
  shares[me] = v;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (me < SUMMED * VECTORS) {
    V sum = shares[me];
    UNROLL for (int i = 1; i < MEMBERS / SUMMED; i++) sum += shares[me + i * SUMMED * VECTORS];
    shares[me] = sum;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  V sum = shares[mine];
  UNROLL for (int i = 1; i < SUMMED; i++) sum += shares[i * VECTORS + mine];
  barrier(CLK_LOCAL_MEM_FENCE);
  return sum;
#else
  return v;
#endif
}
