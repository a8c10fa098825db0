/* The kernels of target c for losses; the softmax with cross-entropy of class numbers is in floats.c. See kernels.h.

   Arguments of losses of single rows, six: x, targets, losses, right answers, rows, classes. Where there is a gradient, the last
   two are scalars and dx, else null. */
#include <math.h>

#include "blocks.h"

typedef struct {
  const float *x, *targets;
  const int32_t *labels;
  float *losses, *right;
  int n, classes;
} RowLoss;

static RowLoss loss_of(const el_value *v) {
  const RowLoss l = {v[0].p, v[1].p, (const int32_t *)(const void *)v[1].p, v[2].p, v[3].p, v[4].i, v[5].i};
  return l;
}

static float sum_of_exponentials(const float *x, int n, int classes, int row, float top) {
  float sum = 0;
  int c;
  for (c = 0; c < classes; c++) sum += expf(x[value_at(c, n, row)] - top);
  return sum;
}

/* A share of a loss, and its slope */
typedef struct {
  float loss, slope;
} Term;

/* -- values: squared, absolute, Huber -- */

enum { SQUARED, ABSOLUTE, HUBER };

static Term error_of(int kind, float d, float delta) {
  const float size = fabsf(d);
  Term t = {d * d, 2 * d};
  if (kind == ABSOLUTE) {
    t.loss = size;
    t.slope = d > 0 ? 1.0f : d < 0 ? -1.0f : d;
  } else if (kind == HUBER) {
    t.loss = size <= delta ? 0.5f * d * d : delta * (size - 0.5f * delta);
    t.slope = d > delta ? delta : d < -delta ? -delta : d;
  }
  return t;
}

/* loss, delta, kind, [scalars], [dx] */
void el_regression(const el_value *v) {
  const RowLoss l = loss_of(v);
  int row, c;
  for (row = 0; row < l.n; row++) {
    float sum = 0;
    for (c = 0; c < (v[9].p ? padded(l.classes) : l.classes); c++) {
      const size_t at = value_at(c, l.n, row);
      const Term t = error_of(v[7].i, l.x[at] - l.targets[at], v[6].f);
      if (c < l.classes) sum += t.loss;
      if (v[9].p) v[9].p[at] = c < l.classes ? t.slope * v[8].p[INVERSE_BATCH] / l.classes : 0.0f;
    }
    l.losses[row] = sum / l.classes;
    l.right[row] = 0;
  }
}

/* loss, margin, squared, [scalars], [dx]: how far the cosine of a row and its target is below the margin */
void el_cosine_hinge(const el_value *v) {
  const RowLoss l = loss_of(v);
  int row, c;
  for (row = 0; row < l.n; row++) {
    float xx = 0, tt = 0, xt = 0, inverse, gap, missing, slope;
    for (c = 0; c < l.classes; c++) {
      const float a = l.x[value_at(c, l.n, row)], b = l.targets[value_at(c, l.n, row)];
      xx += a * a;
      tt += b * b;
      xt += a * b;
    }
    xx += 1e-12f;
    inverse = 1.0f / (sqrtf(xx) * sqrtf(tt + 1e-12f));
    gap = v[6].f - xt * inverse;
    missing = gap < 0 ? 0 : gap;
    slope = v[7].i ? -2 * missing : gap <= 0 ? 0.0f : -1.0f;
    l.losses[row] = v[7].i ? missing * missing : missing;
    l.right[row] = 0;
    for (c = 0; v[9].p && c < padded(l.classes); c++) {
      const size_t at = value_at(c, l.n, row);
      const float along = l.targets[at] - xt / xx * l.x[at];
      v[9].p[at] = c < l.classes ? along * slope * inverse * v[8].p[INVERSE_BATCH] : 0.0f;
    }
  }
}

/* -- probabilities. A focal loss is times (1 - p)^gamma, and alpha. -- */

