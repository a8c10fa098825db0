// Batch normalization (Ioffe and Szegedy 2015), with moving or with batch statistics; of y as it is stored.
#include "batchnorm.h"

// Moving statistics as a scale and a shift: scale = gamma / sqrt(var + epsilon), shift = beta + (bias - mean) * scale.
// A job a layer, a work-item a block of channels.
KERNEL fold_statistics(INPUT(gamma), INPUT(beta), INPUT(mean), INPUT(variance), OUTPUT(scale), OUTPUT(shift),
                       OUTPUT(deviation_inverse) INPUT_IF(BIAS, bias), JOBS, const float epsilon) {
  if (ITEM >= items) return;
  const Job job = find_job(START(table), jobs, 8 + BIAS);
  const int at = job.item * BLOCK;
  const V inverse = (V)1 / sqrt(load(JOB_ITEM_START(variance, 4) + at) + epsilon);
  const V s = load(JOB_ITEM_START(gamma, 1) + at) * inverse;
  V center = (V)0 - load(JOB_ITEM_START(mean, 3) + at);
#if BIAS
  center += load(JOB_ITEM_START(bias, 8) + at);
#endif
  store(JOB_ITEM_START(scale, 5) + at, s);
  store(JOB_ITEM_START(shift, 6) + at, load(JOB_ITEM_START(beta, 2) + at) + center * s);
  store(JOB_ITEM_START(deviation_inverse, 7) + at, inverse);
}

// partials[group]: the mean and the sum of squared deviations of each channel over the group's `count` rows
KERNEL group_statistics(INPUT_STORED(y), OUTPUT(partials), SET_ARGUMENTS, const int blocks, const int count) {
  SEVERAL_LOCAL_SHARES(shares, 2);
  const Stored y = STORED_START(y);
  output partials = ITEM_START(partials);
  const int group = get_group_id(0), block = get_global_id(1);
  const int start = group * count, stop = start + count < m ? start + count : m;
  const Moments own = moments_of_rows(y, decoding_of(y, block / SUB_BANDS), SET_ROWS, block, start, stop, shares);
  if (IS_FIRST_MEMBER) store_sums(partials, group, block, blocks, own.mean, own.squares);
}

// Statistics of groups of rows combined
KERNEL finish_statistics(INPUT(partials), PARTS_ARGUMENTS, const int m, const int blocks, const int count,
                         const int groups, const int span, const float epsilon, const float pace) {
  SEVERAL_LOCAL_SHARES(shares, 2);
  const Groups of = {m, blocks, count, groups, span};
  combined_statistics(ITEM_START(partials), PARTS, of, get_group_id(0), epsilon, pace, 1, shares);
}

// Statistics and z in one launch; a work-group takes none, one or several sets.
KERNEL whole_forward(INPUT_STORED(y), PARTS_ARGUMENTS, SINK_ARGUMENTS, SET_ARGUMENTS, const int all_blocks,
                     const float epsilon, const float pace RESIDUAL_ARGUMENT) {
  LOCAL_RECORDS(shared);
  SEVERAL_LOCAL_SHARES(shares, 2);
  const Stored y = STORED_START(y);
  const Sink z = SINK(m);
  const Rows rows = SET_ROWS;
  RangeStatistics s = NO_STATISTICS;
  const Sets sets = sets_of_group(all_blocks);
  for (int block = sets.first; block < sets.last; block++) {
    const Decoding decoding = decoding_of(y, block / SUB_BANDS);
    const Affine affine = whole_statistics(y, decoding, PARTS, rows, block, m, epsilon, pace, shares);
    for (int row = FIRST_ROW; row < m; row += MEMBERS * AT_ONCE)
      normalize_rows(z, &s, y, decoding, POINTER_IF(RESIDUAL, residual), rows, block, row, m, affine);
  }
  WRITE_STATISTICS(s, shared);
}

