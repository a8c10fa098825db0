/* The kernels of target c that round tensors to 8-bit integers and multiply them: see kernels.h. A tensor of integers
   stands for scale * (q - zero), by the 16 floats of its range, or 16 for each channel of a block where it has a range
   for each channel. Results are those of the OpenCL kernels to the bit, if the compiler doesn't contract operations
   (-ffp-contract=off). */
#include <math.h>

#include "blocks.h"

static const int8_t *integers_of(const el_value v) { return (const int8_t *)(const void *)v.p; }

/* A field of a range, for channel c of a block */
static float field(const float *range, int number, int block, int c, int per_channel) {
  return per_channel ? range[(size_t)(block * B + number) * B + c] : range[number];
}

/* -- rounding -- */

/* Halves go to even: at 1.5 * 2^23, the next float is the next integer */
static float nearest(float t) {
  const float shift = 12582912.0f;
  return (t + shift) - shift;
}

static float bounded(float t, float lowest, float highest) {
  const float above = t < lowest ? lowest : t;
  return above > highest ? highest : above;
}

static int8_t as_integer(float t) { return t != t ? 0 : (int8_t)(int)t; }

void el_philox(uint32_t counter[4], uint32_t k0, uint32_t k1, int rounds) {
  int round;
  for (round = 0; round < rounds; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    const uint64_t a = (uint64_t)0xD2511F53u * counter[0], b = (uint64_t)0xCD9E8D57u * counter[2];
    counter[0] = (uint32_t)(b >> 32) ^ counter[1] ^ k0;
    counter[1] = (uint32_t)b;
    counter[2] = (uint32_t)(a >> 32) ^ counter[3] ^ k1;
    counter[3] = (uint32_t)a;
  }
}

/* What stochastic rounding draws from: a tensor whose images have `pixels` rows in each of `blocks` */
typedef struct {
  const float *scalars; /* null: rounding is to nearest */
  int pixels, blocks, tensor, before;
} Numbers;

static uint32_t word_of(const float *scalars, int number) {
  uint32_t word;
  memcpy(&word, scalars + number, sizeof word);
  return word;
}

/* Uniform numbers for a row: those of value `first` on, of an example */
static void draw(const Numbers *n, uint32_t first, uint32_t example, float *uniform) {
  int half, i;
  for (half = 0; half < 2; half++) {
    uint32_t words[4] = {first / 8 + (uint32_t)half, example, (uint32_t)n->tensor, word_of(n->scalars, STEP)};
    el_philox(words, word_of(n->scalars, SEED), word_of(n->scalars, SEED_HIGH), 7);
    for (i = 0; i < 8; i++)
      uniform[half * 8 + i] = (float)(words[i / 2] >> i % 2 * 16 & 0xFFFF) * (1.0f / 65536) + 1.0f / 131072;
  }
}

static void draw_row(const Numbers *n, int block, int row, float *uniform) {
  const int image = row / n->pixels;
  draw(n, (uint32_t)((row - image * n->pixels) * n->blocks + block) * B, (uint32_t)(image + n->before), uniform);
}

/* How a value is rounded: the least and the most integer less the zero point. */
typedef struct {
  float scale, inverse, zero, lowest, highest;
} Rounding;

static Rounding rounding_by(const float *range, float bottom, float top) {
  const Rounding r = {range[SCALE_OF], range[INVERSE], range[ZERO], bottom - range[ZERO], top - range[ZERO]};
  return r;
}

/* The integer of v less the zero point; `uniform` is null, or a number of (0, 1) */
static float quantized(const Rounding *r, float v, const float *uniform) {
  if (uniform) return bounded(floorf(v * r->inverse + *uniform), r->lowest, r->highest);
  return nearest(bounded(v * r->inverse, r->lowest, r->highest));
}

/* -- statistics of the values that are written: a record of 16 floats for each part of the tensor. All values go to the
   first; the others stay empty -- */

typedef struct {
  float *records; /* null: none are taken */
  float least, most, clipped;
} Statistics;

static void observe(Statistics *s, float v) {
  s->least = v < s->least ? v : s->least;
  s->most = v > s->most ? v : s->most;
  s->clipped += v * 0.0f; /* a NaN, if v is one or an infinity */
}

static void observe_clipping(Statistics *s, const Rounding *r, float v) {
  const float exact = v * r->inverse;
  if (exact < r->lowest - 0.5f || exact > r->highest + 0.5f) s->clipped += 1.0f;
}

/* `parts` records of a tensor of `count` values; add: earlier micro-batches have left records there */
static void write_statistics(const Statistics *s, int count, int add, int parts) {
  float *record = s->records;
  int part;
  if (!record) return;
  for (part = add ? parts : 1; part < parts; part++) memset(record + (size_t)part * B, 0, B * sizeof *record);
  if (!add) memset(record, 0, B * sizeof *record);
  record[LEAST_FOUND] = s->least < record[LEAST_FOUND] ? s->least : record[LEAST_FOUND];
  record[MOST_FOUND] = s->most > record[MOST_FOUND] ? s->most : record[MOST_FOUND];
  record[CLIPPED] += s->clipped;
  record[COUNT] += (float)count;
}

