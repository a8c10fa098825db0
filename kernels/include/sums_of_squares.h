// Norms of tensors in two steps: parts of `count` blocks each leave a row of sums; norm_of adds the rows up.

typedef struct { int start, stop; } Part;  // blocks [start, stop)

INLINE Part part_of(const int part, const int blocks, const int count) {
  const int stop = (part + 1) * count;
  return (Part){part * count, stop < blocks ? stop : blocks};
}

// The root of the sum over `parts` rows of 16, `stride` rows from one to the next
INLINE float norm_of(__global const float *sums, const int parts, const int stride) {
  float lanes[BLOCK], sum = 0.0f;
  for (int c = 0; c < BLOCK; c++) lanes[c] = 0.0f;
  for (int p = 0; p < parts; p++)
    for (int c = 0; c < BLOCK; c++) lanes[c] += sums[(size_t)p * stride * BLOCK + c];
  for (int c = 0; c < BLOCK; c++) sum += lanes[c];
  return sqrt(sum);
}
