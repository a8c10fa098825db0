// Shared by the kernels of batch normalization: which rows have statistics in common, and what follows from their sums.
#include "elementwise.h"
#include "group_sum.h"
#include "jobs.h"
#include "result.h"

// With SUB_BANDS > 1 every sub-band of an image's height has statistics of its own (Chang et al. 2021). A set is 16
// channels of one sub-band, or without sub-bands 16 channels; a set is what `block` counts. The m rows of a set share
// statistics; an image has `share` of them.
#ifndef SUB_BANDS
#define SUB_BANDS 1
#endif
typedef struct { int m, share; } Rows;
#if SUB_BANDS > 1
#define SET_ARGUMENTS const int m, const int share
#define SET_ROWS ((Rows){m, share})
#else
#define SET_ARGUMENTS const int m
#define SET_ROWS ((Rows){m, m})
#endif

// Where a row of a set lies
INLINE size_t set_row_at(const Rows rows, const int block, const int row) {
#if SUB_BANDS > 1
  const size_t images = (size_t)(block / SUB_BANDS) * (rows.m / rows.share) + row / rows.share;
  return ((images * SUB_BANDS + block % SUB_BANDS) * rows.share + row % rows.share) * BLOCK;
#else
  return row_at(block, rows.m, row);
#endif
}

#define CHUNK (512 * MEMBERS)  // rows that are summed by themselves, and stay in a first-level cache
#define MEMBER (ITEM % MEMBERS)

// Inputs of normalization and its results, by channel
typedef struct { input gamma, beta; output scale, shift, mean, inverse, moving_mean, moving_variance; } Parts;
#define PARTS_ARGUMENTS                                                                                      \
  INPUT(gamma), INPUT(beta), OUTPUT(scale), OUTPUT(shift), OUTPUT(mean_out), OUTPUT(deviation_inverse),      \
  OUTPUT(moving_mean), OUTPUT(moving_variance)
#define PARTS                                                                                                \
  ((Parts){ITEM_START(gamma), ITEM_START(beta), ITEM_START(scale), ITEM_START(shift), ITEM_START(mean_out),  \
           ITEM_START(deviation_inverse), ITEM_START(moving_mean), ITEM_START(moving_variance)})

typedef struct { V scale, shift; } Affine;

// GATED: the activation's derivative follows from its input, y * scale + shift, which isn't stored. So kernels of the
// backward pass multiply by it themselves, as that of GATE: their dz is the gradient of the activation's output.
#if GATED
#include "functions.h"
#define GATE_ARGUMENTS INPUT(gate_scale), INPUT(gate_shift),
#define GATE_OF(set) ((Affine){load(ITEM_START(gate_scale) + (set)), load(ITEM_START(gate_shift) + (set))})
#else
#define GATE_ARGUMENTS
#define GATE_OF(set) ((Affine){(V)1, (V)0})
#endif
#ifndef GATE
#define GATE linear_
#endif
#ifndef GATE_A
#define GATE_A 0.0f
#endif
#ifndef GATE_B
#define GATE_B 0.0f
#endif
INLINE V through_gate(const V g, const V y, const Affine gate) {
  return JOIN(GATE, backward)(y * gate.scale + gate.shift, g, GATE_A, GATE_B);
}

// Scale, shift and 1 / deviation from a mean and a biased variance; moving averages moved as Keras does:
// moving = moving * momentum + batch * (1 - momentum), with pace = 1 - momentum from the host, which float32 would
// round. The first member of a work-group writes them, if it `writes`.
INLINE Affine write_statistics(const Parts parts, const int block, const V mean, const V variance, const float epsilon,
                               const float pace, const int writes) {
  const int at = block * BLOCK;
  const V inverse = (V)1 / sqrt(variance + epsilon), s = load(parts.gamma + at) * inverse;
  const V t = load(parts.beta + at) - mean * s;
  if (!IS_FIRST_MEMBER || !writes) return (Affine){s, t};
  store(parts.scale + at, s);
  store(parts.shift + at, t);
  store(parts.mean + at, mean);
  store(parts.inverse + at, inverse);
  const V old_mean = load(parts.moving_mean + at), old_variance = load(parts.moving_variance + at);
  store(parts.moving_mean + at, old_mean + (mean - old_mean) * pace);
  store(parts.moving_variance + at, old_variance + (variance - old_variance) * pace);
  return (Affine){s, t};
}

typedef struct { V sum, product; } GradientSums;  // of dz, and of dz * normalized y
typedef struct { V slope, offset; } Backward;     // dx = dz * scale - y * slope + offset