static Statistics merged_records(const float *records, int parts) {
  Statistics all = {NULL, 0, 0, 0};
  int part;
  for (part = 0; part < parts; part++, records += B) {
    all.least = records[LEAST_FOUND] < all.least ? records[LEAST_FOUND] : all.least;
    all.most = records[MOST_FOUND] > all.most ? records[MOST_FOUND] : all.most;
    all.clipped += records[CLIPPED];
  }
  return all;
}

/* -- results: floats, or rounded by a range as they are written -- */

/* Arguments, 14: result, [range], bottom, top, [scalars], [counters], pixels, blocks, tensor, [records], values,
   add records, written as (2: integers), parts */
typedef struct {
  float *values;
  int is_rounded, written, m, count, add, parts;
  Rounding rounding;
  Numbers numbers;
  Statistics statistics;
} Result;
enum { RESULT = 14, INT8 = 2 };

static Result result_of(const el_value *v, int m) {
  Result r;
  memset(&r, 0, sizeof r);
  r.values = v[0].p;
  r.m = m;
  r.is_rounded = v[1].p != NULL;
  if (r.is_rounded) r.rounding = rounding_by(v[1].p, v[2].f, v[3].f);
  r.numbers.scalars = v[4].p;
  r.numbers.before = v[5].p ? (int)v[5].p[SEEN] : 0;
  r.numbers.pixels = v[6].i;
  r.numbers.blocks = v[7].i;
  r.numbers.tensor = v[8].i;
  r.statistics.records = v[9].p;
  r.count = v[10].i;
  r.add = v[11].i;
  r.written = v[12].i;
  r.parts = v[13].i;
  return r;
}

static void write_result(Result *r, int block, int row, const float *v) {
  const size_t at = row_at(block, r->m, row);
  float uniform[B];
  int c;
  if (r->statistics.records) EACH(c) observe(&r->statistics, v[c]);
  if (!r->is_rounded) {
    memcpy(r->values + at, v, B * sizeof *v);
    return;
  }
  if (r->numbers.scalars) draw_row(&r->numbers, block, row, uniform);
  EACH(c) {
    const float t = quantized(&r->rounding, v[c], r->numbers.scalars ? &uniform[c] : NULL);
    if (r->statistics.records) observe_clipping(&r->statistics, &r->rounding, v[c]);
    if (r->written == INT8) ((int8_t *)(void *)r->values)[at + c] = as_integer(t + r->rounding.zero);
    else r->values[at + c] = t * r->rounding.scale + (v[c] - v[c]); /* of an infinity a NaN, which is noticed */
  }
}

static void end_result(const Result *r) { write_statistics(&r->statistics, r->count, r->add, r->parts); }

/* A gradient as a result. Arguments, 7: [activation before], [its range], mask, accumulate, function, a, b */
static Gradient mask_of(const el_value *v) {
  const Gradient g = {NULL, v[0].p, v[1].p, v[2].i, v[3].i, {v[4].i, v[5].f, v[6].f}};
  return g;
}

static void write_result_gradient(Result *r, const Gradient *g, int block, int row, float *v) {
  const size_t at = row_at(block, r->m, row);
  int c;
  if (g->mask) through_mask(g, at, v);
  if (g->accumulate) EACH(c) v[c] += r->values[at + c];
  write_result(r, block, row, v);
}

/* A sum of the result and another tensor. Arguments, 11: [own range], bottom, top, other, its range, [range of the
   sum], bottom, top, function of the sum, a, b */
typedef struct {
  const float *other, *other_range;
  int has_own, has_sum;
  Rounding own, sum;
  Function function;
} Residual;

static Residual residual_of(const el_value *v) {
  Residual r;
  memset(&r, 0, sizeof r);
  r.has_own = v[0].p != NULL;
  r.has_sum = v[5].p != NULL;
  if (r.has_own) r.own = rounding_by(v[0].p, v[1].f, v[2].f);
  r.other = v[3].p;
  r.other_range = v[4].p;
  if (r.has_sum) r.sum = rounding_by(v[5].p, v[6].f, v[7].f);
  r.function.name = v[8].i;
  r.function.a = v[9].f;
  r.function.b = v[10].f;
  return r;
}

static void add_residual(const Residual *r, size_t at, float *v) {
  float other[B];
  int c;
  if (!r->has_own) return;
  read_block(r->other, r->other_range, at, other);
  EACH(c) {
    v[c] = quantized(&r->own, v[c], NULL) * r->own.scale + other[c];
    if (r->has_sum) v[c] = quantized(&r->sum, v[c], NULL) * r->sum.scale;
  }
  if (r->has_sum) el_apply(r->function, v);
}

/* -- ranges -- */

/* Scale and zero point of [low, high], which contains 0 */
static void parameters_of(float low, float high, int bits, int symmetric, float *scale, float *zero) {
  const float most = (float)((1 << (bits - 1)) - 1), least_scale = 7.888609052210118e-31f; /* 2^-100 */
  const float width = !symmetric ? high - low : -low > high ? -low : high;
  *scale = width / (symmetric ? most : 2.0f * most + 1.0f);
  *scale = *scale < least_scale ? least_scale : *scale;
  *zero = symmetric ? 0.0f : nearest(-low / *scale) - most - 1.0f;
}

