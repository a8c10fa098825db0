// Rounding to half precision: halves are written (WRITTEN FLOAT16) or, simulated, the floats that these stand for.
// Range statistics are those of the results, so that an overflow shows. A tensor is taken as it lies in memory.
#include "blocked.h"
#include "stored.h"
#include "statistics.h"
#include "rows.h"
#include "weights.h"

// y = the halves nearest to x
KERNEL round_halves(ROUNDED_ARGUMENTS STATISTICS_ARGUMENTS, const int rows, const int rest) {
  LOCAL_RECORDS(shared);
  __global const float *x = ROUNDED_SOURCE;
  __global Written *y = START(y);
  RangeStatistics s = NO_STATISTICS;
  const Tiles tiles = tiles_of_item(rows);
  for (int tile = tiles.first; tile < tiles.last; tile += tiles.step) {
    const Row row = row_of(tile, rows, rest);
    const Ints half_bits = halves_of(load_row(x, row));
    const V w = of_halves(half_bits);
#if WRITTEN == FLOAT16
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
KERNEL weight_halves(INPUT_KERNEL, OUTPUT_OF(Written, y)
#if STATISTICS
                     , OUTPUT(records)
#endif
                     , JOBS) {
  if (ITEM >= items) return;
  const Job job = find_job(START(table), jobs, NUMBERS_WORD + KERNEL_NUMBERS + 1);
  const KernelRows k = KERNEL_ROWS(NUMBERS_WORD);
  __global Written *y = JOB_START(y, BEHIND(1));
  RangeStatistics s = NO_STATISTICS;
  for (int row = k.start; row < k.stop; row++) {
    const Ints half_bits = halves_of(kernel_row(k, row));
    const V w = of_halves(half_bits);
    const size_t at = ((size_t)k.block * k.m + row) * BLOCK;
#if WRITTEN == FLOAT16
    store_half(y + at, half_bits);
#else
    store(y + at, w);
#endif
    observe(&s, w);
  }
#if STATISTICS
  write_item_record(s, JOB_START(records, BEHIND(2)), job.item, job.words[NUMBERS_WORD + KERNEL_NUMBERS]);
#endif
}
