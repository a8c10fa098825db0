// Losses of outputs x: [classes/16][n][16]; one work-group a row: an example, or a pixel of one.
#include "blocked.h"
#include "group_total.h"
#include "scalars.h"

// Arguments that all losses have: losses and right answers by row, with WEIGHTED a weight of each row, and with
// GRADIENT dx. Targets are `labels`, a class number for each row, or `targets`, a value for each of x.
#if GRADIENT
#define GRADIENT_ARGUMENTS , INPUT(scalars), OUTPUT(dx)
#else
#define GRADIENT_ARGUMENTS
#endif
#if WEIGHTED
#define WEIGHTS_ARGUMENT , INPUT(weights)
#define WEIGHT_OF(row) START(weights)[row]
#else
#define WEIGHTS_ARGUMENT
#define WEIGHT_OF(row) 1.0f
#endif
#define RESULTS WEIGHTS_ARGUMENT, OUTPUT(losses), OUTPUT(right), const int n, const int classes
#define LOSS_ARGUMENTS INPUT(x), INPUT_OF(int, labels) RESULTS
#define VALUE_LOSS_ARGUMENTS INPUT(x), INPUT(targets) RESULTS

// Where class c of a row lies
INLINE size_t logit_at(const int c, const int n, const int row) {
  return ((size_t)(c / BLOCK) * n + row) * BLOCK + c % BLOCK;
}

INLINE int padded(const int classes) { return (classes + BLOCK - 1) / BLOCK * BLOCK; }

typedef struct { float value; int place; } Top;  // the largest logit, and the first class that has it

INLINE Top find_top(input x, const int n, const int classes, __local float *shares, __local int *places) {
  const int example = get_group_id(0), me = get_local_id(0);
  Top top = {-INFINITY, 0};
  for (int c = me; c < classes; c += GROUP) {
    const float logit = x[logit_at(c, n, example)];
    if (logit > top.value) top = (Top){logit, c};
  }
  shares[me] = top.value;
  places[me] = top.place;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = 0; i < GROUP; i++)
    if (shares[i] > top.value || (shares[i] == top.value && places[i] < top.place)) top = (Top){shares[i], places[i]};
  barrier(CLK_LOCAL_MEM_FENCE);
  return top;
}