/* The cross-entropy of a logit and a target from 0 to 1, and its slope. alpha below 0: no balance */
static Term binary_term(float x, float y, int focal, float gamma, float alpha) {
  const float e = expf(-fabsf(x)), one = 1.0f / (1.0f + e), zero = e / (1.0f + e);
  const float p = x >= 0 ? one : zero, not_p = x >= 0 ? zero : one;
  Term t = {(x > 0 ? x : 0) - x * y + log1pf(e), p - y};
  if (focal) {
    const float wrong = y * not_p + (1.0f - y) * p, factor = powf(wrong, gamma);
    const float balance = alpha < 0 ? 1.0f : y * alpha + (1.0f - y) * (1.0f - alpha);
    const float bend = wrong > 0 ? gamma * powf(wrong, gamma - 1.0f) * (1.0f - 2.0f * y) * p * not_p : 0.0f;
    t.slope = balance * (bend * t.loss + factor * t.slope);
    t.loss *= balance * factor;
  }
  return t;
}

/* loss, smoothing, gamma, alpha, focal, [scalars], [dx] */
void el_binary_cross_entropy(const el_value *v) {
  const RowLoss l = loss_of(v);
  int row, c;
  for (row = 0; row < l.n; row++) {
    float sum = 0, right = 0;
    for (c = 0; c < (v[11].p ? padded(l.classes) : l.classes); c++) {
      const size_t at = value_at(c, l.n, row);
      const float y = l.targets[at] * (1.0f - v[6].f) + 0.5f * v[6].f;
      const Term t = binary_term(l.x[at], y, v[9].i, v[7].f, v[8].f);
      if (c < l.classes) {
        sum += t.loss;
        right += (l.x[at] > 0) == (l.targets[at] > 0.5f) ? 1.0f : 0.0f;
      }
      if (v[11].p) v[11].p[at] = c < l.classes ? t.slope * v[10].p[INVERSE_BATCH] / l.classes : 0.0f;
    }
    l.losses[row] = sum / l.classes;
    l.right[row] = right / l.classes;
  }
}

/* -y log p, and its slope by log p */
static Term categorical_term(float y, float log_p, int focal, float gamma, float alpha) {
  Term t = {-y * log_p, -y};
  if (focal) {
    const float p = expf(log_p), rest = p < 1 ? 1.0f - p : 0.0f, factor = powf(rest, gamma);
    const float bend = rest > 0 ? gamma * powf(rest, gamma - 1.0f) * p * log_p : 0.0f;
    t.loss = -alpha * y * factor * log_p;
    t.slope = alpha * y * (bend - factor);
  }
  return t;
}

/* loss, smoothing, gamma, alpha, focal, [scalars], [dx] */
void el_categorical_cross_entropy(const el_value *v) {
  const RowLoss l = loss_of(v);
  const float kept = 1.0f - v[6].f, even = v[6].f / l.classes;
  int row, c;
  for (row = 0; row < l.n; row++) {
    const int best = el_top_of(l.x, l.n, l.classes, row);
    const float top = l.x[value_at(best, l.n, row)], log_sum = logf(sum_of_exponentials(l.x, l.n, l.classes, row, top));
    float loss = 0, slopes = 0;
    for (c = 0; c < l.classes; c++) {
      const size_t at = value_at(c, l.n, row);
      const Term t = categorical_term(l.targets[at] * kept + even, l.x[at] - top - log_sum, v[9].i, v[7].f, v[8].f);
      loss += t.loss;
      slopes += t.slope;
    }
    l.losses[row] = loss;
    l.right[row] = best == el_top_of(l.targets, l.n, l.classes, row) ? 1.0f : 0.0f;
    for (c = 0; v[11].p && c < padded(l.classes); c++) {
      const size_t at = value_at(c, l.n, row);
      const float log_p = l.x[at] - top - log_sum;
      const Term t = categorical_term(l.targets[at] * kept + even, log_p, v[9].i, v[7].f, v[8].f);
      v[11].p[at] = c < l.classes ? (t.slope - expf(log_p) * slopes) * v[10].p[INVERSE_BATCH] : 0.0f;
    }
  }
}

