// Scaled dot-product attention by tiles of queries and keys, so that no matrix of both is in memory (Dao et al. 2022,
// "FlashAttention", arXiv 2205.14135). A work-item takes whole blocks: 16 keys are the elements of a vector.
#include "heads.h"
#include "exponential.h"

#ifndef QUERIES
#define QUERIES 32  // of a tile
#endif
#define KEYS BLOCK
#define TOGETHER 4  // queries that share what is loaded
#define HEAD_BLOCKS ((HEAD + BLOCK - 1) / BLOCK)

INLINE float largest(const V v) {
  const float8 a = v.lo > v.hi ? v.lo : v.hi;
  const float4 b = a.lo > a.hi ? a.lo : a.hi;
  const float2 c = b.lo > b.hi ? b.lo : b.hi;
  return c.x > c.y ? c.x : c.y;
}

INLINE float sum_of(const V v) {
  const float8 a = v.lo + v.hi;
  const float4 b = a.lo + a.hi;
  const float2 c = b.lo + b.hi;
  return c.x + c.y;
}

// The channels of a head in one row
INLINE void load_head(float *values, __global const Value *x, const int head, const size_t m, const size_t row) {
#if HEAD % BLOCK == 0
  for (int b = 0; b < HEAD_BLOCKS; b++)
    *(V_in_memory *)(values + b * BLOCK) = load(x + row_at(head * HEAD_BLOCKS + b, m, row));
#else
  for (int c = 0; c < HEAD; c++) values[c] = float_of(x[value_at(head * HEAD + c, m, row)]);
#endif
}

// Each channel of a head in `count` rows from `row` on: a vector with an element for each; the last row stands for those
// that aren't there
INLINE void load_columns(V *columns, __global const Value *x, const int head, const size_t m, const size_t row,
                         const int count) {
  for (int j = 0; j < KEYS; j++) {
    float own[HEAD];
    load_head(own, x, head, m, row + LEAST(j, count - 1));
    UNROLL for (int c = 0; c < HEAD; c++) ((float *)columns)[c * KEYS + j] = own[c];
  }
}

// The same with a vector for each row and block of a head's channels
INLINE void load_rows(V *rows, __global const Value *x, const int head, const size_t m, const size_t row,
                      const int count) {
  for (int j = 0; j < KEYS; j++)
    for (int b = 0; b < HEAD_BLOCKS; b++) {
      V v = (V)0;
      if (j < count) {
#if HEAD % BLOCK == 0
        v = load(x + row_at(head * HEAD_BLOCKS + b, m, row + j));
#else
        for (int i = 0; i < BLOCK && b * BLOCK + i < HEAD; i++)
          ELEMENT(v, i) = float_of(x[value_at(head * HEAD + b * BLOCK + i, m, row + j)]);
#endif
      }
      rows[j * HEAD_BLOCKS + b] = v;
    }
}

// Which of the keys from `key` on a query sees: -1 or 0
INLINE Ints seen(const Ints there, const int key, const int query) {
#if CAUSAL
  return there & (key + POSITIONS <= (Ints)query);
#else
  return there;
#endif
}

INLINE Ints keys_there(__global const Value *mask, const int n, const int image, const int key, const int s) {
  Ints there = key + POSITIONS < (Ints)s;
#if MASKED
  for (int j = 0; j < KEYS; j++)
    if (!is_there(mask, n, image, key + j, s)) ((int *)&there)[j] = 0;
#endif
  return there;
}

// Products of TOGETHER queries' channels with those of 16 keys
INLINE void scores_of(V *scores, const float *queries, const V *columns) {
  UNROLL for (int r = 0; r < TOGETHER; r++) scores[r] = (V)0;
  for (int c = 0; c < HEAD; c++)
    UNROLL for (int r = 0; r < TOGETHER; r++) scores[r] += queries[r * HEAD + c] * columns[c];
}

// sums[row][block] = sums * factor + the rows' 16 weights times 16 vectors
INLINE void add_weighed(V *sums, const float *factors, const V *weights, const V *rows) {
  for (int b = 0; b < HEAD_BLOCKS; b++) {
    V total[TOGETHER];
    UNROLL for (int r = 0; r < TOGETHER; r++) total[r] = sums[r * HEAD_BLOCKS + b] * factors[r];
    for (int j = 0; j < KEYS; j++) {
      const V v = rows[j * HEAD_BLOCKS + b];
      UNROLL for (int r = 0; r < TOGETHER; r++) total[r] += ((const float *)&weights[r])[j] * v;
    }
    UNROLL for (int r = 0; r < TOGETHER; r++) sums[r * HEAD_BLOCKS + b] = total[r];
  }
}