static void set_range(float *range, float low, float high, int bits, int symmetric) {
  range[LOW] = low < 0.0f ? low : 0.0f;
  range[HIGH] = high > 0.0f ? high : 0.0f;
  parameters_of(range[LOW], range[HIGH], bits, symmetric, &range[SCALE_OF], &range[ZERO]);
  range[INVERSE] = 1.0f / range[SCALE_OF];
}

/* The range before, fading, and the one found since */
static float blended(float before, float now, float pace) { return now + pace * (before - now); }

/* x, records, values, add, rows of 16, floats of the last row or 0, parts */
void el_statistics(const el_value *v) {
  const size_t floats = (size_t)v[4].i * B - (v[5].i ? B - v[5].i : 0);
  Statistics s = {v[1].p, 0, 0, 0};
  size_t i;
  for (i = 0; i < floats; i++) observe(&s, v[0].p[i]);
  write_statistics(&s, v[2].i, v[3].i, v[6].i);
}

/* x, y, range, [records], values, add, rows, rest, bottom, top, [scalars], [counters], m, images, blocks, tensor, pixel
   by pixel, written as, parts. Rows are 16 floats in the order of memory, and the last one has `rest`, unless that is 0;
   pixel by pixel, each row has `rest`. */
void el_quantize(const el_value *v) {
  const Rounding r = rounding_by(v[2].p, v[8].f, v[9].f);
  const int rows = v[6].i, rest = v[7].i, m = v[12].i, by_pixels = v[16].i, is_random = v[10].p != NULL;
  const Numbers numbers = {v[10].p, is_random ? m / v[13].i : 1, v[14].i, v[15].i, is_random ? (int)v[11].p[SEEN] : 0};
  Statistics s = {v[3].p, 0, 0, 0};
  float uniform[B];
  int row, i;
  for (row = 0; row < rows; row++) {
    const size_t at = (size_t)row * (by_pixels ? rest : B);
    const int count = by_pixels || (rest && row == rows - 1) ? rest : B;
    if (is_random) draw_row(&numbers, row / m, row % m, uniform);
    for (i = 0; i < count; i++) {
      const float value = v[0].p[at + i], t = quantized(&r, value, is_random ? &uniform[i] : NULL);
      observe(&s, value);
      observe_clipping(&s, &r, value);
      if (v[17].i == INT8) ((int8_t *)(void *)v[1].p)[at + i] = as_integer(t + r.zero);
      else v[1].p[at + i] = t * r.scale + (value - value);
    }
  }
  write_statistics(&s, v[4].i, v[5].i, v[18].i);
}

/* records, range, parts, bits, symmetric, momentum */
void el_measured_range(const el_value *v) {
  const Statistics all = merged_records(v[0].p, v[2].i);
  float *range = v[1].p;
  const float pace = range[UPDATES] > 0.0f ? v[5].f : 0.0f;
  set_range(range, blended(range[NEXT_LOW], all.least, pace), blended(range[NEXT_HIGH], all.most, pace), v[3].i, v[4].i);
}

static const int32_t *table_of(const el_value v) { return (const int32_t *)(const void *)v.p; }

/* range, table, jobs */
void el_next_range(const el_value *v) {
  const int32_t *job = table_of(v[1]);
  int number;
  for (number = 0; number < v[2].i; number++, job += 4) {
    float *range = at_word(v[0], job[1]);
    set_range(range, range[NEXT_LOW], range[NEXT_HIGH], job[2], job[3]);
  }
}

/* records, flag, table, jobs */
void el_check_finite(const el_value *v) {
  const int32_t *job = table_of(v[2]);
  int number;
  for (number = 0; number < v[3].i; number++, job += 4) {
    const Statistics all = merged_records(at_word(v[0], job[1]), job[3]);
    set_flag(at_word(v[1], job[2]), 0, all.clipped - all.clipped == 0.0f);
  }
}

/* range, records, counters, table, jobs, momentum, rule (0: blend with the range before; 1: keep the range in use; 2: the
   range in use is that of the values) */
void el_learn_range(const el_value *v) {
  const int32_t *job = table_of(v[3]);
  int number, part, i;
  for (number = 0; number < v[4].i; number++, job += 5) {
    float *range = at_word(v[0], job[1]);
    const float *records = at_word(v[1], job[2]);
    const Statistics all = merged_records(records, job[4]);
    const float pace = range[UPDATES] > 0.0f ? v[5].f : 0.0f;
    if (at_word(v[2], job[3])[NONFINITE] != 0.0f) continue;
    for (i = COUNT; i < NEXT_LOW; i++)
      for (range[i] = 0, part = 0; part < job[4]; part++) range[i] += records[(size_t)part * B + i];
    range[LEAST_FOUND] = all.least;
    range[MOST_FOUND] = all.most;
    range[CLIPPED] = all.clipped;
    if (v[6].i == 2) {
      range[LOW] = all.least;
      range[HIGH] = all.most;
    }
    range[NEXT_LOW] = v[6].i == 1 ? range[LOW] : blended(range[NEXT_LOW], all.least, pace);
    range[NEXT_HIGH] = v[6].i == 1 ? range[HIGH] : blended(range[NEXT_HIGH], all.most, pace);
    range[UPDATES] += 1.0f;
  }
}