/* loss, weight, [scalars], [dx]: entropy where a label is negative */
void el_minimum_entropy(const el_value *v) {
  const RowLoss l = loss_of(v);
  int row, c;
  for (row = 0; row < l.n; row++) {
    const int best = el_top_of(l.x, l.n, l.classes, row), label = l.labels[row];
    const float top = l.x[value_at(best, l.n, row)], sum = sum_of_exponentials(l.x, l.n, l.classes, row, top);
    float mean = 0, entropy;
    for (c = 0; c < l.classes; c++) {
      const float logit = l.x[value_at(c, l.n, row)] - top;
      mean += expf(logit) / sum * logit;
    }
    entropy = logf(sum) - mean;
    l.losses[row] = label < 0 ? v[6].f * entropy : logf(sum) - (l.x[value_at(label, l.n, row)] - top);
    l.right[row] = best == label ? 1.0f : 0.0f;
    for (c = 0; v[8].p && c < padded(l.classes); c++) {
      const size_t at = value_at(c, l.n, row);
      const float log_p = l.x[at] - top - logf(sum), p = expf(log_p);
      const float slope = label < 0 ? -v[6].f * p * (log_p + entropy) : p - (c == label ? 1.0f : 0.0f);
      v[8].p[at] = c < l.classes ? slope * v[7].p[INVERSE_BATCH] : 0.0f;
    }
  }
}

/* -- sequences of labels without places: connectionist temporal classification (Graves et al. 2006), in logarithms. States are
   the labels with blanks before, between and after them. -- */

static float log_of_sum(float a, float b) {
  const float most = a > b ? a : b, least = a > b ? b : a;
  return least == -INFINITY ? most : most + log1pf(expf(least - most));
}

static int class_of(int state, const int32_t *labels, int blank) { return state % 2 ? labels[state / 2] : blank; }

static int may_skip(int state, const int32_t *labels) {
  return state % 2 && state > 1 && labels[state / 2] != labels[state / 2 - 1];
}

/* Logarithms of probabilities, labels, losses, right answers, room for the paths to each state, examples, classes, frames, states,
   blank, [room for the paths from each], [scalars], [dx] */
void el_ctc(const el_value *v) {
  const float *log_p = v[0].p;
  const int n = v[5].i, classes = v[6].i, frames = v[7].i, states = v[8].i, blank = v[9].i, rows = n * frames;
  const int stride = padded(states);
  int example, frame, s, to, c;
  for (example = 0; example < n; example++) {
    const int32_t *labels = (const int32_t *)(const void *)v[1].p + example * frames;
    float *ahead = v[4].p + (size_t)example * frames * stride, *last = ahead + (size_t)(frames - 1) * stride, total;
    const int first = example * frames;
    int count = 0, own;
    while (2 * count + 1 < states && count < frames && labels[count] >= 0) count++;
    own = 2 * count + 1;
    for (frame = 0; frame < frames; frame++)
      for (s = 0; s < own; s++) {
        float sum = s < 2 ? 0.0f : -INFINITY;
        if (frame > 0) {
          const float *before = ahead + (size_t)(frame - 1) * stride;
          sum = before[s];
          if (s > 0) sum = log_of_sum(sum, before[s - 1]);
          if (may_skip(s, labels)) sum = log_of_sum(sum, before[s - 2]);
        }
        ahead[(size_t)frame * stride + s] = sum + log_p[value_at(class_of(s, labels, blank), rows, first + frame)];
      }
    total = count > 0 ? log_of_sum(last[own - 1], last[own - 2]) : last[0];
    v[2].p[example] = -total;
    v[3].p[example] = 0;
    for (frame = frames - 1; v[12].p && frame >= 0; frame--) {
      float *behind = v[10].p + (size_t)example * 2 * stride, *now = behind + frame % 2 * stride;
      const float *after = behind + (frame + 1) % 2 * stride;
      for (s = 0; s < own; s++) {
        float sum = s >= own - 2 && frame + 1 == frames ? 0.0f : -INFINITY, *place = ahead + (size_t)frame * stride + s;
        for (to = s; frame + 1 < frames && to < own && to <= s + 2; to++)
          if (to < s + 2 || may_skip(to, labels))
            sum = log_of_sum(sum, after[to] + log_p[value_at(class_of(to, labels, blank), rows, first + frame + 1)]);
        now[s] = sum;
        *place = expf(*place + sum - total);
      }
      for (c = 0; c < padded(classes); c++) {
        const size_t at = value_at(c, rows, first + frame);
        float share = 0;
        for (s = c == blank ? 0 : 1; s < own; s += 2)
          if (class_of(s, labels, blank) == c) share += ahead[(size_t)frame * stride + s];
        v[12].p[at] = c < classes ? (expf(log_p[at]) - share) * v[11].p[INVERSE_BATCH] * frames : 0.0f;
      }
    }
  }
}

