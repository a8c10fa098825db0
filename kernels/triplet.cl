// Triplet loss of embeddings x [size/16][n][16], where every row may be an anchor.
#include "logits.h"

typedef struct { float distance; int place; } Other;  // another row, -1 if there is none

// The farther of two, or with `nearest` the nearer; of equal ones the first
INLINE Other better(const Other a, const Other b, const bool nearest) {
  if (a.place < 0 || b.place < 0) return a.place < 0 ? b : a;
  if (a.distance == b.distance) return a.place < b.place ? a : b;
  return (a.distance < b.distance) == nearest ? a : b;
}

INLINE float distance_between(input x, const int a, const int b, const int n, const int size) {
  float sum = 0.0f;
  for (int c = 0; c < size; c++) {
    const float d = x[logit_at(c, n, a)] - x[logit_at(c, n, b)];
    sum += d * d;
  }
#if SQUARED
  return sum;
#else
  return sqrt(sum);
#endif
}

INLINE Other best_of_group(const Other own, const bool nearest, __local float *distances, __local int *places) {
  const int me = get_local_id(0);
  distances[me] = own.distance;
  places[me] = own.place;
  barrier(CLK_LOCAL_MEM_FENCE);
  Other best = {distances[0], places[0]};
  for (int i = 1; i < GROUP; i++) best = better(best, (Other){distances[i], places[i]}, nearest);
  barrier(CLK_LOCAL_MEM_FENCE);
  return best;
}

// The factor of x[anchor] - x[other] in the derivative of their distance
INLINE float slope_of(const Other other) {
#if SQUARED
  return 2.0f;
#else
  return other.distance > 0.0f ? 1.0f / other.distance : 0.0f;
#endif
}

// One work-group an anchor: its loss, and triplets[anchor] = positive, negative and the slopes of their distances
KERNEL triplets(INPUT(x), INPUT_OF(int, labels), OUTPUT(losses), OUTPUT(right), OUTPUT(triplets), const int n,
                const int size, const float margin) {
  __local float distances[GROUP];
  __local int places[GROUP];
  input x = ITEM_START(x);
  const int anchor = get_group_id(0), me = get_local_id(0);
  Other positive = {0.0f, -1}, negative = {0.0f, -1};
#if GIVEN
  const float share = 3.0f;
  if (anchor % 3 == 0) {
    positive = (Other){distance_between(x, anchor, anchor + 1, n, size), anchor + 1};
    negative = (Other){distance_between(x, anchor, anchor + 2, n, size), anchor + 2};
  }
#else
  const float share = 1.0f;
  const int label = START(labels)[anchor];
  for (int row = me; row < n; row += GROUP) {
    if (row == anchor) continue;
    const Other other = {distance_between(x, anchor, row, n, size), row};
    if (START(labels)[row] == label)
      positive = better(positive, other, false);
    else
      negative = better(negative, other, true);
  }
  positive = best_of_group(positive, false, distances, places);
  negative = best_of_group(negative, true, distances, places);
#endif
  if (me > 0) return;
  const bool both = positive.place >= 0 && negative.place >= 0;
  const float missing = both ? positive.distance - negative.distance + margin : 0.0f;
  const bool counts = !(missing <= 0.0f);  // a NaN does
  START(losses)[anchor] = counts ? share * missing : 0.0f;
  START(right)[anchor] = both && positive.distance < negative.distance ? share : 0.0f;
  output triplet = START(triplets) + anchor * BLOCK;
  triplet[0] = positive.place;
  triplet[1] = negative.place;
  triplet[2] = counts ? share * slope_of(positive) : 0.0f;
  triplet[3] = counts ? share * slope_of(negative) : 0.0f;
}

// dx of a row and a block of channels: its shares as an anchor, as a positive and as a negative
KERNEL triplet_gradient(INPUT(x), INPUT(triplets), INPUT(scalars), OUTPUT(dx), const int n) {
  const int row = ITEM, block = get_global_id(1);
  if (row >= n) return;
  input x = ITEM_START(x) + (size_t)block * n * BLOCK;
  output dx = ITEM_START(dx) + ((size_t)block * n + row) * BLOCK;
  const V own = *(__global const V_in_memory *)(x + row * BLOCK);
  V sum = (V)0;
  for (int anchor = 0; anchor < n; anchor++) {
    input triplet = START(triplets) + anchor * BLOCK;
    const int positive = triplet[0], negative = triplet[1];
    if (row == anchor && positive >= 0 && negative >= 0) {
      sum += (own - *(__global const V_in_memory *)(x + positive * BLOCK)) * triplet[2];
      sum -= (own - *(__global const V_in_memory *)(x + negative * BLOCK)) * triplet[3];
    } else if (row == positive || row == negative) {
      const V difference = own - *(__global const V_in_memory *)(x + anchor * BLOCK);
      sum += row == positive ? difference * triplet[2] : -difference * triplet[3];
    }
  }
  *(__global V_in_memory *)dx = sum * START(scalars)[INVERSE_BATCH];
}