/* -- kernels of layers: parts of `count` rows of a block -- */

typedef struct {
  const float *w, *scale;
  int transposed, m, blocks, count, inputs, outputs;
} KernelRows;

static KernelRows kernel_rows(const int32_t *numbers, const float *w, const float *scale, int transposed) {
  const KernelRows k = {w, scale, transposed, numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]};
  return k;
}

static int parts_of(const KernelRows *k) { return (k->m + k->count - 1) / k->count; }

/* A row of 16 weights as a pass reads them: times the scales of output channels; transposed, [out / 16][taps][in][16]
   becomes [in / 16][taps][out][16] */
static void kernel_row(const KernelRows *k, int block, int row, float *v) {
  const int out = k->transposed ? row % k->outputs : 0, tap = k->transposed ? row / k->outputs : 0;
  int c;
  for (c = 0; c < B; c++) {
    if (k->transposed) {
      const size_t from = ((size_t)(out / B * (k->m / k->outputs) + tap) * k->inputs + block * B + c) * B + out % B;
      v[c] = block * B + c < k->inputs ? k->w[from] : 0.0f;
      if (k->scale) v[c] *= k->scale[out];
    } else {
      v[c] = k->w[row_at(block, k->m, row) + c];
      if (k->scale) v[c] *= k->scale[block * B + c];
    }
  }
}

static void widen(const float *v, float *least, float *most) {
  int c;
  EACH(c) least[c] = v[c] < least[c] ? v[c] : least[c];
  EACH(c) most[c] = v[c] > most[c] ? v[c] : most[c];
}

/* w, [scale], extremes (two blocks a part), table, jobs, transposed */
void el_weight_statistics(const el_value *v) {
  const int with_scale = v[1].p != NULL, words = 3 + with_scale + 5;
  const int32_t *job = table_of(v[3]);
  int number, part, row;
  for (number = 0; number < v[4].i; number++, job += words) {
    const float *scale = with_scale ? at_word(v[1], job[2]) : NULL;
    const KernelRows k = kernel_rows(job + 3 + with_scale, at_word(v[0], job[1]), scale, v[5].i);
    const int parts = parts_of(&k);
    float *extremes = at_word(v[2], job[2 + with_scale]), values[B];
    for (part = 0; part < parts * k.blocks; part++, extremes += 2 * B) {
      const int start = part % parts * k.count;
      memset(extremes, 0, 2 * B * sizeof *extremes);
      for (row = start; row < smaller(start + k.count, k.m); row++) {
        kernel_row(&k, part / parts, row, values);
        widen(values, extremes, extremes + B);
      }
    }
  }
}

/* extremes, range, table, jobs, per channel */
void el_weight_range(const el_value *v) {
  const int32_t *job = table_of(v[2]);
  const int per_channel = v[4].i;
  int number, block, part, c;
  for (number = 0; number < v[3].i; number++, job += 7) {
    const float *extremes = at_word(v[0], job[1]);
    float *range = at_word(v[1], job[2]), low = 0, high = 0;
    for (block = 0; block < job[5]; block++) {
      float least[B] = {0}, most[B] = {0};
      for (part = 0; part < job[6]; part++, extremes += 2 * B) {
        widen(extremes, least, most);
        widen(extremes + B, least, most);
      }
      EACH(c) {
        float *fields = range + (size_t)block * B * B + c, scale, zero;
        low = least[c] < low ? least[c] : low;
        high = most[c] > high ? most[c] : high;
        if (!per_channel) continue;
        parameters_of(least[c], most[c], job[3], job[4], &scale, &zero);
        fields[SCALE_OF * B] = scale;
        fields[INVERSE * B] = 1.0f / scale;
        fields[ZERO * B] = zero;
        fields[LOW * B] = least[c];
        fields[HIGH * B] = most[c];
      }
    }
    if (!per_channel) set_range(range, low, high, job[3], job[4]);
  }
}

/* w, [scale], y, range, [records], [scalars], table, jobs, bottom, top, transposed, per channel, written as */
void el_weight_quantize(const el_value *v) {
  const int with_scale = v[1].p != NULL, collects = v[4].p != NULL, is_random = v[5].p != NULL, per_channel = v[11].i;
  const int range_word = 3 + with_scale, numbers = range_word + collects + is_random + 1, words = numbers + 5 + 2;
  const int32_t *job = table_of(v[6]);
  int number, block, row, c;
  for (number = 0; number < v[7].i; number++, job += words) {
    const float *scale = with_scale ? at_word(v[1], job[2]) : NULL, *range = at_word(v[3], job[range_word]);
    const KernelRows k = kernel_rows(job + numbers, at_word(v[0], job[1]), scale, v[10].i);
    float *y = at_word(v[2], job[2 + with_scale]);
    Statistics s = {collects ? at_word(v[4], job[range_word + 1]) : NULL, 0, 0, 0};
    Numbers from = {NULL, 1, 1, job[words - 1], 0};
    if (is_random) from.scalars = at_word(v[5], job[range_word + collects + 1]);
    for (block = 0; block < k.blocks; block++)
      for (row = 0; row < k.m; row++) {
        const size_t at = row_at(block, k.m, row);
        float values[B], uniform[B];
        kernel_row(&k, block, row, values);
        if (is_random) draw(&from, (uint32_t)(row * k.blocks + block) * B, 0, uniform);
        EACH(c) {
          const float zero = field(range, ZERO, block, c, per_channel);
          const Rounding r = {field(range, SCALE_OF, block, c, per_channel),
                              field(range, INVERSE, block, c, per_channel), zero, v[8].f - zero, v[9].f - zero};
          const float t = quantized(&r, values[c], is_random ? &uniform[c] : NULL);
          observe(&s, values[c]);
          if (v[12].i == INT8) ((int8_t *)(void *)y)[at + c] = as_integer(t + zero);
          else y[at + c] = t * r.scale + (values[c] - values[c]);
        }
      }
    write_statistics(&s, job[words - 2], 0, k.blocks * parts_of(&k));
  }
}

