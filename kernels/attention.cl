// Scaled dot-product attention by tiles of queries and keys, so that no matrix of both is in memory (Dao et al. 2022,
// "FlashAttention", arXiv 2205.14135). A work-item takes whole blocks: 16 keys are the elements of a vector.
#include "heads.h"
#include "exponential.h"

#ifndef QUERIES
#define QUERIES 32  // of a tile
#endif
#define KEYS BLOCK
#ifndef TOGETHER
#define TOGETHER 4  // queries that share what is loaded: their sums fill the registers
#endif
#define HEAD_BLOCKS ((HEAD + BLOCK - 1) / BLOCK)
#define TILES (HEAD <= 32 ? 4 : HEAD <= 64 ? 2 : 1)  // of keys, whose scores are weighed at once
#ifndef KEEPS
#define KEEPS 0
#endif

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

// Write the vectors of a head in one row, as load_head reads it
INLINE void store_vectors(__global Value *y, const V *vectors, const int head, const int heads, const size_t m,
                          const size_t row) {
#if HEAD % BLOCK == 0
  for (int b = 0; b < HEAD_BLOCKS; b++) store(y + row_at(head * HEAD_BLOCKS + b, m, row), vectors[b]);
#else
  store_head(y, (const float *)vectors, head, heads, m, row);
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
  V sums[TOGETHER];
  UNROLL for (int r = 0; r < TOGETHER; r++) sums[r] = (V)0;
  for (int c = 0; c < HEAD; c++)
    UNROLL for (int r = 0; r < TOGETHER; r++) sums[r] += queries[r * HEAD + c] * columns[c];
  UNROLL for (int r = 0; r < TOGETHER; r++) scores[r] = sums[r];
}