// Gradients of gamma and beta from the sums of dz and of dz * normalized y, and what the gradient of y needs: nothing
// but the scale where statistics are moving ones (`moving`), which do not depend on y. The first member of a work-group
// writes them, if it `writes`.
INLINE Backward write_gradients(output dgamma, output dbeta, const GradientSums sums, const V scale, const V mean,
                                const V inverse, const int m, const int moving, const int add, const int writes) {
  if (IS_FIRST_MEMBER && writes) {
    store(dbeta, add ? load(dbeta) + sums.sum : sums.sum);
    store(dgamma, add ? load(dgamma) + sums.product : sums.product);
  }
  const V k = moving ? (V)0 : scale * inverse * sums.product * (1.0f / m);
  return (Backward){k, moving ? (V)0 : k * mean - scale * sums.sum * (1.0f / m)};
}

// The rows of the groups whose partial sums a kernel combines: m rows of a set, `count` a group, which begin anew after each
// `span` rows
typedef struct { int m, sets, count, groups, span; } Groups;
INLINE float rows_of_group(const Groups of, const int g) {
  const int first = g % ((of.span + of.count - 1) / of.count) * of.count;
  return first + of.count < of.span ? of.count : of.span - first;
}

// Groups combined (Chan, Golub and LeVeque 1983) to the batch's mean and biased variance; scale and shift from them
INLINE Affine combined_statistics(input partials, const Parts parts, const Groups of, const int block,
                                  const float epsilon, const float pace, const int writes, __local V *shares) {
  V mean = (V)0, squares = (V)0;
#if GROUP > VECTORS
  const V near = load(partials + block * BLOCK);
  V sums[2] = {(V)0, (V)0};  // as in moments_of_rows, of means
  for (int g = MEMBER; g < of.groups; g += MEMBERS) {
    const float n = g * of.count + of.count < of.m ? of.count : of.m - g * of.count;
    const V d = load(partials + (size_t)(g * 2 * of.sets + block) * BLOCK) - near;
    sums[0] += d * n;
    sums[1] += load(partials + (size_t)((g * 2 + 1) * of.sets + block) * BLOCK) + d * d * n;
  }
  group_sums(sums, 2, shares);
  mean = near + sums[0] * (1.0f / of.m);
  squares = sums[1] - sums[0] * sums[0] * (1.0f / of.m);
#else
  for (int g = 0; g < of.groups; g++) {
    const float n = rows_of_group(of, g);
    mean += load(partials + (size_t)(g * 2 * of.sets + block) * BLOCK) * (n / of.m);
  }
  for (int g = 0; g < of.groups; g++) {
    const float n = rows_of_group(of, g);
    const V d = load(partials + (size_t)(g * 2 * of.sets + block) * BLOCK) - mean;
    squares += load(partials + (size_t)((g * 2 + 1) * of.sets + block) * BLOCK) + d * d * n;
  }
#endif
  return write_statistics(parts, block, mean, squares * (1.0f / of.m), epsilon, pace, writes);
}

// The mean and the sum of squared deviations of rows [start, stop) of a set, by a work-group. A CPU reads them twice, the
// second time from its first cache. A GPU, whose groups have none to themselves, reads them once: deviations are from the
// first row, which is near enough to the mean that their squares don't cancel out.
INLINE Moments moments_of_rows(const Stored y, const Decoding decoding, const Rows rows, const int block,
                               const int start, const int stop, __local V *shares) {
  const float share = 1.0f / (stop - start);
#if GROUP > VECTORS
  const V near = LOAD_STORED(y, set_row_at(rows, block, start), decoding);
  V sums[2] = {(V)0, (V)0};
  MANY for (int row = start + MEMBER; row < stop; row += MEMBERS) {
    const V d = LOAD_STORED(y, set_row_at(rows, block, row), decoding) - near;
    sums[0] += d;
    sums[1] += d * d;
  }
  group_sums(sums, 2, shares);
  return (Moments){near + sums[0] * share, sums[1] - sums[0] * sums[0] * share, stop - start};
#else
  V mean = (V)0, squares = (V)0;
  for (int row = start; row < stop; row++) mean += LOAD_STORED(y, set_row_at(rows, block, row), decoding);
  mean *= share;
  for (int row = start; row < stop; row++) {
    const V d = LOAD_STORED(y, set_row_at(rows, block, row), decoding) - mean;
    squares += d * d;
  }
  return (Moments){mean, squares, stop - start};
#endif
}