/* w, t, table, jobs */
void el_transpose_integers(const el_value *v) {
  const int32_t *job = table_of(v[2]);
  int number, tap, in, out;
  for (number = 0; number < v[3].i; number++, job += 7) {
    const int8_t *w = (const int8_t *)(const void *)at_word(v[0], job[1]);
    int8_t *t = (int8_t *)(void *)at_word(v[1], job[2]);
    const int taps = job[3], inputs = job[4], outputs = job[5];
    for (tap = 0; tap < taps; tap++)
      for (in = 0; in < padded(inputs); in++)
        for (out = 0; out < outputs; out++)
          t[((size_t)(in / B * taps + tap) * outputs + out) * B + in % B] =
              in < inputs ? w[((size_t)(out / B * taps + tap) * inputs + in) * B + out % B] : 0;
  }
}

/* -- products -- */

/* sum += (value - zero) * the 16 integers of w */
static void add_products(int32_t *sum, int value, const int8_t *w) {
  int c;
  EACH(c) sum[c] += value * w[c];
}

/* sums times the step of both factors */
static void scaled(const int32_t *sum, const float *w_range, float step, int block, int per_channel, float *v) {
  int c;
  EACH(c) v[c] = (float)sum[c] * (field(w_range, SCALE_OF, block, c, per_channel) * step);
}

static void end_forward(Result *r, const Epilogue *e, const Residual *residual, int block, int row, float *v) {
  write_output(*e, block, v, v);
  if (residual) add_residual(residual, row_at(block, r->m, row), v);
  write_result(r, block, row, v);
}

/* x, its range, w, its range, result, images, height, width, channels, out_height, out_width, blocks, block of x, ranges
   of w are per channel, window, epilogue, residual */
void el_quantized_convolution_forward(const el_value *v) {
  const int8_t *x = integers_of(v[0]), *w = integers_of(v[2]);
  const el_value *a = v + 4 + RESULT;
  const int images = a[0].i, height = a[1].i, width = a[2].i, channels = a[3].i;
  const int out_height = a[4].i, out_width = a[5].i, blocks = a[6].i, in_block = a[7].i, per_channel = a[8].i;
  const Window o = window_of(a + 9);
  const Epilogue e = epilogue_of(a + 17);
  const Residual residual = residual_of(a + 22);
  Result r = result_of(v + 4, images * out_height * out_width);
  const int zero = (int)v[1].p[ZERO];
  int image, block, oy, ox, ky, kx, first, i;
  for (block = 0; block < blocks; block++)
    for (image = 0; image < images; image++)
      for (oy = 0; oy < out_height; oy++)
        for (ox = 0; ox < out_width; ox++) {
          int32_t sum[B] = {0};
          float values[B];
          for (first = 0; first < channels; first += in_block)
            for (ky = 0; ky < o.height; ky++)
              for (kx = 0; kx < o.width; kx++) {
                const int iy = oy * o.stride_y - o.top + ky * o.dilation_y;
                const int ix = ox * o.stride_x - o.left + kx * o.dilation_x;
                const int8_t *from, *weights;
                if (iy < 0 || iy >= height || ix < 0 || ix >= width) continue;
                from = x + (((size_t)(first / in_block * images + image) * height + iy) * width + ix) * in_block;
                weights = w + ((size_t)(block * o.height * o.width + ky * o.width + kx) * channels + first) * B;
                for (i = 0; i < smaller(in_block, channels - first); i++, weights += B)
                  add_products(sum, from[i] - zero, weights);
              }
          scaled(sum, v[3].p, v[1].p[SCALE_OF], block, per_channel, values);
          end_forward(&r, &e, &residual, block, (image * out_height + oy) * out_width + ox, values);
        }
  end_result(&r);
}

/* dy, its range, transposed w, its range, result, images, height, width, channels of dy, out_height, out_width, blocks,
   ranges of w are per channel, window, mask */