// sums[row][block] = sums * factor + the rows' weights of `tiles` x 16 keys times these keys' vectors
INLINE void add_weighed(V *sums, const float *factors, const V *weights, const V *rows, const int tiles) {
  for (int b = 0; b < HEAD_BLOCKS; b++) {
    V total[TOGETHER];
    UNROLL for (int r = 0; r < TOGETHER; r++) total[r] = sums[r * HEAD_BLOCKS + b] * factors[r];
    for (int tile = 0; tile < tiles; tile++)
      for (int j = 0; j < KEYS; j++) {
        const V v = rows[(tile * KEYS + j) * HEAD_BLOCKS + b];
        UNROLL for (int r = 0; r < TOGETHER; r++) total[r] += ((const float *)&weights[tile * TOGETHER + r])[j] * v;
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

// True if TOGETHER queries from `query` on see all of 16 keys
INLINE int sees_all(const int key, const int query, const int s) {
#if MASKED
  return 0;
#elif CAUSAL
  return key + KEYS <= s && key + KEYS - 1 <= query;
#else
  return key + KEYS <= s;
#endif
}

// Turn TOGETHER queries' products with `tiles` x 16 keys into exponentials of their scores less the largest so far, `most`, of
// which `total` has the sums by place of a key; `factors`: of sums with earlier keys, whose largest score was another
INLINE void weigh(V *weights, const int tiles, float *most, V *total, float *factors, const float scale,
                  const Ints *there, const int key, const int query, const int s) {
  V shrunk = (V)0, tops[TOGETHER];
  UNROLL for (int i = 0; i < TOGETHER; i++) tops[i] = (V)NOTHING;
  for (int tile = 0; tile < tiles; tile++) {
    V *own = weights + tile * TOGETHER;
    UNROLL for (int i = 0; i < TOGETHER; i++) own[i] = own[i] * scale;
    if (!sees_all(key + tile * KEYS, query, s))
      UNROLL for (int i = 0; i < TOGETHER; i++)
        own[i] = seen(there[tile], key + tile * KEYS, query + i) ? own[i] : (V)NOTHING;
    UNROLL for (int i = 0; i < TOGETHER; i++) tops[i] = own[i] > tops[i] ? own[i] : tops[i];
  }
  UNROLL for (int i = 0; i < TOGETHER; i++) {
    const float top = largest(tops[i]), old = most[i];
    most[i] = top > old ? top : old;
    ELEMENT(shrunk, i) = old - most[i];
  }
  if (key > 0) shrunk = exponential(shrunk);
  UNROLL for (int i = 0; i < TOGETHER; i++) {
    factors[i] = key > 0 ? ELEMENT(shrunk, i) : 0.0f;
    total[i] = total[i] * factors[i];
  }
  for (int tile = 0; tile < tiles; tile++) {
    V *own = weights + tile * TOGETHER;
    UNROLL for (int i = 0; i < TOGETHER; i++) own[i] = exponential(own[i] - most[i]);
    if (!sees_all(key + tile * KEYS, query, s))  // or a query that sees none would see all
      UNROLL for (int i = 0; i < TOGETHER; i++)
        own[i] = seen(there[tile], key + tile * KEYS, query + i) ? own[i] : (V)0;
    UNROLL for (int i = 0; i < TOGETHER; i++) total[i] += own[i];
  }
}

#define TILE_OF_QUERIES                                                                             \
  const int tiles = (t + QUERIES - 1) / QUERIES, item = get_global_id(0), head = item / tiles % heads; \
  const int image = item / tiles / heads, first = item % tiles * QUERIES;                           \
  if (image >= n) return;                                                                           \
  const int count = LEAST(QUERIES, t - first), key_head = head / share;                             \
  const int stop = CAUSAL ? LEAST(s, first + count) : s;                                            \
  const size_t m = (size_t)n * t, key_m = (size_t)n * s, start = (size_t)image * t + first, key_start = (size_t)image * s;

// Logarithms of the sums of exponentials of `count` queries; of one that sees no key a number whose exponential is 0
INLINE void store_logarithms(output place, const float *most, const V *total, const int count) {
  for (int r = 0; r < count; r += BLOCK) {
    V sum, top;
    for (int i = 0; i < BLOCK; i++) {
      ELEMENT(sum, i) = sum_of(total[r + i]);
      ELEMENT(top, i) = most[r + i];
    }
    const V found = sum > (V)0 ? top + logarithm(sum) : (V)-NOTHING;
    for (int i = 0; i < BLOCK && r + i < count; i++) place[r + i] = ELEMENT(found, i);
  }
}

// Of `tiles` x 16 keys, those that a query before `query` + TOGETHER sees
INLINE int tiles_seen(const int tiles, const int key, const int query) {
  return CAUSAL ? LEAST(tiles, (query + TOGETHER - 1 - key) / KEYS + 1) : tiles;
}

// With KEEPS, the backward pass gets the logarithm of each sum of exponentials. Rows are those of (image, head, query).
KERNEL attend(INPUT_VALUES(q), INPUT_VALUES(k), INPUT_VALUES(v) INPUT_MASK, OUTPUT_VALUES(y) OUTPUT_IF(KEEPS, logarithms),
              ATTENTION_ARGUMENTS) {
  TILE_OF_QUERIES
  float queries[QUERIES * HEAD], most[QUERIES];
  V total[QUERIES], sums[QUERIES * HEAD_BLOCKS], columns[TILES * HEAD], rows[TILES * KEYS * HEAD_BLOCKS];
  Ints there[TILES];
  for (int r = 0; r < QUERIES; r++) {
    load_head(queries + r * HEAD, START(q), head, m, start + LEAST(r, count - 1));
    most[r] = NOTHING;
    total[r] = (V)0;
    for (int b = 0; b < HEAD_BLOCKS; b++) sums[r * HEAD_BLOCKS + b] = (V)0;
  }
  for (int key = 0; key < stop; key += TILES * KEYS) {
    const int all = LEAST(TILES, (stop - key + KEYS - 1) / KEYS);
    for (int tile = 0; tile < all; tile++) {
      const int own = key + tile * KEYS;
      load_columns(columns + tile * HEAD, START(k), key_head, key_m, key_start + own, s - own);
      load_rows(rows + tile * KEYS * HEAD_BLOCKS, START(v), key_head, key_m, key_start + own, s - own);
      there[tile] = keys_there(MASK_START, n, image, own, s);
    }
    for (int r = first_that_sees(key - first); r < count; r += TOGETHER) {
      V weights[TILES * TOGETHER];
      float factors[TOGETHER];
      const int seen_tiles = tiles_seen(all, key, first + r);
      for (int tile = 0; tile < seen_tiles; tile++)
        scores_of(weights + tile * TOGETHER, queries + r * HEAD, columns + tile * HEAD);
      weigh(weights, seen_tiles, most + r, total + r, factors, scale, there, key, first + r, s);
      add_weighed(sums + r * HEAD_BLOCKS, factors, weights, rows, seen_tiles);
    }
  }
  for (int r = 0; r < count; r++) {
    const float sum = sum_of(total[r]), factor = sum > 0.0f ? 1.0f / sum : 0.0f;
    for (int b = 0; b < HEAD_BLOCKS; b++) sums[r * HEAD_BLOCKS + b] = sums[r * HEAD_BLOCKS + b] * factor;
    store_vectors(START(y), sums + r * HEAD_BLOCKS, head, heads, m, start + r);
  }
#if KEEPS
  store_logarithms(START(logarithms) + ((size_t)image * heads + head) * t + first, most, total, count);
#endif
}

// The sum of dy y in one row of a head
INLINE float product_of(__global const Value *y, __global const Value *dy, const int head, const size_t m,
                        const size_t row) {
  float own[HEAD], gradient[HEAD], product = 0.0f;
  load_head(own, y, head, m, row);
  load_head(gradient, dy, head, m, row);
#if HEAD % BLOCK == 0
  V sum = (V)0;
  for (int b = 0; b < HEAD; b += BLOCK) sum += *(V_in_memory *)(own + b) * *(V_in_memory *)(gradient + b);
  product = sum_of(sum);
#else
  for (int c = 0; c < HEAD; c++) product += own[c] * gradient[c];
#endif
  return product;
}

// statistics[0][row of a head]: the logarithm of the sum of exponentials; [1]: the sum of dy y
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
      weigh(weights, 1, most + r, total + r, factors, scale, &there, key, first + r, s);
    }
  }
  output place = START(statistics) + ((size_t)image * heads + head) * t + first;
  store_logarithms(place, most, total, count);
  for (int r = 0; r < count; r++) place[m * heads + r] = product_of(START(y), START(dy), head, m, start + r);
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
      float whole[TOGETHER];
      UNROLL for (int i = 0; i < TOGETHER; i++) whole[i] = 1.0f;
      scores_of(slopes, gradients + r * HEAD, values);
      UNROLL for (int i = 0; i < TOGETHER; i++) {
        const int row = LEAST(r + i, count - 1);
        const V p = exponential(scores[r + i] * scale - place[row]);
        slopes[i] = seen(there, key, first + row) ? p * (slopes[i] - place[m * heads + row]) * scale : (V)0;
      }
      add_weighed(sums + r * HEAD_BLOCKS, whole, slopes, rows, 1);
    }
  }
  for (int r = 0; r < count; r++)
    store_vectors(START(dq), sums + r * HEAD_BLOCKS, head, heads, m, start + r);
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