/* -- triplets of embeddings, in which every row may be an anchor -- */

/* Another row, -1 if there is none */
typedef struct {
  float distance;
  int place;
} Other;

static Other other_of(const float *x, int a, int b, int n, int size, int squared) {
  Other other = {0, b};
  int c;
  for (c = 0; c < size; c++) {
    const float d = x[value_at(c, n, a)] - x[value_at(c, n, b)];
    other.distance += d * d;
  }
  if (!squared) other.distance = sqrtf(other.distance);
  return other;
}

/* The factor of x[anchor] - x[other] in the derivative of their distance */
static float slope_of(Other other, int squared) { return squared ? 2.0f : other.distance > 0 ? 1.0f / other.distance : 0.0f; }

/* x, labels, losses, right answers, triplets, n, size, margin, given, squared: a triplet is positive, negative and the slopes of
   their distances */
void el_triplets(const el_value *v) {
  const float *x = v[0].p, share = v[8].i ? 3.0f : 1.0f;
  const int32_t *labels = (const int32_t *)(const void *)v[1].p;
  const int n = v[5].i, size = v[6].i, given = v[8].i, squared = v[9].i;
  int anchor, row;
  for (anchor = 0; anchor < n; anchor++) {
    Other positive = {0, -1}, negative = {0, -1};
    float *triplet = v[4].p + anchor * B, missing;
    int both;
    if (given && anchor % 3 == 0) {
      positive = other_of(x, anchor, anchor + 1, n, size, squared);
      negative = other_of(x, anchor, anchor + 2, n, size, squared);
    }
    for (row = 0; !given && row < n; row++) {
      Other *best = labels[row] == labels[anchor] ? &positive : &negative, other;
      if (row == anchor) continue;
      other = other_of(x, anchor, row, n, size, squared);
      if (best->place < 0 || (best == &positive ? other.distance > best->distance : other.distance < best->distance)) *best = other;
    }
    both = positive.place >= 0 && negative.place >= 0;
    missing = both ? positive.distance - negative.distance + v[7].f : 0.0f;
    v[2].p[anchor] = missing <= 0 ? 0.0f : share * missing;
    v[3].p[anchor] = both && positive.distance < negative.distance ? share : 0.0f;
    triplet[0] = (float)positive.place;
    triplet[1] = (float)negative.place;
    triplet[2] = missing <= 0 ? 0.0f : share * slope_of(positive, squared);
    triplet[3] = missing <= 0 ? 0.0f : share * slope_of(negative, squared);
  }
}