void el_quantized_convolution_backward_data(const el_value *v) {
  const int8_t *dy = integers_of(v[0]), *t = integers_of(v[2]);
  const el_value *a = v + 4 + RESULT;
  const int images = a[0].i, height = a[1].i, width = a[2].i, out = a[3].i, out_height = a[4].i, out_width = a[5].i;
  const int blocks = a[6].i, per_channel = a[7].i;
  const Window o = window_of(a + 8);
  const Gradient g = mask_of(a + 16);
  Result r = result_of(v + 4, images * height * width);
  const int zero = (int)v[1].p[ZERO];
  int image, block, iy, ix, ky, kx, j;
  for (block = 0; block < blocks; block++)
    for (image = 0; image < images; image++)
      for (iy = 0; iy < height; iy++)
        for (ix = 0; ix < width; ix++) {
          int32_t sum[B] = {0};
          float values[B];
          for (ky = 0; ky < o.height; ky++)
            for (kx = 0; kx < o.width; kx++) {
              const int oy = reached(iy, o.top, ky, o.dilation_y, o.stride_y, out_height);
              const int ox = reached(ix, o.left, kx, o.dilation_x, o.stride_x, out_width);
              const int8_t *weights = t + (size_t)(block * o.height * o.width + ky * o.width + kx) * out * B;
              const int row = (image * out_height + oy) * out_width + ox;
              if (oy < 0 || ox < 0) continue;
              for (j = 0; j < out; j++, weights += B)
                add_products(sum, dy[value_at(j, images * out_height * out_width, row)] - zero, weights);
            }
          scaled(sum, v[3].p, v[1].p[SCALE_OF], block, per_channel, values);
          write_result_gradient(&r, &g, block, (image * height + iy) * width + ix, values);
        }
  end_result(&r);
}

/* A block of a weight's gradient; returns whether it is finite */
static int write_weights(float *dw, const int32_t *sum, float step, int add) {
  int c, is_finite = 1;
  EACH(c) {
    const float value = (float)sum[c] * step + (add ? dw[c] : 0.0f);
    is_finite &= value - value == 0.0f;
    dw[c] = value;
  }
  return is_finite;
}

/* x, its range, dy, its range, partial sums, images, height, width, channels, out_height, out_width, rows a group,
   blocks, add, [flags], number of flags' columns, and rows, groups, block of x, window */
void el_quantized_convolution_backward_weights(const el_value *v) {
  const int8_t *x = integers_of(v[0]), *dy = integers_of(v[2]);
  const int images = v[5].i, height = v[6].i, width = v[7].i, channels = v[8].i, out_height = v[9].i;
  const int out_width = v[10].i, rows = v[11].i, blocks = v[12].i, add = v[13].i, groups = v[17].i, in_block = v[18].i;
  const Window o = window_of(v + 19);
  const int taps = o.height * o.width, zero = (int)v[1].p[ZERO], dy_zero = (int)v[3].p[ZERO];
  const int m = images * out_height * out_width;
  const float step = v[1].p[SCALE_OF] * v[3].p[SCALE_OF];
  int group, block, tap, row, ox, channel, c, is_finite = 1;
  for (group = 0; group < groups; group++)
    for (block = 0; block < blocks; block++)
      for (tap = 0; tap < taps; tap++)
        for (channel = 0; channel < channels; channel++) {
          const size_t at = ((size_t)((group * blocks + block) * taps + tap) * channels + channel) * B;
          int32_t sum[B] = {0};
          for (row = group * rows; row < smaller((group + 1) * rows, images * out_height); row++) {
            const int plane = channel / in_block * images + row / out_height;
            const int iy = row % out_height * o.stride_y - o.top + tap / o.width * o.dilation_y;
            const int8_t *g = dy + row_at(block, m, row * out_width), *line;
            if (iy < 0 || iy >= height) continue;
            line = x + ((size_t)plane * height + iy) * width * in_block + channel % in_block;
            for (ox = 0; ox < out_width; ox++, g += B) {
              const int ix = ox * o.stride_x - o.left + tap % o.width * o.dilation_x;
              int value;
              if (ix < 0 || ix >= width) continue;
              value = line[(size_t)ix * in_block] - zero;
              EACH(c) sum[c] += value * (g[c] - dy_zero);
            }
          }
          is_finite &= write_weights(v[4].p + at, sum, step, add);
        }
  set_one_flag(v + 14, is_finite);
}

/* x, its range, w, its range, result, images, height, width, out_height, out_width, blocks, ranges of w are per channel,
   window, epilogue */
void el_quantized_depthwise_forward(const el_value *v) {
  const el_value *a = v + 4 + RESULT;
  const int images = a[0].i, height = a[1].i, width = a[2].i, out_height = a[3].i, out_width = a[4].i, blocks = a[5].i;
  const int per_channel = a[6].i, zero = (int)v[1].p[ZERO];
  const Window o = window_of(a + 7);
  const Epilogue e = epilogue_of(a + 15);
  Result r = result_of(v + 4, images * out_height * out_width);
  int plane, oy, ox, ky, kx, c;
  for (plane = 0; plane < blocks * images; plane++) {
    const int block = plane / images, image = plane % images;
    const int8_t *x = integers_of(v[0]) + (size_t)plane * height * width * B;
    const int8_t *w = integers_of(v[2]) + (size_t)block * o.height * o.width * B;
    for (oy = 0; oy < out_height; oy++)
      for (ox = 0; ox < out_width; ox++) {
        int32_t sum[B] = {0};
        float values[B];
        for (ky = 0; ky < o.height; ky++)
          for (kx = 0; kx < o.width; kx++) {
            const int iy = oy * o.stride_y - o.top + ky * o.dilation_y;
            const int ix = ox * o.stride_x - o.left + kx * o.dilation_x;
            const int8_t *from = x + ((ptrdiff_t)iy * width + ix) * B, *tap = w + (ky * o.width + kx) * B;
            if (iy < 0 || iy >= height || ix < 0 || ix >= width) continue;
            EACH(c) sum[c] += (from[c] - zero) * tap[c];
          }
        scaled(sum, v[3].p, v[1].p[SCALE_OF], block, per_channel, values);
        end_forward(&r, &e, NULL, block, (image * out_height + oy) * out_width + ox, values);
      }
  }
  end_result(&r);
}