// sums[channel] += the weights of TOGETHER rows times their channels
INLINE void add_columns(V *sums, const V *weights, const float *rows) {
  V own[TOGETHER];
  UNROLL for (int i = 0; i < TOGETHER; i++) own[i] = weights[i];
  for (int c = 0; c < HEAD; c++) {
    V sum = sums[c];
    UNROLL for (int i = 0; i < TOGETHER; i++) sum += own[i] * rows[i * HEAD + c];
    sums[c] = sum;
  }
}

// Place in a tile of the first queries that see a key which is `ahead` of the tile's first query
INLINE int first_that_sees(const int ahead) { return CAUSAL && ahead > 0 ? ahead / TOGETHER * TOGETHER : 0; }

// Turn TOGETHER queries' products with 16 keys into exponentials of their scores less the largest so far, `most`, of which
// `total` has the sums by place of a key; `factors`: of sums with earlier keys, whose largest score was another. -> weights
INLINE void weigh(V *weights, float *most, V *total, float *factors, const float scale, const Ints there, const int key,
                  const int query) {
  V shrunk = (V)0;
  UNROLL for (int i = 0; i < TOGETHER; i++) {
    weights[i] = seen(there, key, query + i) ? weights[i] * scale : (V)NOTHING;
    const float top = largest(weights[i]), old = most[i];
    most[i] = top > old ? top : old;
    ELEMENT(shrunk, i) = old - most[i];
  }
  shrunk = exponential(shrunk);
  UNROLL for (int i = 0; i < TOGETHER; i++) {
    weights[i] = seen(there, key, query + i) ? exponential(weights[i] - most[i]) : (V)0;
    factors[i] = ELEMENT(shrunk, i);
    total[i] = total[i] * factors[i] + weights[i];
  }
}

#define TILE_OF_QUERIES                                                                             \
  const int tiles = (t + QUERIES - 1) / QUERIES, item = get_global_id(0), head = item / tiles % heads; \
  const int image = item / tiles / heads, first = item % tiles * QUERIES;                           \
  if (image >= n) return;                                                                           \
  const int count = LEAST(QUERIES, t - first), key_head = head / share;                             \
  const int stop = CAUSAL ? LEAST(s, first + count) : s;                                            \
  const size_t m = (size_t)n * t, key_m = (size_t)n * s, start = (size_t)image * t + first, key_start = (size_t)image * s;

KERNEL attend(INPUT_VALUES(q), INPUT_VALUES(k), INPUT_VALUES(v) INPUT_MASK, OUTPUT_VALUES(y), ATTENTION_ARGUMENTS) {
  TILE_OF_QUERIES
  float queries[QUERIES * HEAD], most[QUERIES];
  V total[QUERIES], sums[QUERIES * HEAD_BLOCKS], columns[HEAD], rows[KEYS * HEAD_BLOCKS];
  for (int r = 0; r < QUERIES; r++) {
    load_head(queries + r * HEAD, START(q), head, m, start + LEAST(r, count - 1));
    most[r] = NOTHING;
    total[r] = (V)0;
    for (int b = 0; b < HEAD_BLOCKS; b++) sums[r * HEAD_BLOCKS + b] = (V)0;
  }
  for (int key = 0; key < stop; key += KEYS) {
    load_columns(columns, START(k), key_head, key_m, key_start + key, s - key);
    load_rows(rows, START(v), key_head, key_m, key_start + key, s - key);
    const Ints there = keys_there(MASK_START, n, image, key, s);
    for (int r = first_that_sees(key - first); r < count; r += TOGETHER) {
      V weights[TOGETHER];
      float factors[TOGETHER];
      scores_of(weights, queries + r * HEAD, columns);
      weigh(weights, most + r, total + r, factors, scale, there, key, first + r);
      add_weighed(sums + r * HEAD_BLOCKS, factors, weights, rows);
    }
  }
  for (int r = 0; r < count; r++) {
    const float sum = sum_of(total[r]), factor = sum > 0.0f ? 1.0f / sum : 0.0f;
    for (int b = 0; b < HEAD_BLOCKS; b++) sums[r * HEAD_BLOCKS + b] = sums[r * HEAD_BLOCKS + b] * factor;
    store_head(START(y), (const float *)(sums + r * HEAD_BLOCKS), head, heads, m, start + r);
  }
}

