// Prototypical networks: the rows of x are an episode. The first WAYS * SHOTS are its support, way after way; the others
// are queries, whose label is the way that they belong to, or WAYS where that is none of them. A row holds an embedding
// of `size` channels, and behind it DUMMIES times as many, of which dummy prototypes are made.
#include "blocked.h"
#include "scalars.h"

#define SUPPORT (WAYS * SHOTS)
#define PROTOTYPES (WAYS + DUMMIES)
#define PLACE(row, c, rows) (((size_t)((c) / BLOCK) * (rows) + (row)) * BLOCK + (c) % BLOCK)
#define X(row, c) x[PLACE(row, c, n)]
#define P(m, c) p[PLACE(m, c, PROTOTYPES)]
// What a query says of the slope of its loss: along each prototype, along itself, and of each prototype along itself
#define ALONG_PROTOTYPE(m) (m)
#define ALONG_QUERY PROTOTYPES
#define OF_PROTOTYPE(m) (PROTOTYPES + 1 + (m))
#define S(query, k) slopes[PLACE(query, k, n - SUPPORT)]

// Whether prototype m is what a query's label asks for
#define RIGHT(m) (unknown ? (m) >= WAYS : (m) == label)

static float mean_of_way(__global const float *x, const int n, const int way, const int c) {
  float sum = 0.0f;
  for (int shot = 0; shot < SHOTS; shot++) sum += X(way * SHOTS + shot, c);
  return sum / SHOTS;
}

// The first way whose mean is largest in channel c
static int largest_way(__global const float *x, const int n, const int c) {
  int best = 0;
  float top = mean_of_way(x, n, 0, c);
  for (int way = 1; way < WAYS; way++) {
    const float value = mean_of_way(x, n, way, c);
    if (value > top) { top = value; best = way; }
  }
  return best;
}

// p[m] = the mean of way m's support, or of a dummy, in every channel the largest of the ways' means; a work-item a value
KERNEL prototypes(INPUT(x), OUTPUT(p), const int n, const int size) {
  FROM_WORDS(float, x) INTO_WORDS(p)
  const int item = get_global_id(0), m = item / size, c = item % size;
  if (m >= PROTOTYPES) return;
  const int channel = m < WAYS ? c : size * (1 + m - WAYS) + c;
  P(m, c) = mean_of_way(x, n, m < WAYS ? m : largest_way(x, n, channel), channel);
}

// Similarities of a query to the prototypes are logits: -scale |x - p|^2, or scale cos(x, p) if COSINE; those to dummies
// have a scale of their own. The loss of a query is -log of the softmax at its way, or of its sum over all dummies times
// `open_weight`; support has none. Losses, right answers and slopes are times `share`. One work-group an example.
KERNEL prototypical(INPUT(x), INPUT(p), INPUT_WORDS(int, labels), OUTPUT(losses), OUTPUT(right), const int n,
                    const int size, const float scale, const float dummy_scale, const float open_weight,
                    const float share
#if GRADIENT
                    , INPUT(scalars), OUTPUT(slopes)
#endif
) {
  FROM_WORDS(float, x) FROM_WORDS(float, p) FROM_WORDS(int, labels) INTO_WORDS(losses) INTO_WORDS(right)
#if GRADIENT
  FROM_WORDS(float, scalars) INTO_WORDS(slopes)
#endif
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
      const float a = X(example, c), b = P(m, c);
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
  const int label = labels[example], unknown = label >= WAYS;
  float top = -INFINITY, top_right = -INFINITY, sum = 0.0f, sum_right = 0.0f;
  int best = 0;
  for (int m = 0; m < PROTOTYPES; m++) {
    if (logit[m] > top) { top = logit[m]; best = m; }
    if (RIGHT(m) && logit[m] > top_right) top_right = logit[m];  // may be far below the top: a sum of its own
  }
  for (int m = 0; m < PROTOTYPES; m++) {
    sum += exp(logit[m] - top);
    if (RIGHT(m)) sum_right += exp(logit[m] - top_right);
  }
  const float weight = share * (unknown ? open_weight : 1.0f);
  losses[example] = weight * (log(sum) + top - log(sum_right) - top_right);
  right[example] = RIGHT(best) ? share : 0.0f;
#if GRADIENT
  float total = 0.0f;
  for (int m = 0; m < PROTOTYPES; m++) {
    const float target = RIGHT(m) ? exp(logit[m] - top_right) / sum_right : 0.0f;
    const float slope = (exp(logit[m] - top) / sum - target) * weight * scalars[INVERSE_BATCH];
    S(query, ALONG_PROTOTYPE(m)) = slope * along[m];
    S(query, OF_PROTOTYPE(m)) = slope * of_prototype[m];
    total += slope * of_query[m];
  }
  S(query, ALONG_QUERY) = total;
#endif
}

// The gradient to x, a work-item a value; what no loss depends on has 0
KERNEL prototypical_gradient(INPUT(x), INPUT(p), INPUT(slopes), OUTPUT(dx), const int n, const int size,
                             const int padded) {
  FROM_WORDS(float, x) FROM_WORDS(float, p) FROM_WORDS(float, slopes) INTO_WORDS(dx)
  const int item = get_global_id(0), row = item / padded, channel = item % padded;
  if (row >= n) return;
  const int part = channel / size, c = channel % size;
  float slope = 0.0f;
  if (row >= SUPPORT) {
    if (part == 0) {
      slope = S(row - SUPPORT, ALONG_QUERY) * X(row, c);
      for (int m = 0; m < PROTOTYPES; m++) slope += S(row - SUPPORT, ALONG_PROTOTYPE(m)) * P(m, c);
    }
  } else if (part == 0 || (part <= DUMMIES && largest_way(x, n, channel) == row / SHOTS)) {
    const int m = part == 0 ? row / SHOTS : WAYS + part - 1;
    float own = 0.0f;
    for (int query = 0; query < n - SUPPORT; query++) {
      slope += S(query, ALONG_PROTOTYPE(m)) * X(query + SUPPORT, c);
      own += S(query, OF_PROTOTYPE(m));
    }
    slope = (slope + own * P(m, c)) / SHOTS;
  }
  dx[PLACE(row, channel, n)] = slope;
}