/* x, triplets, scalars, dx, n, blocks */
void el_triplet_gradient(const el_value *v) {
  const int n = v[4].i;
  int block, row, anchor, c;
  for (block = 0; block < v[5].i; block++)
    for (row = 0; row < n; row++) {
      const float *own = v[0].p + row_at(block, n, row);
      float sum[B] = {0};
      for (anchor = 0; anchor < n; anchor++) {
        const float *triplet = v[1].p + anchor * B, *a = v[0].p + row_at(block, n, anchor);
        const int positive = (int)triplet[0], negative = (int)triplet[1];
        if (row == anchor && positive >= 0 && negative >= 0) {
          const float *p = v[0].p + row_at(block, n, positive), *q = v[0].p + row_at(block, n, negative);
          EACH(c) sum[c] += (own[c] - p[c]) * triplet[2] - (own[c] - q[c]) * triplet[3];
        } else if (row == positive || row == negative) {
          EACH(c) sum[c] += (own[c] - a[c]) * (row == positive ? triplet[2] : -triplet[3]);
        }
      }
      EACH(c) v[3].p[row_at(block, n, row) + c] = sum[c] * v[2].p[INVERSE_BATCH];
    }
}

/* -- episodes: prototypical networks (Snell et al. 2017). The first ways * shots rows are the support, class after class; others
   are queries, of class `ways` where that is none of them. A row holds an embedding of `size` channels, followed by as many for
   each dummy prototype. -- */

typedef struct {
  int n, size, ways, shots, support, prototypes;
} Episode;

static Episode episode_of(int n, int size, const el_value *v) {
  const Episode e = {n, size, v[0].i, v[1].i, v[0].i * v[1].i, v[0].i + v[2].i};
  return e;
}

static int is_right(const Episode *e, int m, int label) { return label >= e->ways ? m >= e->ways : m == label; }

static float mean_of_class(const Episode *e, const float *x, int k, int channel) {
  float sum = 0;
  int shot;
  for (shot = 0; shot < e->shots; shot++) sum += x[value_at(channel, e->n, k * e->shots + shot)];
  return sum / e->shots;
}

/* The first class whose mean is largest in a channel */
static int largest_class(const Episode *e, const float *x, int channel) {
  int best = 0, k;
  for (k = 1; k < e->ways; k++)
    if (mean_of_class(e, x, k, channel) > mean_of_class(e, x, best, channel)) best = k;
  return best;
}

/* x, p, n, size, ways, shots, dummies: the mean of each class's support; of dummies in every channel the largest of them */
void el_prototypes(const el_value *v) {
  const Episode e = episode_of(v[2].i, v[3].i, v + 4);
  int m, c;
  for (m = 0; m < e.prototypes; m++)
    for (c = 0; c < e.size; c++) {
      const int channel = m < e.ways ? c : e.size * (1 + m - e.ways) + c;
      v[1].p[value_at(c, e.prototypes, m)] = mean_of_class(&e, v[0].p, m < e.ways ? m : largest_class(&e, v[0].p, channel), channel);
    }
}

/* A query and a prototype: their similarity, and what its slope is along the prototype, the query, and the prototype itself */
typedef struct {
  float logit, along, of_query, of_prototype;
} Similarity;

static Similarity similarity_of(const Episode *e, const float *x, const float *p, int row, int m, float scale, int cosine) {
  float xx = 0, pp = 0, xp = 0, apart = 0;
  Similarity s;
  int c;
  for (c = 0; c < e->size; c++) {
    const float a = x[value_at(c, e->n, row)], b = p[value_at(c, e->prototypes, m)];
    xx += a * a;
    pp += b * b;
    xp += a * b;
    apart += (a - b) * (a - b);
  }
  xx += 1e-12f;
  pp += 1e-12f;
  s.logit = cosine ? scale * xp / (sqrtf(xx) * sqrtf(pp)) : -scale * apart;
  s.along = cosine ? scale / (sqrtf(xx) * sqrtf(pp)) : 2 * scale;
  s.of_query = cosine ? -s.logit / xx : -2 * scale;
  s.of_prototype = cosine ? -s.logit / pp : -2 * scale;
  return s;
}

/* x, p, labels, losses, right answers, n, size, scale, scale of dummies, weight of unknown queries, share, [scalars], [slopes],
   ways, shots, dummies, cosine. Slopes of a query: along each prototype, along the query, of each prototype along itself */