// statistics[0][row of a head]: the logarithm of the sum of exponentials; [1]: the sum of dy y. Rows are those of
// (image, head, query).
KERNEL attention_statistics(INPUT_VALUES(q), INPUT_VALUES(k) INPUT_MASK, INPUT_VALUES(y), INPUT_VALUES(dy),
                            OUTPUT(statistics), ATTENTION_ARGUMENTS) {
  TILE_OF_QUERIES
  float queries[QUERIES * HEAD], most[QUERIES];
  V total[QUERIES], columns[HEAD];
  for (int r = 0; r < QUERIES; r++) {
    load_head(queries + r * HEAD, START(q), head, m, start + LEAST(r, count - 1));
    most[r] = NOTHING;
    total[r] = (V)0;
  }
  for (int key = 0; key < stop; key += KEYS) {
    load_columns(columns, START(k), key_head, key_m, key_start + key, s - key);
    const Ints there = keys_there(MASK_START, n, image, key, s);
    for (int r = first_that_sees(key - first); r < count; r += TOGETHER) {
      V weights[TOGETHER];
      float factors[TOGETHER];
      scores_of(weights, queries + r * HEAD, columns);
      weigh(weights, most + r, total + r, factors, scale, there, key, first + r);
    }
  }
  output place = START(statistics) + ((size_t)image * heads + head) * t + first;
  for (int r = 0; r < count; r++) {
    float own[HEAD], gradient[HEAD], products = 0.0f;
    load_head(own, START(y), head, m, start + r);
    load_head(gradient, START(dy), head, m, start + r);
#if HEAD % BLOCK == 0
    V sum = (V)0;
    for (int b = 0; b < HEAD; b += BLOCK) sum += *(V_in_memory *)(own + b) * *(V_in_memory *)(gradient + b);
    products = sum_of(sum);
#else
    for (int c = 0; c < HEAD; c++) products += own[c] * gradient[c];
#endif
    const float sum_r = sum_of(total[r]);
    place[r] = sum_r > 0.0f ? most[r] + log(sum_r) : -NOTHING;
    place[m * heads + r] = products;
  }
}

KERNEL attend_backward_queries(INPUT_VALUES(q), INPUT_VALUES(k), INPUT_VALUES(v) INPUT_MASK, INPUT_VALUES(dy),
                               INPUT(statistics), OUTPUT_VALUES(dq), ATTENTION_ARGUMENTS) {
  TILE_OF_QUERIES
  float queries[QUERIES * HEAD], gradients[QUERIES * HEAD];
  V sums[QUERIES * HEAD_BLOCKS], scores[QUERIES], columns[HEAD], values[HEAD], rows[KEYS * HEAD_BLOCKS];
  for (int r = 0; r < QUERIES; r++) {
    load_head(queries + r * HEAD, START(q), head, m, start + LEAST(r, count - 1));
    load_head(gradients + r * HEAD, START(dy), head, m, start + LEAST(r, count - 1));
    for (int b = 0; b < HEAD_BLOCKS; b++) sums[r * HEAD_BLOCKS + b] = (V)0;
  }
  input place = START(statistics) + ((size_t)image * heads + head) * t + first;
  for (int key = 0; key < stop; key += KEYS) {
    load_columns(columns, START(k), key_head, key_m, key_start + key, s - key);
    load_columns(values, START(v), key_head, key_m, key_start + key, s - key);
    load_rows(rows, START(k), key_head, key_m, key_start + key, s - key);
    const Ints there = keys_there(MASK_START, n, image, key, s);
    const int seeing = first_that_sees(key - first);
    for (int r = seeing; r < count; r += TOGETHER) scores_of(scores + r, queries + r * HEAD, columns);
    for (int r = seeing; r < count; r += TOGETHER) {
      V slopes[TOGETHER];
      const float whole[TOGETHER] = {1.0f, 1.0f, 1.0f, 1.0f};
      scores_of(slopes, gradients + r * HEAD, values);
      UNROLL for (int i = 0; i < TOGETHER; i++) {
        const int row = LEAST(r + i, count - 1);
        const V p = exponential(scores[r + i] * scale - place[row]);
        slopes[i] = seen(there, key, first + row) ? p * (slopes[i] - place[m * heads + row]) * scale : (V)0;
      }
      add_weighed(sums + r * HEAD_BLOCKS, whole, slopes, rows);
    }
  }
  for (int r = 0; r < count; r++)
    store_head(START(dq), (const float *)(sums + r * HEAD_BLOCKS), head, heads, m, start + r);
}

