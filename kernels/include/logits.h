// Logits [classes/16][n][16], whose kernels have a work-group an example; `n`, `classes` and `x` are their arguments.

#define LOGIT(c) x[((size_t)((c) / BLOCK) * n + example) * BLOCK + (c) % BLOCK]
#define PADDED ((classes + BLOCK - 1) / BLOCK * BLOCK)
#define MINE(i, count) int i = me; i < (count); i += GROUP

// What every loss takes and gives: losses and right answers by example, and if GRADIENT, dx
#if GRADIENT
#define GRADIENT_ARGUMENTS , INPUT(scalars), OUTPUT(dx)
#define GRADIENT_POINTERS FROM(scalars) INTO(dx)
#else
#define GRADIENT_ARGUMENTS
#define GRADIENT_POINTERS
#endif
#define LOSS_ARGUMENTS INPUT(x), INPUT_WORDS(int, labels), OUTPUT(losses), OUTPUT(right), const int n, const int classes
#define LOSS_POINTERS FROM(x) INTO(losses) INTO(right) FROM_WORDS(int, labels) GRADIENT_POINTERS

// value = the sum of what the work-items have, in order
#define GROUP_TOTAL(value)                                                        \
  {                                                                               \
    shares[me] = value;                                                           \
    barrier(CLK_LOCAL_MEM_FENCE);                                                 \
    value = 0.0f;                                                                 \
    for (int i_ = 0; i_ < GROUP; i_++) value += shares[i_];                       \
    barrier(CLK_LOCAL_MEM_FENCE);                                                 \
  }

// The largest logit `top`, and `best`, the first class that has it
#define FIND_TOP                                                                  \
  __local float shares[GROUP];                                                    \
  __local int places[GROUP];                                                      \
  const int example = get_group_id(0), me = get_local_id(0);                      \
  float top = -INFINITY;                                                          \
  int best = 0;                                                                   \
  for (MINE(c, classes)) if (LOGIT(c) > top) { top = LOGIT(c); best = c; }        \
  shares[me] = top;                                                               \
  places[me] = best;                                                              \
  barrier(CLK_LOCAL_MEM_FENCE);                                                   \
  for (int i = 0; i < GROUP; i++) if (shares[i] > top || (shares[i] == top && places[i] < best)) { \
    top = shares[i];                                                              \
    best = places[i];                                                             \
  }                                                                               \
  barrier(CLK_LOCAL_MEM_FENCE);
