// The kernels of attention.cl for GPUs: a work-item has one query, or one key, in its registers, and a work-group of GROUP
// neighbouring ones reads the rows of the other side from local memory, TILE at a time. Arguments and results are those
// of attention.cl.
#include "heads.h"

#define TILE 16

INLINE void load_head(float *values, __global const Value *x, const int head, const size_t m, const size_t row) {
  UNROLL for (int c = 0; c < HEAD; c++) values[c] = float_of(x[value_at(head * HEAD + c, m, row)]);
}

// Copy a head's channels of `count` rows from `row` on to local memory, by the whole work-group; rows beyond are zero.
INLINE void load_tile(__local float *tile, __global const Value *x, const int head, const size_t m, const size_t row,
                      const int count) {
  for (int i = get_local_id(0); i < TILE * HEAD; i += GROUP)
    tile[i] = i / HEAD < count ? float_of(x[value_at(head * HEAD + i % HEAD, m, row + i / HEAD)]) : 0.0f;
}

INLINE float product(const float *values, __local const float *row) {
  float sum = 0.0f;
  UNROLL for (int c = 0; c < HEAD; c++) sum += values[c] * row[c];
  return sum;
}

INLINE void add_row(float *sums, const float factor, __local const float *row) {
  UNROLL for (int c = 0; c < HEAD; c++) sums[c] += factor * row[c];
}

INLINE void clear(float *sums) {
  UNROLL for (int c = 0; c < HEAD; c++) sums[c] = 0.0f;
}

// A work-group's queries; those beyond the last compute what the last does, and write nothing.
#define GROUP_OF_QUERIES                                                                               \
  const int tiles = (t + GROUP - 1) / GROUP, item = get_group_id(0), head = item / tiles % heads;      \
  const int image = item / tiles / heads, first = item % tiles * GROUP, query = first + (int)get_local_id(0); \
  const int key_head = head / share, stop = CAUSAL ? LEAST(s, first + GROUP) : s;                      \
  const size_t m = (size_t)n * t, key_m = (size_t)n * s, key_start = (size_t)image * s;                \
  const size_t row = (size_t)image * t + LEAST(query, t - 1);                                          \
  __local int there[TILE];

#define NEXT_TILE_OF_KEYS                                                                                      \
  barrier(CLK_LOCAL_MEM_FENCE);                                                                                \
  if (get_local_id(0) < TILE) there[get_local_id(0)] = is_there(MASK_START, n, image, key + get_local_id(0), s); \
  load_tile(keys, START(k), key_head, key_m, key_start + key, s - key);

// scores[j] of a tile, NOTHING where the query doesn't see the key; returns the largest, of them and of `most`
INLINE float score_tile(float *scores, const float *own, __local const float *keys, __local const int *there,
                        const int key, const int query, const float scale, const float most) {
  float top = most;
  UNROLL for (int j = 0; j < TILE; j++) {
    scores[j] = sees(there[j], key + j, query) ? product(own, keys + j * HEAD) * scale : NOTHING;
    top = scores[j] > top ? scores[j] : top;
  }
  return top;
}

KERNEL attend(INPUT_VALUES(q), INPUT_VALUES(k), INPUT_VALUES(v) INPUT_MASK, OUTPUT_VALUES(y), ATTENTION_ARGUMENTS) {
  GROUP_OF_QUERIES
  __local float keys[TILE * HEAD], values[TILE * HEAD];
  float own[HEAD], sums[HEAD], most = NOTHING, total = 0.0f;
  load_head(own, START(q), head, m, row);
  clear(sums);
  for (int key = 0; key < stop; key += TILE) {
    NEXT_TILE_OF_KEYS
    load_tile(values, START(v), key_head, key_m, key_start + key, s - key);
    barrier(CLK_LOCAL_MEM_FENCE);
    float scores[TILE];
    const float top = score_tile(scores, own, keys, there, key, query, scale, most), factor = exp(most - top);
    total *= factor;
    UNROLL for (int c = 0; c < HEAD; c++) sums[c] *= factor;
    UNROLL for (int j = 0; j < TILE; j++) {
      const float weight = scores[j] > NOTHING ? exp(scores[j] - top) : 0.0f;
      total += weight;
      add_row(sums, weight, values + j * HEAD);
    }
    most = top;
  }
  const float factor = total > 0.0f ? 1.0f / total : 0.0f;
  UNROLL for (int c = 0; c < HEAD; c++) sums[c] *= factor;
  if (query < t) store_head(START(y), sums, head, heads, m, row);
}

