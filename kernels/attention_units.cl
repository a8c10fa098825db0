// The kernels of attention.cl for halves, by matrix units (matrix_units.h). A work-group of four warps has ROWS queries, or
// keys, a warp 16 of them, whose channels its registers hold; it reads the other side's rows from local memory, TILE at a
// time. Weights of a tile are rounded to halves as they are multiplied. Arguments and results are those of attention.cl.
#define VECTOR_WIDTH 4
#define FIRST_CHANNEL 0
#include "heads.h"
#include "matrix_units.h"

#define ROWS (GROUP / 2)
#if HEAD > 64
#define TILE 32  // so that registers have room for twice the channels
#else
#define TILE 64
#endif
#define PANELS (HEAD / BLOCK)
#define TILE_CHUNKS (PANELS * TILE * CHUNKS)
#define WARP_ROW ((int)get_local_id(0) / 32 * 16)
// A lane has sums of two rows of its warp, ROW and ROW + 8, and of two columns of 8, COLUMN and COLUMN + 1.
#define ROW (LANE / 4)
#define COLUMN (LANE % 4 * 2)
#define LOG2_E 1.44269504f
#define LN_2 0.693147181f

#if BY_PTX
INLINE float power_of_2(const float v) {
  float r;
  __asm__("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
  return r;
}
INLINE float of_lane(const float v, const int distance, __local uint *exchange) {
  float r;
  __asm__ volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, 0xffffffff;" : "=f"(r) : "f"(v), "r"(distance));
  return r;
}
#if TYPE == BFLOAT16
#define TO_PAIR "cvt.rn.bf16x2.f32"
#else
#define TO_PAIR "cvt.rn.f16x2.f32"
#endif
INLINE uint pair_of(const float first, const float second) {
  uint r;
  __asm__(TO_PAIR " %0, %1, %2;" : "=r"(r) : "f"(second), "f"(first));
  return r;
}
#else
INLINE float power_of_2(const float v) { return exp(v * LN_2); }
INLINE float of_lane(const float v, const int distance, __local uint *exchange) {
  barrier(CLK_LOCAL_MEM_FENCE);
  exchange[get_local_id(0)] = as_uint(v);
  barrier(CLK_LOCAL_MEM_FENCE);
  const float other = as_float(exchange[get_local_id(0) ^ distance]);
  barrier(CLK_LOCAL_MEM_FENCE);
  return other;
}
INLINE uint pair_of(const float first, const float second) { return rounded_value(first) | (uint)rounded_value(second) << 16; }
#endif

// The four lanes that share a row find its largest value, and its sum.
INLINE float largest_of_row(float v, __local uint *exchange) {
  UNROLL for (int distance = 1; distance < 4; distance *= 2) {
    const float other = of_lane(v, distance, exchange);
    v = other > v ? other : v;
  }
  return v;
}
INLINE float sum_of_row(float v, __local uint *exchange) {
  UNROLL for (int distance = 1; distance < 4; distance *= 2) v += of_lane(v, distance, exchange);
  return v;
}

// Begin to copy a head's channels of `size` rows from `row` on to a tile, [panel][row][16]; rows from `count` on are zeros.
INLINE void copy_rows(__local Chunk *tile, input_values x, const int head, const size_t m, const size_t row,
                      const int count, const int size) {
  for (int i = get_local_id(0); i < size * PANELS * CHUNKS; i += GROUP) {
    const int r = i / CHUNKS % size, panel = i / CHUNKS / size;
    input_values from = x + row_at(head * PANELS + panel, m, row + (r < count ? r : 0));
    copy_chunk(tile + panel * size * CHUNKS + chunk(r, i % CHUNKS), (__global const Chunk *)from + i % CHUNKS,
               r < count, (Chunk)0, 0);
  }
}

// The channels of a warp's rows, by way of local memory
INLINE void load_own(Left *own, __local Chunk *room, input_values x, const int head, const size_t m, const size_t row,
                     const int count) {
  barrier(CLK_LOCAL_MEM_FENCE);
  copy_rows(room, x, head, m, row, count, ROWS);
  COMMIT_COPIES;
  WAIT_FOR_COPIES;
  barrier(CLK_LOCAL_MEM_FENCE);
  UNROLL for (int p = 0; p < PANELS; p++)
    own[p] = load_matrices(room + (p * ROWS + WARP_ROW) * CHUNKS, ROWS_FIRST, 0);
}

// sums[j] = the products of a warp's rows and rows 8 j to 8 j + 7 of a tile
INLINE void multiply_rows(Sums *sums, const Left *own, __local const Chunk *tile, __local uint *exchange) {
  UNROLL for (int j = 0; j < TILE / 8; j++) sums[j] = (Sums)0;
  UNROLL for (int p = 0; p < PANELS; p++) UNROLL for (int j = 0; j < TILE / 16; j++) {
    const Left r = load_matrices(tile + (p * TILE + j * 16) * CHUNKS, ROWS_FIRST, 0);
    sums[2 * j] = add_product(sums[2 * j], own[p], r.xz, exchange);
    sums[2 * j + 1] = add_product(sums[2 * j + 1], own[p], r.yw, exchange);
  }
}

// sums[j] += the products of a warp's weights of a tile's rows and columns 8 j to 8 j + 7 of these rows
INLINE void add_rows(Sums *sums, const Sums *weights, __local const Chunk *tile, __local uint *exchange) {
  UNROLL for (int k = 0; k < TILE / 16; k++) {
    const Sums low = weights[2 * k], high = weights[2 * k + 1];
    const Left a = (Left)(pair_of(low.x, low.y), pair_of(low.z, low.w), pair_of(high.x, high.y),
                          pair_of(high.z, high.w));
    UNROLL for (int p = 0; p < PANELS; p++) {
      const Left r = load_transposed(tile + (p * TILE + k * 16) * CHUNKS, ROWS_FIRST);
      sums[2 * p] = add_product(sums[2 * p], a, r.xy, exchange);
      sums[2 * p + 1] = add_product(sums[2 * p + 1], a, r.zw, exchange);
    }
  }
}

INLINE void clear(Sums *sums) { UNROLL for (int j = 0; j < HEAD / 8; j++) sums[j] = (Sums)0; }

// Write a warp's rows, times a factor for each of a lane's two; `count`: rows that there are from the work-group's first on
INLINE void store_rows(output_values y, const Sums *sums, const float *factors, const int head, const size_t m,
                       const size_t first, const int count) {
  UNROLL for (int half_ = 0; half_ < 2; half_++) {
    const int row = WARP_ROW + ROW + half_ * 8;
    if (row < count)
      UNROLL for (int j = 0; j < HEAD / 8; j++) {
        const float2 v = half_ ? sums[j].zw : sums[j].xy;
        *(__global uint *)(y + value_at(head * HEAD + j * 8 + COLUMN, m, first + row)) =
            pair_of(v.x * factors[half_], v.y * factors[half_]);
      }
  }
}

// Turn a tile's products into powers of 2 of their scores less the largest so far, `most`, of each of a lane's two rows;
// `total`: the lane's share of their sums; `factors`: of what was summed before, when another was the largest.
INLINE void weigh(Sums *scores, float *most, float *total, float *factors, const float scale, __local const int *there,
                  const int key, const int query, __local uint *exchange) {
  float top[2] = {most[0], most[1]};
  UNROLL for (int j = 0; j < TILE / 8; j++) UNROLL for (int i = 0; i < 4; i++) {
    const int column = j * 8 + COLUMN + i % 2;
    const float score = sees(there[column], key + column, query + i / 2 * 8) ? ELEMENT(scores[j], i) * scale : NOTHING;
    ELEMENT(scores[j], i) = score;
    top[i / 2] = score > top[i / 2] ? score : top[i / 2];
  }
  UNROLL for (int r = 0; r < 2; r++) {
    top[r] = largest_of_row(top[r], exchange);
    factors[r] = power_of_2(most[r] - top[r]);
    most[r] = top[r];
    total[r] *= factors[r];
  }
  UNROLL for (int j = 0; j < TILE / 8; j++) UNROLL for (int i = 0; i < 4; i++) {
    const float score = ELEMENT(scores[j], i);
    const float weight = score > NOTHING ? power_of_2(score - most[i / 2]) : 0.0f;
    ELEMENT(scores[j], i) = weight;
    total[i / 2] += weight;
  }
}

#define GROUP_OF_QUERIES                                                                                      \
  const int tiles = (t + ROWS - 1) / ROWS, item = get_group_id(0), head = item / tiles % heads;               \
  const int image = item / tiles / heads, first = item % tiles * ROWS, query = first + WARP_ROW + ROW;        \
  const int key_head = head / share, stop = CAUSAL ? LEAST(s, first + ROWS) : s;                              \
  const size_t m = (size_t)n * t, key_m = (size_t)n * s, start = (size_t)image * t + first;                    \
  const size_t key_start = (size_t)image * s;                                                                 \
  __local Chunk keys[2 * TILE_CHUNKS];                                                                         \
  __local int there[TILE];                                                                                    \
  LOCAL_EXCHANGE(exchange);

#define VALUE_TILE (keys + TILE_CHUNKS)
#define COPY_KEYS                                                                                                \
  barrier(CLK_LOCAL_MEM_FENCE);                                                                                  \
  if (get_local_id(0) < TILE) there[get_local_id(0)] = is_there(MASK_START, n, image, key + get_local_id(0), s); \
  copy_rows(keys, START(k), key_head, key_m, key_start + key, s - key, TILE);
#define WAIT_FOR_TILES \
  COMMIT_COPIES;       \
  WAIT_FOR_COPIES;     \
  barrier(CLK_LOCAL_MEM_FENCE);

KERNEL attend(INPUT_VALUES(q), INPUT_VALUES(k), INPUT_VALUES(v) INPUT_MASK, OUTPUT_VALUES(y), ATTENTION_ARGUMENTS) {
  GROUP_OF_QUERIES
  Left own[PANELS];
  Sums sums[HEAD / 8];
  float most[2] = {NOTHING, NOTHING}, total[2] = {0.0f, 0.0f}, factors[2];
  load_own(own, keys, START(q), head, m, start, t - first);
  clear(sums);
  for (int key = 0; key < stop; key += TILE) {
    COPY_KEYS
    copy_rows(VALUE_TILE, START(v), key_head, key_m, key_start + key, s - key, TILE);
    WAIT_FOR_TILES
    Sums weights[TILE / 8];
    multiply_rows(weights, own, keys, exchange);
    weigh(weights, most, total, factors, scale * LOG2_E, there, key, query, exchange);
    UNROLL for (int j = 0; j < HEAD / 8; j++) sums[j] *= (Sums)(factors[0], factors[0], factors[1], factors[1]);
    add_rows(sums, weights, VALUE_TILE, exchange);
  }
  UNROLL for (int r = 0; r < 2; r++) {
    const float sum = sum_of_row(total[r], exchange);
    factors[r] = sum > 0.0f ? 1.0f / sum : 0.0f;
  }
  store_rows(START(y), sums, factors, head, m, start, t - first);
}

KERNEL attention_statistics(INPUT_VALUES(q), INPUT_VALUES(k) INPUT_MASK, INPUT_VALUES(y), INPUT_VALUES(dy),
                            OUTPUT(statistics), ATTENTION_ARGUMENTS) {
  GROUP_OF_QUERIES
  Left own[PANELS];
  float most[2] = {NOTHING, NOTHING}, total[2] = {0.0f, 0.0f}, factors[2];
  load_own(own, keys, START(q), head, m, start, t - first);
  for (int key = 0; key < stop; key += TILE) {
    COPY_KEYS
    WAIT_FOR_TILES
    Sums weights[TILE / 8];
    multiply_rows(weights, own, keys, exchange);
    weigh(weights, most, total, factors, scale * LOG2_E, there, key, query, exchange);
  }
  output place = START(statistics) + ((size_t)image * heads + head) * t + first;
  UNROLL for (int r = 0; r < 2; r++) {
    const float sum = sum_of_row(total[r], exchange);
    const int row = WARP_ROW + ROW + r * 8;
    if (COLUMN == 0 && row < t - first) place[row] = sum > 0.0f ? most[r] * LN_2 + log(sum) : -NOTHING;
  }
  const int row = get_local_id(0);
  if (row >= LEAST(ROWS, t - first)) return;
  V products = (V)0;
  for (int c = 0; c < HEAD; c += VECTOR_WIDTH) {
    const size_t at = value_at(head * HEAD + c, m, start + row);
    products += load(START(y) + at) * load(START(dy) + at);
  }
  place[m * heads + row] = products.x + products.y + products.z + products.w;
}

KERNEL attend_backward_queries(INPUT_VALUES(q), INPUT_VALUES(k), INPUT_VALUES(v) INPUT_MASK, INPUT_VALUES(dy),
                               INPUT(statistics), OUTPUT_VALUES(dq), ATTENTION_ARGUMENTS) {
  GROUP_OF_QUERIES
  Left own[PANELS], gradient[PANELS];
  Sums sums[HEAD / 8];
  float whole[2], products[2];
  const float ones[2] = {1.0f, 1.0f};
  load_own(own, keys, START(q), head, m, start, t - first);
  load_own(gradient, keys, START(dy), head, m, start, t - first);
  clear(sums);
  input place = START(statistics) + ((size_t)image * heads + head) * t;
  UNROLL for (int r = 0; r < 2; r++) {
    whole[r] = place[LEAST(query + r * 8, t - 1)] * LOG2_E;
    products[r] = place[m * heads + LEAST(query + r * 8, t - 1)];
  }
  for (int key = 0; key < stop; key += TILE) {
    COPY_KEYS
    copy_rows(VALUE_TILE, START(v), key_head, key_m, key_start + key, s - key, TILE);
    WAIT_FOR_TILES
    Sums scores[TILE / 8], slopes[TILE / 8];
    multiply_rows(scores, own, keys, exchange);
    multiply_rows(slopes, gradient, VALUE_TILE, exchange);
    UNROLL for (int j = 0; j < TILE / 8; j++) UNROLL for (int i = 0; i < 4; i++) {
      const int column = j * 8 + COLUMN + i % 2;
      const float weight = sees(there[column], key + column, query + i / 2 * 8)
                           ? power_of_2(ELEMENT(scores[j], i) * (scale * LOG2_E) - whole[i / 2]) : 0.0f;
      ELEMENT(slopes[j], i) = weight * (ELEMENT(slopes[j], i) - products[i / 2]) * scale;
    }
    add_rows(sums, slopes, keys, exchange);
  }
  store_rows(START(dq), sums, ones, head, m, start, t - first);
}

// Gradients of a work-group's keys and values in one key head, over all queries of the heads that read it
KERNEL attend_backward_keys(INPUT_VALUES(q), INPUT_VALUES(k), INPUT_VALUES(v) INPUT_MASK, INPUT_VALUES(dy),
                            INPUT(statistics), OUTPUT_VALUES(dk), OUTPUT_VALUES(dv), ATTENTION_ARGUMENTS) {
  const int tiles = (s + ROWS - 1) / ROWS, key_heads = heads / share, item = get_group_id(0);
  const int key_head = item / tiles % key_heads, image = item / tiles / key_heads, first = item % tiles * ROWS;
  const size_t m = (size_t)n * t, key_m = (size_t)n * s, start = (size_t)image * t;
  const size_t key_start = (size_t)image * s + first;
  __local Chunk queries[2 * TILE_CHUNKS], *const gradients = queries + TILE_CHUNKS;
  __local float whole[TILE], products[TILE];
  LOCAL_EXCHANGE(exchange);
  Left own[PANELS], value[PANELS];
  Sums of_keys[HEAD / 8], of_values[HEAD / 8];
  const float ones[2] = {1.0f, 1.0f};
  load_own(own, queries, START(k), key_head, key_m, key_start, s - first);
  load_own(value, queries, START(v), key_head, key_m, key_start, s - first);
  clear(of_keys);
  clear(of_values);
  const int key = first + WARP_ROW + ROW;
  const int there[2] = {is_there(MASK_START, n, image, key, s), is_there(MASK_START, n, image, key + 8, s)};
  for (int head = key_head * share; head < (key_head + 1) * share; head++) {
    input place = START(statistics) + ((size_t)image * heads + head) * t;
    for (int query = CAUSAL ? first : 0; query < t; query += TILE) {
      barrier(CLK_LOCAL_MEM_FENCE);
      if (get_local_id(0) < TILE) {
        const int at = LEAST(query + (int)get_local_id(0), t - 1);
        whole[get_local_id(0)] = place[at] * LOG2_E;
        products[get_local_id(0)] = place[m * heads + at];
      }
      copy_rows(queries, START(q), head, m, start + query, t - query, TILE);
      copy_rows(gradients, START(dy), head, m, start + query, t - query, TILE);
      WAIT_FOR_TILES
      Sums weights[TILE / 8], slopes[TILE / 8];
      multiply_rows(weights, own, queries, exchange);
      UNROLL for (int j = 0; j < TILE / 8; j++) UNROLL for (int i = 0; i < 4; i++) {
        const int column = j * 8 + COLUMN + i % 2;
        const int seen = query + column < t && sees(there[i / 2], key + i / 2 * 8, query + column);
        ELEMENT(weights[j], i) = seen ? power_of_2(ELEMENT(weights[j], i) * (scale * LOG2_E) - whole[column]) : 0.0f;
      }
      add_rows(of_values, weights, gradients, exchange);
      multiply_rows(slopes, value, gradients, exchange);
      UNROLL for (int j = 0; j < TILE / 8; j++) UNROLL for (int i = 0; i < 4; i++)
        ELEMENT(slopes[j], i) =
            ELEMENT(weights[j], i) * (ELEMENT(slopes[j], i) - products[j * 8 + COLUMN + i % 2]) * scale;
      add_rows(of_keys, slopes, queries, exchange);
    }
  }
  store_rows(START(dk), of_keys, ones, key_head, key_m, key_start, s - first);
  store_rows(START(dv), of_values, ones, key_head, key_m, key_start, s - first);
}
