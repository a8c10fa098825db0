// The sum of the values of a work-group's items, always in the same order; `shares` is local memory for one float each.
// Each of the first TOTALS items adds up its part of the shares, and all add up these sums.
#define TOTALS (GROUP > 8 ? 8 : 1)
INLINE float group_total(const float value, __local float *shares) {
  const int me = get_local_id(0);
  shares[me] = value;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (me < TOTALS) {
    float sum = shares[me];
    UNROLL for (int i = me + TOTALS; i < GROUP; i += TOTALS) sum += shares[i];
    shares[me] = sum;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  float total = 0.0f;
  UNROLL for (int i = 0; i < TOTALS; i++) total += shares[i];
  barrier(CLK_LOCAL_MEM_FENCE);
  return total;
}

// The sum of a vector's elements, in order
INLINE float element_sum(V v) {
  float sum = 0.0f;
  for (int i = 0; i < VECTOR_WIDTH; i++) sum += ELEMENT(v, i);
  return sum;
}