// The statistics of a set by one work-group, and what its rows are multiplied by: y is read from memory once, chunk by
// chunk, if the cache holds it.
INLINE Affine whole_statistics(const Stored y, const Decoding decoding, const Parts parts, const Rows rows,
                               const int block, const int m, const float epsilon, const float pace,
                               __local V *shares) {
  V mean = (V)0, squares = (V)0;
  for (int start = 0; start < m; start += CHUNK) {
    const int count = m - start < CHUNK ? m - start : CHUNK;
    const Moments chunk = moments_of_rows(y, decoding, rows, block, start, start + count, shares);
    const V step = chunk.mean - mean;
    mean += step * ((float)count / (start + count));
    squares += chunk.squares + step * step * ((float)start * count / (start + count));
  }
  return write_statistics(parts, block, mean, squares * (1.0f / m), epsilon, pace, 1);
}

// The sets of a work-group, spread evenly: PoCL gives neighbours to one core, so the first ones mustn't have all of few
// sets.
typedef struct { int first, last; } Sets;
INLINE Sets sets_of_group(const int sets) {
  const int group = get_group_id(0), groups = (int)get_global_size(0) / GROUP;
  return (Sets){group * sets / groups, (group + 1) * sets / groups};
}

// Where a kernel that goes through whole sets writes: floats or halves as gradient.h says (DIRECT), or to a result that may
// be quantized, which has no sub-bands. A member of a work-group takes AT_ONCE rows at a time, number i from `first` on being
// ROW: rows that share random numbers, or on GPUs rows that are all read before the first is computed.
#ifndef DIRECT
#define DIRECT 0
#endif
#if DIRECT
typedef Gradient Sink;
#define SINK_ARGUMENTS GRADIENT_ARGUMENTS
#define SINK(m) GRADIENT
#if GROUP > VECTORS
#define AT_ONCE 4
#else
#define AT_ONCE 1
#endif
#define FIRST_ROW MEMBER
#define ROW(first, i) ((first) + (i) * MEMBERS)
#else
typedef Result Sink;
#define SINK_ARGUMENTS RESULT_ARGUMENTS
#define SINK(m) RESULT(m)
#define AT_ONCE DRAWN_ROWS
#define FIRST_ROW (MEMBER * AT_ONCE)
#define ROW(first, i) ((first) + (i))
#endif

INLINE Uniform uniform_of(const Sink sink, const int block, const int row) {
#if DIRECT
  return (Uniform){{(V)0}};
#else
  return draw(sink, block, row, 1);
#endif
}
INLINE void write_row(const Sink sink, RangeStatistics *s, const Rows rows, const int block, const int row, const V v,
                      const V uniform) {
#if DIRECT
  write_gradient(sink, set_row_at(rows, block, row), v);
#else
  write_result(sink, s, block, row, v, uniform);
#endif
}

// RESIDUAL: another tensor is added to what is normalized, before the activation.
#ifndef RESIDUAL
#define RESIDUAL 0
#endif
#define RESIDUAL_ARGUMENT INPUT_OF_IF(RESIDUAL, Value, residual)
INLINE V normalized(const V y, const V other, const V scale, const V shift) {
  V v = y * scale + shift;
#if RESIDUAL
  v += other;
#endif
  return activate(v);
}
#if RESIDUAL
#define LOAD_RESIDUAL(residual, at) load((residual) + (at))
#else
#define LOAD_RESIDUAL(residual, at) (V)0
#endif

// Writes the normalized rows of a set from `first` on, AT_ONCE of them, before `stop`.
INLINE void normalize_rows(const Sink sink, RangeStatistics *s, const Stored y, const Decoding decoding,
                           input_values residual, const Rows rows, const int block, const int first, const int stop,
                           const Affine affine) {
  const Uniform uniform = uniform_of(sink, block, first);
  V values[AT_ONCE], others[AT_ONCE];
  UNROLL for (int i = 0; i < AT_ONCE; i++) {
    const size_t at = set_row_at(rows, block, ROW(first, i) < stop ? ROW(first, i) : stop - 1);
    values[i] = LOAD_STORED(y, at, decoding);
    others[i] = LOAD_RESIDUAL(residual, at);
  }
  UNROLL for (int i = 0; i < AT_ONCE; i++) if (ROW(first, i) < stop)
    write_row(sink, s, rows, block, ROW(first, i), normalized(values[i], others[i], affine.scale, affine.shift),
              uniform.of[i]);
}

