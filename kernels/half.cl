// Rounding to halves of FORMAT, FLOAT16 or BFLOAT16: these are written (WRITTEN) or, simulated, the floats that they
// stand for.
// Range statistics are those of the results, so that an overflow shows. A tensor is taken as it lies in memory.
#include "blocked.h"
#include "stored.h"
#include "statistics.h"
#include "rows.h"
#include "weights.h"

#ifndef FORMAT
#define FORMAT FLOAT16
#endif
#if FORMAT == BFLOAT16
#define BITS_OF bfloats_of
#define OF_BITS of_bfloats
#else
#define BITS_OF halves_of
#define OF_BITS of_halves
#endif

// y = the halves nearest to x
KERNEL round_halves(ROUNDED_ARGUMENTS STATISTICS_ARGUMENTS, const int rows, const int rest) {
  LOCAL_RECORDS(shared);
  __global const float *x = ROUNDED_SOURCE;
  __global Written *y = START(y);
  RangeStatistics s = NO_STATISTICS;
  const Tiles tiles = tiles_of_item(rows);
  for (int tile = tiles.first; tile < tiles.last; tile += tiles.step) {
    const Row row = row_of(tile, rows, rest);
    const Ints half_bits = BITS_OF(load_row(x, row));
    const V w = OF_BITS(half_bits);
#if WRITTEN != FLOAT32
    store_half(y + row.start, half_bits);
#else
    store_row(y, row, w);
#endif
    observe(&s, w);
  }
  WRITE_STATISTICS(s, shared);
}

#define NUMBERS_WORD BEHIND(2 + STATISTICS)

// y = the halves nearest to a kernel's rows; a job a layer
KERNEL weight_halves(INPUT_KERNEL, OUTPUT_OF(Written, y) OUTPUT_IF(STATISTICS, records), JOBS) {
  LOCAL_RECORDS(shared);
  if (ITEM >= items) return;
  const Job job = find_job(START(table), jobs, NUMBERS_WORD + KERNEL_NUMBERS + 1);
  const KernelRows k = KERNEL_ROWS(NUMBERS_WORD);
  __global Written *y = JOB_START(y, BEHIND(1));
  RangeStatistics s = NO_STATISTICS;
  for (int row = k.start; row < k.stop; row += GROUP) {
    const Ints half_bits = BITS_OF(kernel_row(k, row));
    const V w = OF_BITS(half_bits);
    const size_t at = ((size_t)k.block * k.m + row) * BLOCK;
#if WRITTEN != FLOAT32
    store_half(y + at, half_bits);
#else
    store(y + at, w);
#endif
    observe(&s, w);
  }
#if STATISTICS
  write_job_record(s, JOB_START(records, BEHIND(2)), job.item, job.words[NUMBERS_WORD + KERNEL_NUMBERS], shared);
#endif
}