// finish_statistics and normalize_forward in one launch: every work-group combines the groups' sums, the first one of a
// set writes what they lead to. Without sub-bands.
KERNEL finish_forward(INPUT(partials), INPUT_STORED(y), PARTS_ARGUMENTS, SINK_ARGUMENTS, const int m, const int sets,
                      const int count, const int groups, const int span, const float epsilon,
                      const float pace RESIDUAL_ARGUMENT) {
  LOCAL_RECORDS(shared);
  SEVERAL_LOCAL_SHARES(shares, 2);
  const Stored y = STORED_START(y);
  const Sink z = SINK(m);
  const Rows rows = {m, m};
  RangeStatistics s = NO_STATISTICS;
  const Slice slice = slice_of_group(sets, m);
  if (slice.block < sets) {
    const Groups of = {m, sets, count, groups, span};
    const Affine affine = combined_statistics(ITEM_START(partials), PARTS, of, slice.block, epsilon, pace,
                                              slice.first == 0, shares);
    const Decoding decoding = decoding_of(y, slice.block);
    for (int row = slice.first + FIRST_ROW; row < slice.last; row += MEMBERS * AT_ONCE)
      normalize_rows(z, &s, y, decoding, POINTER_IF(RESIDUAL, residual), rows, slice.block, row, slice.last, affine);
  }
  WRITE_STATISTICS(s, shared);
}

// z = activation(y * scale + shift)
KERNEL normalize_forward(INPUT_STORED(y), INPUT(scale), INPUT(shift), OUTPUT_VALUES(z), SET_ARGUMENTS,
                         const int count RESIDUAL_ARGUMENT) {
  const Stored y = STORED_START(y);
  output_values z = ITEM_START(z);
  const Rows rows = SET_ROWS;
  const Band band = band_of(m, count);
  const Decoding decoding = decoding_of(y, band.block / SUB_BANDS);
  const V s = load(ITEM_START(scale) + band.block * BLOCK), t = load(ITEM_START(shift) + band.block * BLOCK);
  for (int row = band.start; row < band.stop; row += band.step) {
    const size_t at = set_row_at(rows, band.block, row);
    const V other = LOAD_RESIDUAL(POINTER_IF(RESIDUAL, residual), at);
    store(z + at, normalized(LOAD_STORED(y, at, decoding), other, s, t));
  }
}

// The same to a result that may be quantized, and whose range statistics are taken. Here m counts all rows of a block,
// of which a work-item takes DRAWN_ROWS at a time.
KERNEL normalize_forward_result(INPUT_STORED(y), INPUT(scale), INPUT(shift), RESULT_ARGUMENTS, SET_ARGUMENTS,
                                const int blocks_y) {
  LOCAL_RECORDS(shared);
  const Stored y = STORED_START(y);
  input scale = ITEM_START(scale), shift = ITEM_START(shift);
  const Result result = RESULT(m);
  const Rows rows = SET_ROWS;
  RangeStatistics s = NO_STATISTICS;
  const int bands = (m + DRAWN_ROWS - 1) / DRAWN_ROWS;
  FOR_BANDS(at, bands, blocks_y) {
    const int block = at.block, first = at.band * DRAWN_ROWS;
    const Decoding decoding = decoding_of(y, block);
    const Uniform uniform = draw(result, block, first, 1);
    UNROLL for (int i = 0; i < DRAWN_ROWS; i++) if (first + i < m) {
      const int row = first + i, set = set_of(rows, block, row);
      const V v = LOAD_STORED(y, row_at(block, m, row), decoding) * load(scale + set) + load(shift + set);
      write_result(result, &s, block, row, activate(v), uniform.of[i]);
    }
  }
  WRITE_STATISTICS(s, shared);
}