// The rows of a set that a work-group normalizes, where several share a set, or none is left for it. Without sub-bands.
typedef struct { int block, first, last; } Slice;
INLINE Slice slice_of_group(const int sets, const int m) {
  const int slices = (int)get_global_size(0) / GROUP / sets, group = get_group_id(0), rows = (m + slices - 1) / slices;
  const int first = group % slices * rows, last = first + rows < m ? first + rows : m;
  return (Slice){group / slices, first, last};
}

// Where the statistics of a row of a block lie, m being all rows of it
INLINE int set_of(const Rows rows, const int block, const int row) {
#if SUB_BANDS > 1
  return (block * SUB_BANDS + row / rows.share % SUB_BANDS) * BLOCK;
#else
  return block * BLOCK;
#endif
}

// Numbers of a set for the gradient of y: the scale, and what the statistics lead to
typedef struct { V scale, mean, inverse; } Normalizer;
#define NORMALIZER(block)                                                                              \
  ((Normalizer){load(ITEM_START(scale) + (block) * BLOCK), load(ITEM_START(mean_in) + (block) * BLOCK), \
             load(ITEM_START(deviation_inverse) + (block) * BLOCK)})

// Sums of a work-group's members
INLINE GradientSums sums_of_group(const GradientSums own, __local V *shares) {
  V sums[2] = {own.sum, own.product};
  group_sums(sums, 2, shares);
  return (GradientSums){sums[0], sums[1]};
}

INLINE GradientSums combined_sums(input partials, const Groups of, const int block, __local V *shares) {
  V sum = (V)0, product = (V)0;
  for (int g = MEMBER; g < of.groups; g += MEMBERS) {
    sum += load(partials + (size_t)(g * 2 * of.sets + block) * BLOCK);
    product += load(partials + (size_t)((g * 2 + 1) * of.sets + block) * BLOCK);
  }
  return sums_of_group((GradientSums){sum, product}, shares);
}

// A work-item's sums of rows [start, stop) of a set of dz and dz * normalized y
INLINE GradientSums sums_of_rows(input_values dz, const Stored y, const Decoding decoding, const Rows rows,
                                 const int block, const int start, const int stop, const V mean, const V inverse,
                                 const Affine gate) {
  V sum = (V)0, product = (V)0;
  MANY for (int row = start + MEMBER; row < stop; row += MEMBERS) {
    const size_t here = set_row_at(rows, block, row);
    const V g = through_gate(load(dz + here), LOAD_STORED(y, here, decoding), gate);
    sum += g;
    product += g * ((LOAD_STORED(y, here, decoding) - mean) * inverse);
  }
  return (GradientSums){sum, product};
}

// The sums of a set of dz and dz * normalized y, chunk by chunk
INLINE GradientSums whole_sums(input_values dz, const Stored y, const Decoding decoding, const Rows rows,
                               const int block, const int m, const V mean, const V inverse, const Affine gate,
                               __local V *shares) {
  V sum = (V)0, product = (V)0;
  for (int start = 0; start < m; start += CHUNK) {
    const int stop = start + CHUNK < m ? start + CHUNK : m;
    const GradientSums chunk = sums_of_rows(dz, y, decoding, rows, block, start, stop, mean, inverse, gate);
    sum += chunk.sum;
    product += chunk.product;
  }
  return sums_of_group((GradientSums){sum, product}, shares);
}

// Writes the gradients of rows of a set from `first` on, AT_ONCE of them, before `stop`.
INLINE void write_gradients_of(const Sink sink, RangeStatistics *s, input_values dz, const Stored y,
                               const Decoding decoding, const Rows rows, const int block, const int first,
                               const int stop, const V scale, const Backward b, const Affine gate) {
  const Uniform uniform = uniform_of(sink, block, first);
  V gradients[AT_ONCE], values[AT_ONCE];
  UNROLL for (int i = 0; i < AT_ONCE; i++) {
    const size_t at = set_row_at(rows, block, ROW(first, i) < stop ? ROW(first, i) : stop - 1);
    gradients[i] = load(dz + at);
    values[i] = LOAD_STORED(y, at, decoding);
  }
  UNROLL for (int i = 0; i < AT_ONCE; i++) if (ROW(first, i) < stop) {
    const V v = through_gate(gradients[i], values[i], gate) * scale - values[i] * b.slope + b.offset;
    write_row(sink, s, rows, block, ROW(first, i), v, uniform.of[i]);
  }
}