void el_prototypical(const el_value *v) {
  const Episode e = episode_of(v[5].i, v[6].i, v + 13);
  const int32_t *labels = (const int32_t *)(const void *)v[2].p;
  const int queries = e.n - e.support;
  int row, m;
  for (row = 0; row < e.n; row++) {
    float top = -INFINITY, top_right = -INFINITY, sum = 0, sum_right = 0, weight, total = 0;
    int best = 0;
    v[3].p[row] = v[4].p[row] = 0;
    if (row < e.support) continue;
    weight = v[10].f * (labels[row] >= e.ways ? v[9].f : 1.0f);
    for (m = 0; m < e.prototypes; m++) {
      const float logit = similarity_of(&e, v[0].p, v[1].p, row, m, m < e.ways ? v[7].f : v[8].f, v[16].i).logit;
      if (logit > top) best = m;
      top = logit > top ? logit : top;
      if (is_right(&e, m, labels[row]) && logit > top_right) top_right = logit;
    }
    for (m = 0; m < e.prototypes; m++) {
      const float logit = similarity_of(&e, v[0].p, v[1].p, row, m, m < e.ways ? v[7].f : v[8].f, v[16].i).logit;
      sum += expf(logit - top);
      if (is_right(&e, m, labels[row])) sum_right += expf(logit - top_right);
    }
    v[3].p[row] = weight * (logf(sum) + top - logf(sum_right) - top_right);
    v[4].p[row] = is_right(&e, best, labels[row]) ? v[10].f : 0.0f;
    for (m = 0; v[12].p && m < e.prototypes; m++) {
      const Similarity s = similarity_of(&e, v[0].p, v[1].p, row, m, m < e.ways ? v[7].f : v[8].f, v[16].i);
      const float target = is_right(&e, m, labels[row]) ? expf(s.logit - top_right) / sum_right : 0.0f;
      const float slope = (expf(s.logit - top) / sum - target) * weight * v[11].p[INVERSE_BATCH];
      v[12].p[value_at(m, queries, row - e.support)] = slope * s.along;
      v[12].p[value_at(e.prototypes + 1 + m, queries, row - e.support)] = slope * s.of_prototype;
      total += slope * s.of_query;
    }
    if (v[12].p) v[12].p[value_at(e.prototypes, queries, row - e.support)] = total;
  }
}

/* x, p, slopes, dx, n, size, channels with padding, ways, shots, dummies */
void el_prototypical_gradient(const el_value *v) {
  const Episode e = episode_of(v[4].i, v[5].i, v + 7);
  const float *x = v[0].p, *p = v[1].p, *slopes = v[2].p;
  const int queries = e.n - e.support;
  int row, channel, m, query;
  for (row = 0; row < e.n; row++)
    for (channel = 0; channel < v[6].i; channel++) {
      const int part = channel / e.size, c = channel % e.size;
      float slope = 0;
      if (row >= e.support && part == 0) {
        slope = slopes[value_at(e.prototypes, queries, row - e.support)] * x[value_at(c, e.n, row)];
        for (m = 0; m < e.prototypes; m++)
          slope += slopes[value_at(m, queries, row - e.support)] * p[value_at(c, e.prototypes, m)];
      } else if (row < e.support && (part == 0 || (part <= e.prototypes - e.ways && largest_class(&e, x, channel) == row / e.shots))) {
        float own = 0;
        m = part == 0 ? row / e.shots : e.ways + part - 1;
        for (query = 0; query < queries; query++) {
          slope += slopes[value_at(m, queries, query)] * x[value_at(c, e.n, query + e.support)];
          own += slopes[value_at(e.prototypes + 1 + m, queries, query)];
        }
        slope = (slope + own * p[value_at(c, e.prototypes, m)]) / e.shots;
      }
      v[3].p[value_at(channel, e.n, row)] = slope;
    }
}