// partials[group]: sum dz and sum dz * normalized y of each channel over the group's rows
KERNEL group_gradients(INPUT_VALUES(dz), INPUT_STORED(y), INPUT(mean_in), INPUT(deviation_inverse), GATE_ARGUMENTS
                       OUTPUT(partials), SET_ARGUMENTS, const int blocks, const int count) {
  SEVERAL_LOCAL_SHARES(shares, 2);
  input_values dz = ITEM_START(dz);
  const Stored y = STORED_START(y);
  output partials = ITEM_START(partials);
  const Rows rows = SET_ROWS;
  const int group = get_group_id(0), block = get_global_id(1);
  const int start = group * count, stop = start + count < m ? start + count : m;
  const Decoding decoding = decoding_of(y, block / SUB_BANDS);
  const V mean = load(ITEM_START(mean_in) + block * BLOCK);
  const V inverse = load(ITEM_START(deviation_inverse) + block * BLOCK);
  const Affine gate = GATE_OF(block * BLOCK);
  const GradientSums own = sums_of_rows(dz, y, decoding, rows, block, start, stop, mean, inverse, gate);
  const GradientSums sums = sums_of_group(own, shares);
  if (IS_FIRST_MEMBER) store_sums(partials, group, block, blocks, sums.sum, sums.product);
}

// dbeta = sum dz, dgamma = sum dz * normalized y, and slope and offset for normalize_backward
KERNEL finish_gradients(INPUT(partials), INPUT(scale), INPUT(mean_in), INPUT(deviation_inverse), OUTPUT(dgamma),
                        OUTPUT(dbeta), OUTPUT(slope), OUTPUT(offset), const int m, const int blocks, const int groups,
                        const int moving, const int add) {
  SEVERAL_LOCAL_SHARES(shares, 2);
  const int block = get_group_id(0), at = block * BLOCK;
  const Groups of = {m, blocks, 0, groups, 0};
  const GradientSums sums = combined_sums(ITEM_START(partials), of, block, shares);
  if (!IS_FIRST_MEMBER) return;
  const Normalizer normalizer = NORMALIZER(block);
  const Backward b = write_gradients(ITEM_START(dgamma) + at, ITEM_START(dbeta) + at, sums, normalizer.scale, normalizer.mean,
                                     normalizer.inverse, m, moving, add, 1);
  store(ITEM_START(slope) + at, (V)0 - b.slope);
  store(ITEM_START(offset) + at, b.offset);
}

// dx = dz * scale + y * slope + offset
KERNEL normalize_backward(INPUT_VALUES(dz), INPUT_STORED(y), INPUT(scale), INPUT(slope), INPUT(offset), GATE_ARGUMENTS
                          SET_ARGUMENTS, const int count, GRADIENT_ARGUMENTS) {
  input_values dz = ITEM_START(dz);
  const Stored y = STORED_START(y);
  const Gradient dx = GRADIENT;
  const Rows rows = SET_ROWS;
  const Band band = band_of(m, count);
  const int channel = band.block * BLOCK;
  const Decoding decoding = decoding_of(y, band.block / SUB_BANDS);
  const V s = load(ITEM_START(scale) + channel), k = load(ITEM_START(slope) + channel);
  const V o = load(ITEM_START(offset) + channel);
  const Affine gate = GATE_OF(channel);
  for (int row = band.start; row < band.stop; row += band.step) {
    const size_t at = set_row_at(rows, band.block, row);
    const V g = through_gate(load(dz + at), LOAD_STORED(y, at, decoding), gate);
    write_gradient(dx, at, g * s + LOAD_STORED(y, at, decoding) * k + o);
  }
}

KERNEL normalize_backward_result(INPUT_VALUES(dz), INPUT_STORED(y), INPUT(scale), INPUT(slope), INPUT(offset),
                                 GATE_ARGUMENTS RESULT_ARGUMENTS, SET_ARGUMENTS, const int blocks_y) {
  LOCAL_RECORDS(shared);
  input_values dz = ITEM_START(dz);
  input scale = ITEM_START(scale), slope = ITEM_START(slope), offset = ITEM_START(offset);
  const Stored y = STORED_START(y);
  const Result result = RESULT(m);
  const Rows rows = SET_ROWS;
  RangeStatistics s = NO_STATISTICS;
  const int bands = (m + DRAWN_ROWS - 1) / DRAWN_ROWS;
  FOR_BANDS(at, bands, blocks_y) {
    const int block = at.block, first = at.band * DRAWN_ROWS;
    const Decoding decoding = decoding_of(y, block);
    const Uniform uniform = draw(result, block, first, 1);
    UNROLL for (int i = 0; i < DRAWN_ROWS; i++) if (first + i < m) {
      const int row = first + i, set = set_of(rows, block, row);
      const V a = load(scale + set), k = load(slope + set), o = load(offset + set);
      const V v = LOAD_STORED(y, row_at(block, m, row), decoding);
      const V g = through_gate(load(dz + row_at(block, m, row)), v, GATE_OF(set));
      write_result(result, &s, block, row, g * a + v * k + o, uniform.of[i]);
    }
  }
  WRITE_STATISTICS(s, shared);
}

