/* The kernels of target c for attention, and rotary positions. See kernels.h.

   Rows are image * steps + step, channels head * size + channel, of keys and values those of the key head that `share` heads
   of queries read. Scores are used as they come: nothing holds those of a row. */
#include <math.h>

#include "blocks.h"

#define NOTHING -1e30f

/* Arguments in this order, eight: images, queries, keys, heads, share, scale, channels of a head, causal */
typedef struct {
  int n, t, s, heads, share;
  float scale;
  int size, causal;
} Heads;

static Heads heads_of(const el_value *v) {
  const Heads a = {v[0].i, v[1].i, v[2].i, v[3].i, v[4].i, v[5].f, v[6].i, v[7].i};
  return a;
}

/* The channels of a head in one row of a tensor of m rows */
typedef struct {
  float *values;
  int first;
  size_t m, row;
} Part;

static Part query_of(const Heads *a, float *x, int image, int head, int query) {
  const Part p = {x, head * a->size, (size_t)a->n * a->t, (size_t)image * a->t + query};
  return p;
}

static Part key_of(const Heads *a, float *x, int image, int key_head, int key) {
  const Part p = {x, key_head * a->size, (size_t)a->n * a->s, (size_t)image * a->s + key};
  return p;
}

static float product(const Heads *a, Part x, Part y) {
  float sum = 0;
  int c;
  for (c = 0; c < a->size; c++) sum += x.values[value_at(x.first + c, x.m, x.row)] * y.values[value_at(y.first + c, y.m, y.row)];
  return sum;
}

/* to = to * kept + factor * from */
static void add_row(const Heads *a, Part to, float kept, float factor, Part from) {
  int c;
  for (c = 0; c < a->size; c++) {
    float *y = to.values + value_at(to.first + c, to.m, to.row);
    *y = *y * kept + factor * from.values[value_at(from.first + c, from.m, from.row)];
  }
}

/* Zeros, also in the padding that follows the last of `heads` */
static void clear(const Heads *a, Part p, int heads) {
  int c, stop = p.first + a->size;
  if (stop == heads * a->size) stop = padded(stop);
  for (c = p.first; c < stop; c++) p.values[value_at(c, p.m, p.row)] = 0;
}

static int sees(const Heads *a, const float *mask, int image, int query, int key) {
  return !(a->causal && key > query) && !(mask && mask[value_at(key, a->n, image)] == 0.0f);
}

/* Where the statistics of a query's head lie: the logarithm of the sum of exponentials, and as many floats further on the sum
   of dy y */
static size_t statistic_at(const Heads *a, int image, int head, int query) {
  return ((size_t)image * a->heads + head) * a->t + query;
}

/* q, k, v, [mask], y, heads: y sums weighed values, and shrinks where a larger score comes */
void el_attend(const el_value *v) {
  const Heads a = heads_of(v + 5);
  int image, head, query, key;
  for (image = 0; image < a.n; image++)
    for (head = 0; head < a.heads; head++)
      for (query = 0; query < a.t; query++) {
        const Part y = query_of(&a, v[4].p, image, head, query), q = query_of(&a, v[0].p, image, head, query);
        float most = NOTHING, total = 0;
        clear(&a, y, a.heads);
        for (key = 0; key < a.s; key++) {
          float score, kept, weight;
          if (!sees(&a, v[3].p, image, query, key)) continue;
          score = product(&a, q, key_of(&a, v[1].p, image, head / a.share, key)) * a.scale;
          kept = score > most ? expf(most - score) : 1.0f;
          most = score > most ? score : most;
          weight = expf(score - most);
          total = total * kept + weight;
          add_row(&a, y, kept, weight, key_of(&a, v[2].p, image, head / a.share, key));
        }
        add_row(&a, y, total > 0.0f ? 1.0f / total : 0.0f, 0.0f, y);
      }
}

/* q, k, [mask], y, dy, statistics, heads */
void el_attention_statistics(const el_value *v) {
  const Heads a = heads_of(v + 6);
  int image, head, query, key;
  for (image = 0; image < a.n; image++)
    for (head = 0; head < a.heads; head++)
      for (query = 0; query < a.t; query++) {
        const Part q = query_of(&a, v[0].p, image, head, query);
        const size_t at = statistic_at(&a, image, head, query);
        float most = NOTHING, total = 0;
        for (key = 0; key < a.s; key++) {
          float score;
          if (!sees(&a, v[2].p, image, query, key)) continue;
          score = product(&a, q, key_of(&a, v[1].p, image, head / a.share, key)) * a.scale;
          if (score > most) {
            total *= expf(most - score);
            most = score;
          }
          total += expf(score - most);
        }
        v[5].p[at] = total > 0.0f ? most + logf(total) : -NOTHING;
        v[5].p[(size_t)a.n * a.t * a.heads + at] =
            product(&a, query_of(&a, v[3].p, image, head, query), query_of(&a, v[4].p, image, head, query));
      }
}