/* dy, its range, w, its range, result, images, height, width, out_height, out_width, blocks, ranges of w are per channel,
   window, mask */
void el_quantized_depthwise_backward_data(const el_value *v) {
  const el_value *a = v + 4 + RESULT;
  const int images = a[0].i, height = a[1].i, width = a[2].i, out_height = a[3].i, out_width = a[4].i, blocks = a[5].i;
  const int per_channel = a[6].i, zero = (int)v[1].p[ZERO];
  const Window o = window_of(a + 7);
  const Gradient g = mask_of(a + 15);
  Result r = result_of(v + 4, images * height * width);
  int plane, iy, ix, ky, kx, c;
  for (plane = 0; plane < blocks * images; plane++) {
    const int block = plane / images, image = plane % images;
    const int8_t *dy = integers_of(v[0]) + (size_t)plane * out_height * out_width * B;
    const int8_t *w = integers_of(v[2]) + (size_t)block * o.height * o.width * B;
    for (iy = 0; iy < height; iy++)
      for (ix = 0; ix < width; ix++) {
        int32_t sum[B] = {0};
        float values[B];
        for (ky = 0; ky < o.height; ky++)
          for (kx = 0; kx < o.width; kx++) {
            const int oy = reached(iy, o.top, ky, o.dilation_y, o.stride_y, out_height);
            const int ox = reached(ix, o.left, kx, o.dilation_x, o.stride_x, out_width);
            const int8_t *from = dy + ((ptrdiff_t)oy * out_width + ox) * B, *tap = w + (ky * o.width + kx) * B;
            if (oy < 0 || ox < 0) continue;
            EACH(c) sum[c] += (from[c] - zero) * tap[c];
          }
        scaled(sum, v[3].p, v[1].p[SCALE_OF], block, per_channel, values);
        write_result_gradient(&r, &g, block, (image * height + iy) * width + ix, values);
      }
  }
  end_result(&r);
}

/* x, its range, dy, its range, partial sums, images, height, width, out_height, out_width, rows a group, groups, blocks,
   add, window */
void el_quantized_depthwise_backward_weights(const el_value *v) {
  const int images = v[5].i, height = v[6].i, width = v[7].i, out_height = v[8].i, out_width = v[9].i;
  const int rows = v[10].i, groups = v[11].i, blocks = v[12].i, add = v[13].i;
  const int zero = (int)v[1].p[ZERO], dy_zero = (int)v[3].p[ZERO];
  const float step = v[1].p[SCALE_OF] * v[3].p[SCALE_OF];
  const Window o = window_of(v + 14);
  const int taps = o.height * o.width;
  int group, block, row, ox, tap, c;
  for (group = 0; group < groups; group++)
    for (block = 0; block < blocks; block++)
      for (tap = 0; tap < taps; tap++) {
        int32_t sum[B] = {0};
        for (row = group * rows; row < smaller((group + 1) * rows, images * out_height); row++)
          for (ox = 0; ox < out_width; ox++) {
            const int plane = block * images + row / out_height;
            const int iy = row % out_height * o.stride_y - o.top + tap / o.width * o.dilation_y;
            const int ix = ox * o.stride_x - o.left + tap % o.width * o.dilation_x;
            const int8_t *from = integers_of(v[0]) + (((ptrdiff_t)plane * height + iy) * width + ix) * B;
            const int8_t *g = integers_of(v[2]) + (((size_t)plane * out_height + row % out_height) * out_width + ox) * B;
            if (iy < 0 || iy >= height || ix < 0 || ix >= width) continue;
            EACH(c) sum[c] += (from[c] - zero) * (g[c] - dy_zero);
          }
        write_weights(v[4].p + (size_t)((group * blocks + block) * taps + tap) * B, sum, step, add);
      }
}

/* x, its range, sums, m, blocks, count, add, groups */
void el_integer_channel_sums(const el_value *v) {
  const int m = v[3].i, blocks = v[4].i, count = v[5].i, add = v[6].i, groups = v[7].i, zero = (int)v[1].p[ZERO];
  int group, block, row, c;
  for (group = 0; group < groups; group++)
    for (block = 0; block < blocks; block++) {
      int32_t sum[B] = {0};
      for (row = group * count; row < smaller((group + 1) * count, m); row++)
        EACH(c) sum[c] += integers_of(v[0])[row_at(block, m, row) + c] - zero;
      write_weights(v[2].p + (size_t)(group * blocks + block) * B, sum, v[1].p[SCALE_OF], add);
    }
}

/* -- element by element -- */