// group_gradients, finish_gradients and normalize_backward in one launch; a work-group takes none, one or several sets.
KERNEL whole_backward(INPUT_VALUES(dz), INPUT_STORED(y), INPUT(scale), INPUT(mean_in), INPUT(deviation_inverse),
                      GATE_ARGUMENTS OUTPUT(dgamma), OUTPUT(dbeta), SINK_ARGUMENTS, SET_ARGUMENTS, const int all_blocks,
                      const int moving, const int add) {
  LOCAL_RECORDS(shared);
  SEVERAL_LOCAL_SHARES(shares, 2);
  input_values dz = ITEM_START(dz);
  const Stored y = STORED_START(y);
  const Sink dx = SINK(m);
  const Rows rows = SET_ROWS;
  RangeStatistics statistics = NO_STATISTICS;
  const Sets sets = sets_of_group(all_blocks);
  for (int block = sets.first; block < sets.last; block++) {
    const int at = block * BLOCK;
    const Decoding decoding = decoding_of(y, block / SUB_BANDS);
    const V mean = load(ITEM_START(mean_in) + at), inverse = load(ITEM_START(deviation_inverse) + at);
    const V s = load(ITEM_START(scale) + at);
    const Affine gate = GATE_OF(at);
    const GradientSums sums = whole_sums(dz, y, decoding, rows, block, m, mean, inverse, gate, shares);
    const Backward b = write_gradients(ITEM_START(dgamma) + at, ITEM_START(dbeta) + at, sums, s, mean, inverse, m,
                                       moving, add, 1);
    for (int row = FIRST_ROW; row < m; row += MEMBERS * AT_ONCE)
      write_gradients_of(dx, &statistics, dz, y, decoding, rows, block, row, m, s, b, gate);
  }
  WRITE_STATISTICS(statistics, shared);
}

// finish_gradients and normalize_backward in one launch: every work-group combines the groups' sums, the first one of a
// set writes dgamma and dbeta. Without sub-bands.
KERNEL finish_backward(INPUT(partials), INPUT_VALUES(dz), INPUT_STORED(y), INPUT(scale), INPUT(mean_in),
                       INPUT(deviation_inverse), GATE_ARGUMENTS OUTPUT(dgamma), OUTPUT(dbeta), SINK_ARGUMENTS,
                       const int m, const int sets, const int groups, const int moving, const int add) {
  LOCAL_RECORDS(shared);
  SEVERAL_LOCAL_SHARES(shares, 2);
  input_values dz = ITEM_START(dz);
  const Stored y = STORED_START(y);
  const Sink dx = SINK(m);
  const Rows rows = {m, m};
  RangeStatistics s = NO_STATISTICS;
  const Slice slice = slice_of_group(sets, m);
  if (slice.block < sets) {
    const int at = slice.block * BLOCK;
    const Groups of = {m, sets, 0, groups, 0};
    const Normalizer normalizer = NORMALIZER(slice.block);
    const GradientSums sums = combined_sums(ITEM_START(partials), of, slice.block, shares);
    const Backward b = write_gradients(ITEM_START(dgamma) + at, ITEM_START(dbeta) + at, sums, normalizer.scale,
                                       normalizer.mean, normalizer.inverse, m, moving, add, slice.first == 0);
    const Decoding decoding = decoding_of(y, slice.block);
    const Affine gate = GATE_OF(at);
    for (int row = slice.first + FIRST_ROW; row < slice.last; row += MEMBERS * AT_ONCE)
      write_gradients_of(dx, &s, dz, y, decoding, rows, slice.block, row, slice.last, normalizer.scale, b, gate);
  }
  WRITE_STATISTICS(s, shared);
}