/* The weight of a key, and the gradient of its product with a query, scaled */
typedef struct {
  float weight, slope;
} Score;

/* Tensors of the arguments: q, k, v, [mask], dy, statistics */
static Score score_of(const Heads *a, const el_value *v, int image, int head, int query, int key) {
  const Part k = key_of(a, v[1].p, image, head / a->share, key), value = key_of(a, v[2].p, image, head / a->share, key);
  const float *statistics = v[5].p + statistic_at(a, image, head, query);
  Score score = {0, 0};
  if (!sees(a, v[3].p, image, query, key)) return score;
  score.weight = expf(product(a, query_of(a, v[0].p, image, head, query), k) * a->scale - statistics[0]);
  score.slope = product(a, query_of(a, v[4].p, image, head, query), value) - statistics[(size_t)a->n * a->t * a->heads];
  score.slope *= score.weight * a->scale;
  return score;
}

/* q, k, v, [mask], dy, statistics, dq, heads */
void el_attend_backward_queries(const el_value *v) {
  const Heads a = heads_of(v + 7);
  int image, head, query, key;
  for (image = 0; image < a.n; image++)
    for (head = 0; head < a.heads; head++)
      for (query = 0; query < a.t; query++) {
        const Part dq = query_of(&a, v[6].p, image, head, query);
        clear(&a, dq, a.heads);
        for (key = 0; key < (a.causal ? smaller(a.s, query + 1) : a.s); key++)
          add_row(&a, dq, 1.0f, score_of(&a, v, image, head, query, key).slope,
                  key_of(&a, v[1].p, image, head / a.share, key));
      }
}

/* q, k, v, [mask], dy, statistics, dk, dv, heads */
void el_attend_backward_keys(const el_value *v) {
  const Heads a = heads_of(v + 8);
  int image, key_head, key, head, query;
  for (image = 0; image < a.n; image++)
    for (key_head = 0; key_head < a.heads / a.share; key_head++)
      for (key = 0; key < a.s; key++) {
        const Part dk = key_of(&a, v[6].p, image, key_head, key), dv = key_of(&a, v[7].p, image, key_head, key);
        clear(&a, dk, a.heads / a.share);
        clear(&a, dv, a.heads / a.share);
        for (head = key_head * a.share; head < (key_head + 1) * a.share; head++)
          for (query = a.causal ? key : 0; query < a.t; query++) {
            const Score score = score_of(&a, v, image, head, query, key);
            add_row(&a, dk, 1.0f, score.slope, query_of(&a, v[0].p, image, head, query));
            add_row(&a, dv, 1.0f, score.weight, query_of(&a, v[4].p, image, head, query));
          }
      }
}

/* x, [positions], m, blocks, steps, channels, channels of a head, interleaved, begin, rate, rest, back, gradient: pairs of a
   head's channels turn. Frequencies are exp(-pair (rate + rest)), whose product with rate is exact. */
void el_rotate_pairs(const el_value *v) {
  const int m = v[2].i, steps = v[4].i, channels = v[5].i, size = v[6].i, half = size / 2, interleaved = v[7].i;
  const Gradient g = gradient_of(v + 12);
  int block, row, i;
  for (block = 0; block < v[3].i; block++)
    for (row = 0; row < m; row++) {
      const float own = v[1].p ? v[1].p[value_at(row % steps, m / steps, row / steps)] : (float)(row % steps);
      float dx[B] = {0};
      for (i = 0; i < smaller(B, channels - block * B); i++) {
        const int channel = block * B + i, c = channel % size, pair = interleaved ? c / 2 : c % half;
        const int second = interleaved ? c % 2 : c / half, apart = interleaved ? 1 : half;
        const int other = second ? channel - apart : channel + apart;
        const float angle = (own + v[8].i) * (expf(-(float)pair * v[9].f) * expf(-(float)pair * v[10].f));
        const float turn = second != v[11].i ? sinf(angle) : -sinf(angle);
        dx[i] = v[0].p[value_at(channel, m, row)] * cosf(angle) + v[0].p[value_at(other, m, row)] * turn;
      }
      write_gradient(g, row_at(block, m, row), dx);
    }
}