// sums[key][block] += the weights of TOGETHER rows for 16 keys, times these rows' vectors
INLINE void add_rows(V *sums, const V *weights, const float *rows) {
  for (int b = 0; b < HEAD_BLOCKS; b++) {
    V own[TOGETHER];
    UNROLL for (int i = 0; i < TOGETHER; i++) own[i] = *(const V_in_memory *)(rows + i * HEAD + b * BLOCK);
    for (int j = 0; j < KEYS; j++) {
      V sum = sums[j * HEAD_BLOCKS + b];
      UNROLL for (int i = 0; i < TOGETHER; i++) sum += ((const float *)&weights[i])[j] * own[i];
      sums[j * HEAD_BLOCKS + b] = sum;
    }
  }
}

// All three gradients of one key head, where heads are whole blocks: scores and slopes are computed once. A work-item adds
// the shares of 16 keys after 16 keys to its own queries' gradients. `products` is memory for the sums of dy y.
KERNEL attend_backward(INPUT(q), INPUT(k), INPUT(v) INPUT_MASK, INPUT(y), INPUT(dy), INPUT(logarithms), OUTPUT(products),
                       OUTPUT(dq), OUTPUT(dk), OUTPUT(dv), ATTENTION_ARGUMENTS) {
  const int key_heads = heads / share, key_head = get_global_id(0) % key_heads, image = get_global_id(0) / key_heads;
  if (image >= n) return;
  const size_t m = (size_t)n * t, key_m = (size_t)n * s, start = (size_t)image * t, key_start = (size_t)image * s;
  V columns[HEAD], values[HEAD], rows[KEYS * HEAD_BLOCKS], of_keys[KEYS * HEAD_BLOCKS], of_values[KEYS * HEAD_BLOCKS];
  float queries[TOGETHER * HEAD], gradients[TOGETHER * HEAD], whole[TOGETHER];
  V sums[TOGETHER * HEAD_BLOCKS];
  UNROLL for (int i = 0; i < TOGETHER; i++) whole[i] = 1.0f;
  for (int head = key_head * share; head < (key_head + 1) * share; head++)
    for (int r = 0; r < t; r++)
      START(products)[((size_t)image * heads + head) * t + r] = product_of(START(y), START(dy), head, m, start + r);
  for (int key = 0; key < s; key += KEYS) {
    load_columns(columns, START(k), key_head, key_m, key_start + key, s - key);
    load_columns(values, START(v), key_head, key_m, key_start + key, s - key);
    load_rows(rows, START(k), key_head, key_m, key_start + key, s - key);
    for (int j = 0; j < KEYS * HEAD_BLOCKS; j++) of_keys[j] = of_values[j] = (V)0;
    const Ints there = keys_there(MASK_START, n, image, key, s);
    for (int head = key_head * share; head < (key_head + 1) * share; head++) {
      const size_t place = ((size_t)image * heads + head) * t;
      for (int first = CAUSAL ? key : 0; first < t; first += TOGETHER) {
        V weights[TOGETHER], slopes[TOGETHER];
        for (int i = 0; i < TOGETHER; i++) {
          const size_t row = start + LEAST(first + i, t - 1);
          load_head(queries + i * HEAD, START(q), head, m, row);
          load_head(gradients + i * HEAD, START(dy), head, m, row);
          for (int b = 0; b < HEAD_BLOCKS; b++)
            sums[i * HEAD_BLOCKS + b] = key > 0 ? load(START(dq) + row_at(head * HEAD_BLOCKS + b, m, row)) : (V)0;
        }
        scores_of(weights, queries, columns);
        scores_of(slopes, gradients, values);
        UNROLL for (int i = 0; i < TOGETHER; i++)
          weights[i] = exponential(weights[i] * scale - START(logarithms)[place + LEAST(first + i, t - 1)]);
        if (!sees_all(key, first, s) || first + TOGETHER > t)
          UNROLL for (int i = 0; i < TOGETHER; i++)
            weights[i] = (first + i < t ? seen(there, key, first + i) : (Ints)0) ? weights[i] : (V)0;
        UNROLL for (int i = 0; i < TOGETHER; i++)
          slopes[i] = weights[i] * (slopes[i] - START(products)[place + LEAST(first + i, t - 1)]) * scale;
        add_rows(of_values, weights, gradients);
        add_rows(of_keys, slopes, queries);
        add_weighed(sums, whole, slopes, rows, 1);
        for (int i = 0; i < TOGETHER && first + i < t; i++)
          store_vectors(START(dq), sums + i * HEAD_BLOCKS, head, heads, m, start + first + i);
      }
    }
    for (int j = 0; j < KEYS && key + j < s; j++) {
      store_vectors(START(dk), of_keys + j * HEAD_BLOCKS, key_head, key_heads, key_m, key_start + key + j);
      store_vectors(START(dv), of_values + j * HEAD_BLOCKS, key_head, key_heads, key_m, key_start + key + j);
    }
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
