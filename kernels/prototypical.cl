// Prototypical networks (Snell et al. 2017): the rows of x are an episode. The first WAYS * SHOTS are its support,
// class after class; the others are queries, whose label is their class, or WAYS where that is none of them. A row
// holds an embedding of `size` channels, followed by DUMMIES times as many, of which dummy prototypes are made.
#include "blocked.h"
#include "scalars.h"

#define SUPPORT (WAYS * SHOTS)
#define PROTOTYPES (WAYS + DUMMIES)

// Columns of `slopes`, what a query's loss contributes to gradients: of x along each prototype, of x along the query,
// and of each prototype along itself
#define ALONG_PROTOTYPE(m) (m)
#define ALONG_QUERY PROTOTYPES
#define OF_PROTOTYPE(m) (PROTOTYPES + 1 + (m))

// Offset of channel c of a row of a tensor that has `rows`
INLINE size_t at(const int row, const int c, const int rows) {
  return ((size_t)(c / BLOCK) * rows + row) * BLOCK + c % BLOCK;
}

// True if prototype m is right for a label; all dummies are for an unknown one
INLINE int is_right(const int m, const int label) { return label >= WAYS ? m >= WAYS : m == label; }

INLINE float mean_of_class(__global const float *x, const int n, const int k, const int c) {
  float sum = 0.0f;
  for (int shot = 0; shot < SHOTS; shot++) sum += x[at(k * SHOTS + shot, c, n)];
  return sum / SHOTS;
}

// The first class whose mean is largest in channel c
INLINE int largest_class(__global const float *x, const int n, const int c) {
  int best = 0;
  float top = mean_of_class(x, n, 0, c);
  for (int k = 1; k < WAYS; k++) {
    const float value = mean_of_class(x, n, k, c);
    if (value > top) { top = value; best = k; }
  }
  return best;
}

// p[m] = the mean of class m's support, or of a dummy, in every channel the largest of the classes' means; a work-item
// a value
KERNEL prototypes(INPUT(x), OUTPUT(p), const int n, const int size) {
  input x = START(x);
  const int item = get_global_id(0), m = item / size, c = item % size;
  if (m >= PROTOTYPES) return;
  const int channel = m < WAYS ? c : size * (1 + m - WAYS) + c;
  START(p)[at(m, c, PROTOTYPES)] = mean_of_class(x, n, m < WAYS ? m : largest_class(x, n, channel), channel);
}

// Similarities of a query to the prototypes are logits: -scale |x - p|^2, or scale cos(x, p) if COSINE; those to
// dummies have a scale of their own. The loss of a query is -log of the softmax at its class, or of its sum over all
// dummies times `open_weight`; support has none. Losses, right answers and slopes are times `share`. One work-group an
// example.
KERNEL prototypical(INPUT(x), INPUT(p), INPUT_OF(int, labels), OUTPUT(losses), OUTPUT(right), const int n,
                    const int size, const float scale, const float dummy_scale, const float open_weight,
                    const float share INPUT_IF(GRADIENT, scalars) OUTPUT_IF(GRADIENT, slopes)) {
  input x = START(x), p = START(p);
  output losses = START(losses), right = START(right);
  __local float logit[PROTOTYPES], along[PROTOTYPES], of_query[PROTOTYPES], of_prototype[PROTOTYPES];
  const int example = get_group_id(0), me = get_local_id(0), query = example - SUPPORT;
  if (query < 0) {
    if (me == 0) { losses[example] = 0.0f; right[example] = 0.0f; }
    return;
  }
  for (int m = me; m < PROTOTYPES; m += GROUP) {
    const float s = m < WAYS ? scale : dummy_scale;
    float xx = 0.0f, pp = 0.0f, xp = 0.0f;
    for (int c = 0; c < size; c++) {
      const float a = x[at(example, c, n)], b = p[at(m, c, PROTOTYPES)];
#if COSINE
      xx += a * a;
      pp += b * b;
      xp += a * b;
#else
      xx += (a - b) * (a - b);
#endif
    }
#if COSINE
    xx += 1e-12f;
    pp += 1e-12f;
    const float lengths = sqrt(xx) * sqrt(pp), cosine = xp / lengths;
    logit[m] = s * cosine;
    along[m] = s / lengths;
    of_query[m] = -s * cosine / xx;
    of_prototype[m] = -s * cosine / pp;
#else
    logit[m] = -s * xx;
    along[m] = 2.0f * s;
    of_query[m] = of_prototype[m] = -2.0f * s;
#endif
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (me > 0) return;
  const int label = START(labels)[example];
  float top = -INFINITY, top_right = -INFINITY, sum = 0.0f, sum_right = 0.0f;
  int best = 0;
  for (int m = 0; m < PROTOTYPES; m++) {
    if (logit[m] > top) { top = logit[m]; best = m; }
    if (is_right(m, label) && logit[m] > top_right) top_right = logit[m];  // may be far below the top: a sum of its own
  }
  for (int m = 0; m < PROTOTYPES; m++) {
    sum += exp(logit[m] - top);
    if (is_right(m, label)) sum_right += exp(logit[m] - top_right);
  }
  const float weight = share * (label >= WAYS ? open_weight : 1.0f);
  losses[example] = weight * (log(sum) + top - log(sum_right) - top_right);
  right[example] = is_right(best, label) ? share : 0.0f;
#if GRADIENT
  output slopes = START(slopes);
  const float inverse_batch = START(scalars)[INVERSE_BATCH];
  const int queries = n - SUPPORT;
  float total = 0.0f;
  for (int m = 0; m < PROTOTYPES; m++) {
    const float target = is_right(m, label) ? exp(logit[m] - top_right) / sum_right : 0.0f;
    const float slope = (exp(logit[m] - top) / sum - target) * weight * inverse_batch;
    slopes[at(query, ALONG_PROTOTYPE(m), queries)] = slope * along[m];
    slopes[at(query, OF_PROTOTYPE(m), queries)] = slope * of_prototype[m];
    total += slope * of_query[m];
  }
  slopes[at(query, ALONG_QUERY, queries)] = total;
#endif
}

// The gradient to x, a work-item a value; what no loss depends on has 0
KERNEL prototypical_gradient(INPUT(x), INPUT(p), INPUT(slopes), OUTPUT(dx), const int n, const int size,
                             const int padded) {
  input x = START(x), p = START(p), slopes = START(slopes);
  const int item = get_global_id(0), row = item / padded, channel = item % padded;
  if (row >= n) return;
  const int part = channel / size, c = channel % size, queries = n - SUPPORT;
  float slope = 0.0f;
  if (row >= SUPPORT) {
    if (part == 0) {
      slope = slopes[at(row - SUPPORT, ALONG_QUERY, queries)] * x[at(row, c, n)];
      for (int m = 0; m < PROTOTYPES; m++)
        slope += slopes[at(row - SUPPORT, ALONG_PROTOTYPE(m), queries)] * p[at(m, c, PROTOTYPES)];
    }
  } else if (part == 0 || (part <= DUMMIES && largest_class(x, n, channel) == row / SHOTS)) {
    const int m = part == 0 ? row / SHOTS : WAYS + part - 1;
    float own = 0.0f;
    for (int query = 0; query < queries; query++) {
      slope += slopes[at(query, ALONG_PROTOTYPE(m), queries)] * x[at(query + SUPPORT, c, n)];
      own += slopes[at(query, OF_PROTOTYPE(m), queries)];
    }
    slope = (slope + own * p[at(m, c, PROTOTYPES)]) / SHOTS;
  }
  START(dx)[at(row, channel, n)] = slope;
}