/* x, [its range], result, m, blocks, mask */
void el_to_floats(const el_value *v) {
  const el_value *a = v + 2 + RESULT;
  const int m = a[0].i;
  const Gradient g = mask_of(a + 2);
  Result r = result_of(v + 2, m);
  float values[B];
  int block, row;
  for (block = 0; block < a[1].i; block++)
    for (row = 0; row < m; row++) {
      read_block(v[0].p, v[1].p, row_at(block, m, row), values);
      write_result_gradient(&r, &g, block, row, values);
    }
  end_result(&r);
}

/* a, its range, [b], [its range], result, m, blocks, function, a, b */
void el_stored_forward(const el_value *v) {
  const el_value *a = v + 4 + RESULT;
  const int m = a[0].i;
  const Function function = {a[2].i, a[3].f, a[4].f};
  Result r = result_of(v + 4, m);
  float values[B], other[B];
  int block, row, c;
  for (block = 0; block < a[1].i; block++)
    for (row = 0; row < m; row++) {
      read_block(v[0].p, v[1].p, row_at(block, m, row), values);
      if (v[2].p) {
        read_block(v[2].p, v[3].p, row_at(block, m, row), other);
        EACH(c) values[c] += other[c];
      }
      el_apply(function, values);
      write_result(&r, block, row, values);
    }
  end_result(&r);
}

/* -- maxima -- */

/* The tap of the window of output `row` that first holds the maximum, and the maximum itself */
static int first_maximum(const int8_t *x, const Window *o, int height, int width, int oy, int ox, int c, int8_t *most) {
  int tap, chosen = -1;
  for (tap = 0; tap < o->height * o->width; tap++) {
    const int iy = oy * o->stride_y - o->top + tap / o->width, ix = ox * o->stride_x - o->left + tap % o->width;
    if (iy < 0 || iy >= height || ix < 0 || ix >= width) continue;
    if (chosen < 0 || x[((size_t)iy * width + ix) * B + c] > *most) {
      *most = x[((size_t)iy * width + ix) * B + c];
      chosen = tap;
    }
  }
  return chosen;
}

/* x, y, [chosen taps], m, blocks, height, width, out_height, out_width, window */
static void select_maxima(const int8_t *x, int8_t *y, int8_t *taps, const el_value *v) {
  const int m = v[0].i, height = v[2].i, width = v[3].i, out_height = v[4].i, out_width = v[5].i;
  const Window o = window_of(v + 6);
  int block, row, c;
  for (block = 0; block < v[1].i; block++)
    for (row = 0; row < m; row++) {
      const int plane = block * (m / (out_height * out_width)) + row / (out_height * out_width);
      EACH(c) {
        int8_t most = 0;
        const int tap = first_maximum(x + (size_t)plane * height * width * B, &o, height, width,
                                      row / out_width % out_height, row % out_width, c, &most);
        if (y) y[row_at(block, m, row) + c] = most;
        if (taps) taps[row_at(block, m, row) + c] = (int8_t)tap;
      }
    }
}
void el_stored_max_forward(const el_value *v) { select_maxima(integers_of(v[0]), (int8_t *)(void *)v[1].p, NULL, v + 2); }
void el_stored_max_taps(const el_value *v) { select_maxima(integers_of(v[0]), NULL, (int8_t *)(void *)v[2].p, v + 3); }

/* -- batch normalization of stored tensors -- */

/* y, [its range], gamma, beta, scale, shift, mean, 1 / deviation, moving mean, moving variance, result, m, blocks,
   epsilon, pace, function, a, b */
void el_stored_whole_forward(const el_value *v) {
  const el_value *a = v + 10 + RESULT;
  const int m = a[0].i;
  const Function function = {a[4].i, a[5].f, a[6].f};
  const Rows rows = {m, 0, 0};
  Result r = result_of(v + 10, m);
  float values[B];
  int block, row, c;
  for (block = 0; block < a[1].i; block++) {
    el_batch_statistics(v[0].p, v[1].p, v + 2, block, rows, a[2].f, a[3].f);
    for (row = 0; row < m; row++) {
      read_block(v[0].p, v[1].p, row_at(block, m, row), values);
      EACH(c) values[c] = values[c] * v[4].p[block * B + c] + v[5].p[block * B + c];
      el_apply(function, values);
      write_result(&r, block, row, values);
    }
  }
  end_result(&r);
}

/* dz, y, [its range], scale, mean, 1 / deviation, dgamma, dbeta, result, m, blocks, moving, add */
void el_stored_whole_backward(const el_value *v) {
  const el_value *a = v + 8 + RESULT;
  const int m = a[0].i;
  const Rows rows = {m, 0, 0};
  Result r = result_of(v + 8, m);
  float slope[B], offset[B], y[B];
  int block, row, c;
  for (block = 0; block < a[1].i; block++) {
    el_batch_gradients(v[0].p, v[1].p, v[2].p, v + 3, block, rows, a[2].i, a[3].i, slope, offset);
    for (row = 0; row < m; row++) {
      const size_t at = row_at(block, m, row);
      read_block(v[1].p, v[2].p, at, y);
      EACH(c) y[c] = v[0].p[at + c] * v[3].p[block * B + c] - y[c] * slope[c] + offset[c];
      write_result(&r, block, row, y);
    }
  }
  end_result(&r);
}
