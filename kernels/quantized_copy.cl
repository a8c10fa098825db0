// Stored tensors to floats, sums and activations of stored tensors, integers transposed, and sums of channels.
#include "integers.h"
#include "jobs.h"
#include "quads.h"

// The values of a stored tensor, written as the gradient of an input
KERNEL to_floats(INPUT_STORED(x), RESULT_ARGUMENTS, const int m, const int blocks_x MASK_ARGUMENTS) {
  LOCAL_RECORDS(shared);
  const Stored x = STORED_START(x);
  const Result result = RESULT(m);
  const Mask mask = MASK_START;
  RangeStatistics s = NO_STATISTICS;
  FOR_BANDS(at, m, blocks_x) {
    const int block = at.block, row = at.band;
    const Decoding decoding = decoding_of(x, block);
    write_result_gradient(result, mask, &s, block, row, LOAD_STORED(x, result_at(result, block, row), decoding),
                          draw(result, block, row, 1).of[0]);
  }
  WRITE_STATISTICS(s, shared);
}

// y = activation(a), or with ADDED activation(a + b)
#ifndef ADDED
#define ADDED 0
#endif
KERNEL stored_forward(INPUT_STORED(a) STORED_IF(ADDED, b), RESULT_ARGUMENTS, const int m, const int all_blocks) {
  LOCAL_RECORDS(shared);
  const Stored a = STORED_START(a);
  const Decoding of_a = decoding_of(a, 0);
#if ADDED
  const Stored b = STORED_START(b);
  const Decoding of_b = decoding_of(b, 0);
#endif
  const Result result = RESULT(m);
  RangeStatistics s = NO_STATISTICS;
  const int bands = (m + DRAWN_ROWS - 1) / DRAWN_ROWS;
  FOR_BANDS(at, bands, all_blocks) {
    const int block = at.block, first = at.band * DRAWN_ROWS;
    const Uniform uniform = draw(result, block, first, 1);
    UNROLL for (int i = 0; i < DRAWN_ROWS; i++) if (first + i < m) {
      const size_t start = result_at(result, block, first + i);
      V v = LOAD_STORED(a, start, of_a);
#if ADDED
      v += LOAD_STORED(b, start, of_b);
#endif
      write_result(result, &s, block, first + i, activate(v), uniform.of[i]);
    }
  }
  WRITE_STATISTICS(s, shared);
}

// y = x, integers of fewer than 16 channels without padding, in blocks of 16; a work-item a row
KERNEL pad_integers(INPUT_QUANTIZED(x), OUTPUT_OF(char, y), const int rows, const int channels) {
  const int row = get_global_id(0);
  if (row >= rows) return;
  bytes from = START(x) + (size_t)row * channels;
  Chars v = (Chars)(char)(int)START(x_range)[ZERO];
  UNROLL for (int i = 0; i < BLOCK; i++) if (i < channels) ((char *)&v)[i] = from[i];
  *(__global Chars *)(START(y) + (size_t)row * BLOCK) = v;
}

// sums[group]: (add ? what was there : 0) + the sum of each channel over the `count` rows of a group
KERNEL integer_channel_sums(INPUT_QUANTIZED(x), OUTPUT(sums), const int m, const int blocks, const int count,
                            const int add) {
  bytes x = START(x);
  input range = START(x_range);
  const int block = get_global_id(0), group = get_global_id(1);
  if (block >= blocks) return;
  const int start = group * count, stop = start + count < m ? start + count : m;
  const short zero = (short)range[ZERO];
  output total = START(sums) + ((size_t)group * blocks + block) * BLOCK;
  Ints sum = (Ints)0;
  for (int row = start; row < stop; row++) sum += load_centred(x + ((size_t)block * m + row) * BLOCK, zero);
  V v = VECTOR(convert_float)(sum) * range[SCALE_OF];
  if (add) v += load(total);
  store(total, v);
}

// [out/16][taps][in][16] -> [in/16][taps][out][16]; a work-item has 16 input channels of a tap and
// `span` blocks of outputs
KERNEL transpose_integers(INPUT_OF(char, w), OUTPUT_OF(char, t), JOBS) {
  if (ITEM >= items) return;
  const Job job = find_job(START(table), jobs, 7);
  const int taps = job.words[3], inputs = job.words[4], outputs = job.words[5], span = job.words[6] * BLOCK;
  const int parts = (outputs + span - 1) / span, first = job.item % parts * span, place = job.item / parts;
  const int tap = place % taps, in = place / taps * BLOCK, rows = inputs - in;  // those that there are
  bytes from = JOB_START(w, 1) + (((size_t)first / BLOCK * taps + tap) * inputs + in) * BLOCK;
  __global char *to = JOB_START(t, 2) + (size_t)place * outputs * BLOCK;
  for (int out = first; out < first + span && out < outputs; out += BLOCK) {
    Quads quads[BLOCK / QUAD], all[BLOCK / QUAD];  // of four rows each, of four columns each
    UNROLL for (int k = 0; k < BLOCK / QUAD; k++)
      quads[k] = k * QUAD + QUAD <= rows ? quads_of_rows(from + k * QUAD * BLOCK)
                                         : quads_of_few(from + k * QUAD * BLOCK, rows - k * QUAD);
    rows_of_quads(all, quads);
    UNROLL for (int k = 0; k < BLOCK / QUAD; k++) {
      const int columns = outputs - out - k * QUAD;
      __global int *row = (__global int *)(to + (out + k * QUAD) * BLOCK);
      if (columns >= QUAD) *(__global Quads_in_memory *)row = all[k];
      else for (int i = 0; i < columns * QUAD; i++) row[i] = ((int *)&all[k])[i];
    }
    from += (size_t)taps * inputs * BLOCK;
  }
}