// Of 16 keys and one key head, over all queries of the heads that read it
KERNEL attend_backward_keys(INPUT_VALUES(q), INPUT_VALUES(k), INPUT_VALUES(v) INPUT_MASK, INPUT_VALUES(dy),
                            INPUT(statistics), OUTPUT_VALUES(dk), OUTPUT_VALUES(dv), ATTENTION_ARGUMENTS) {
  const int tiles = (s + KEYS - 1) / KEYS, key_heads = heads / share, item = get_global_id(0);
  const int key_head = item / tiles % key_heads, image = item / tiles / key_heads, key = item % tiles * KEYS;
  if (image >= n) return;
  const size_t m = (size_t)n * t, key_m = (size_t)n * s, start = (size_t)image * t, key_start = (size_t)image * s;
  V columns[HEAD], values[HEAD], of_keys[HEAD], of_values[HEAD];
  float queries[TOGETHER * HEAD], gradients[TOGETHER * HEAD];
  load_columns(columns, START(k), key_head, key_m, key_start + key, s - key);
  load_columns(values, START(v), key_head, key_m, key_start + key, s - key);
  for (int c = 0; c < HEAD; c++) of_keys[c] = of_values[c] = (V)0;
  const Ints there = keys_there(MASK_START, n, image, key, s);
  for (int head = key_head * share; head < (key_head + 1) * share; head++) {
    input place = START(statistics) + ((size_t)image * heads + head) * t;
    for (int first = CAUSAL ? key : 0; first < t; first += TOGETHER) {
      for (int r = 0; r < TOGETHER; r++) {
        load_head(queries + r * HEAD, START(q), head, m, start + LEAST(first + r, t - 1));
        load_head(gradients + r * HEAD, START(dy), head, m, start + LEAST(first + r, t - 1));
      }
      V weights[TOGETHER], slopes[TOGETHER];
      scores_of(weights, queries, columns);
      scores_of(slopes, gradients, values);
      UNROLL for (int i = 0; i < TOGETHER; i++) {
        const int row = LEAST(first + i, t - 1);
        const Ints sees = first + i < t ? seen(there, key, row) : (Ints)0;
        weights[i] = sees ? exponential(weights[i] * scale - place[row]) : (V)0;
        slopes[i] = weights[i] * (slopes[i] - place[m * heads + row]) * scale;
      }
      add_columns(of_keys, slopes, queries);
      add_columns(of_values, weights, gradients);
    }
  }
  float row[HEAD];
  for (int j = 0; j < KEYS && key + j < s; j++) {
    for (int c = 0; c < HEAD; c++) row[c] = ELEMENT(of_keys[c], j);
    store_head(START(dk), row, key_head, key_heads, key_m, key_start + key + j);
    for (int c = 0; c < HEAD; c++) row[c] = ELEMENT(of_values[c], j);
    store_head(START(dv), row, key_head, key_heads, key_m, key_start + key + j);
  }
}

// Write a step's key and value to row `position` of keys and values, each of s rows of `blocks` blocks, and the mask of
// the rows up to it. Items below `blocks` copy a block each, the others write 16 numbers of the mask.
KERNEL remember(INPUT(key), INPUT(value), INPUT(position), OUTPUT(keys), OUTPUT(values), OUTPUT(mask), const int s,
                const int blocks) {
  const int place = (int)(START(position)[0] + 0.5f), item = ITEM - blocks;
  if (ITEM < blocks && place < s) {
    store(START(keys) + row_at(ITEM, s, place), load(START(key) + ITEM * BLOCK));
    store(START(values) + row_at(ITEM, s, place), load(START(value) + ITEM * BLOCK));
  }
  if (item >= 0 && item * BLOCK < s) {
    V sees = (V)0;
    for (int i = 0; i < BLOCK; i++) ELEMENT(sees, i) = item * BLOCK + i <= place && item * BLOCK + i < s;
    store(START(mask) + item * BLOCK, sees);
  }
}