KERNEL attention_statistics(INPUT_VALUES(q), INPUT_VALUES(k) INPUT_MASK, INPUT_VALUES(y), INPUT_VALUES(dy),
                            OUTPUT(statistics), ATTENTION_ARGUMENTS) {
  GROUP_OF_QUERIES
  __local float keys[TILE * HEAD];
  float own[HEAD], most = NOTHING, total = 0.0f;
  load_head(own, START(q), head, m, row);
  for (int key = 0; key < stop; key += TILE) {
    NEXT_TILE_OF_KEYS
    barrier(CLK_LOCAL_MEM_FENCE);
    float scores[TILE];
    const float top = score_tile(scores, own, keys, there, key, query, scale, most);
    total *= exp(most - top);
    UNROLL for (int j = 0; j < TILE; j++) total += scores[j] > NOTHING ? exp(scores[j] - top) : 0.0f;
    most = top;
  }
  float products = 0.0f;
  UNROLL for (int c = 0; c < HEAD; c++) {
    const size_t at = value_at(head * HEAD + c, m, row);
    products += float_of(START(y)[at]) * float_of(START(dy)[at]);
  }
  if (query >= t) return;
  output place = START(statistics) + ((size_t)image * heads + head) * t + query;
  place[0] = total > 0.0f ? most + log(total) : -NOTHING;
  place[m * heads] = products;
}

KERNEL attend_backward_queries(INPUT_VALUES(q), INPUT_VALUES(k), INPUT_VALUES(v) INPUT_MASK, INPUT_VALUES(dy),
                               INPUT(statistics), OUTPUT_VALUES(dq), ATTENTION_ARGUMENTS) {
  GROUP_OF_QUERIES
  __local float keys[TILE * HEAD], values[TILE * HEAD];
  float own[HEAD], gradient[HEAD], sums[HEAD];
  load_head(own, START(q), head, m, row);
  load_head(gradient, START(dy), head, m, row);
  clear(sums);
  input place = START(statistics) + ((size_t)image * heads + head) * t + LEAST(query, t - 1);
  const float whole = place[0], products = place[m * heads];
  for (int key = 0; key < stop; key += TILE) {
    NEXT_TILE_OF_KEYS
    load_tile(values, START(v), key_head, key_m, key_start + key, s - key);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int j = 0; j < TILE; j++)
      if (sees(there[j], key + j, query)) {
        const float weight = exp(product(own, keys + j * HEAD) * scale - whole);
        add_row(sums, weight * (product(gradient, values + j * HEAD) - products) * scale, keys + j * HEAD);
      }
  }
  if (query < t) store_head(START(dq), sums, head, heads, m, row);
}

// Gradients of a work-group's keys and values in one key head, over all queries of the heads that read it: first of values,
// then that of the keys, since registers hold three rows of a head and not four.
KERNEL attend_backward_keys(INPUT_VALUES(q), INPUT_VALUES(k), INPUT_VALUES(v) INPUT_MASK, INPUT_VALUES(dy),
                            INPUT(statistics), OUTPUT_VALUES(dk), OUTPUT_VALUES(dv), ATTENTION_ARGUMENTS) {
  const int tiles = (s + GROUP - 1) / GROUP, key_heads = heads / share, item = get_group_id(0);
  const int key_head = item / tiles % key_heads, image = item / tiles / key_heads, first = item % tiles * GROUP;
  const int key = first + (int)get_local_id(0), there = is_there(MASK_START, n, image, key, s);
  const size_t m = (size_t)n * t, key_m = (size_t)n * s, start = (size_t)image * t;
  const size_t row = (size_t)image * s + LEAST(key, s - 1);
  __local float queries[TILE * HEAD], gradients[TILE * HEAD], whole[TILE], products[TILE];
  float own[HEAD], value[HEAD], sums[HEAD];
  load_head(own, START(k), key_head, key_m, row);
  for (int of_keys = 0; of_keys < 2; of_keys++) {
    clear(sums);
    if (of_keys) load_head(value, START(v), key_head, key_m, row);
    for (int head = key_head * share; head < (key_head + 1) * share; head++) {
      input place = START(statistics) + ((size_t)image * heads + head) * t;
      for (int query = CAUSAL ? first / TILE * TILE : 0; query < t; query += TILE) {
        barrier(CLK_LOCAL_MEM_FENCE);
        load_tile(queries, START(q), head, m, start + query, t - query);
        load_tile(gradients, START(dy), head, m, start + query, t - query);
        if (get_local_id(0) < TILE) {
          const int at = LEAST(query + (int)get_local_id(0), t - 1);
          whole[get_local_id(0)] = place[at];
          products[get_local_id(0)] = place[m * heads + at];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int i = 0; i < LEAST(TILE, t - query); i++)
          if (sees(there, key, query + i)) {
            const float weight = exp(product(own, queries + i * HEAD) * scale - whole[i]);
            if (of_keys)
              add_row(sums, weight * (product(value, gradients + i * HEAD) - products[i]) * scale, queries + i * HEAD);
            else
              add_row(sums, weight, gradients + i * HEAD);
          }
      }
    }
    if (key < s) store_head(of_keys ? START(dk) : START(dv), sums, key_head, key_heads, key_m, row);
  }
}
