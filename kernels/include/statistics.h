// Range statistics of the values that a launch writes: a record (range.h) for each work-group. With STATISTICS a kernel
// observes values as it writes them, and at its end all work-items of a group write the group's record. TRACED adds the
// sums for signal to noise and cosine. Without STATISTICS everything here does nothing.
#include "range.h"

#ifndef STATISTICS
#define STATISTICS 0
#endif
#ifndef TRACED
#define TRACED 0
#endif

#ifdef __NV_CL_C_VERSION  // one instruction, not two
INLINE V lower(const V a, const V b) { return fmin(a, b); }
INLINE V higher(const V a, const V b) { return fmax(a, b); }
#else
INLINE V lower(const V a, const V b) { return b < a ? b : a; }
INLINE V higher(const V a, const V b) { return b > a ? b : a; }
#endif
INLINE float lower_float(const float a, const float b) { return b < a ? b : a; }
INLINE float higher_float(const float a, const float b) { return b > a ? b : a; }

INLINE float least_of(const V v) {
  float least = ELEMENT(v, 0);
  for (int i = 1; i < VECTOR_WIDTH; i++) least = lower_float(least, ELEMENT(v, i));
  return least;
}
INLINE float most_of(const V v) {
  float most = ELEMENT(v, 0);
  for (int i = 1; i < VECTOR_WIDTH; i++) most = higher_float(most, ELEMENT(v, i));
  return most;
}
INLINE float sum_of(const V v) {
  float sum = ELEMENT(v, 0);
  for (int i = 1; i < VECTOR_WIDTH; i++) sum = sum + ELEMENT(v, i);
  return sum;
}

// The statistics of one work-item. Every range contains 0, so they begin as zeros.
typedef struct { V least, most, clipped, signal, noise, product, result; } RangeStatistics;
#define NO_STATISTICS {(V)0, (V)0, (V)0, (V)0, (V)0, (V)0, (V)0}

// v is written. `clipped` becomes a NaN where v is a NaN or an infinity.
INLINE void observe(RangeStatistics *s, const V v) {
#if STATISTICS
  s->least = lower(s->least, v);
  s->most = higher(s->most, v);
#ifdef __NV_CL_C_VERSION  // one instruction, not two
  s->clipped = fma(v, (V)0, s->clipped);
#else
  s->clipped += v * 0.0f;  // which may become one instruction, as v - v doesn't
#endif
#endif
}

// `exact` is the integer of a value less the zero point, before rounding and clipping to [lowest, highest].
INLINE void observe_clipping(RangeStatistics *s, const V exact, const V lowest, const V highest) {
#if STATISTICS
  s->clipped = ((exact < lowest - 0.5f) | (exact > highest + 0.5f)) ? s->clipped + 1.0f : s->clipped;
#endif
}

// v became w.
INLINE void observe_rounding(RangeStatistics *s, const V v, const V w) {
#if STATISTICS && TRACED
  s->signal += v * v;
  s->noise += (v - w) * (v - w);
  s->product += v * w;
  s->result += w * w;
#endif
}

INLINE Record record_of(const RangeStatistics s) {
  Record record = (Record)0;
  ELEMENT(record, LEAST_FOUND) = least_of(s.least);
  ELEMENT(record, MOST_FOUND) = most_of(s.most);
  ELEMENT(record, CLIPPED) = sum_of(s.clipped);
  ELEMENT(record, SIGNAL) = sum_of(s.signal);
  ELEMENT(record, NOISE) = sum_of(s.noise);
  ELEMENT(record, PRODUCT) = sum_of(s.product);
  ELEMENT(record, RESULT_POWER) = sum_of(s.result);
  return record;
}

// Two records of one tensor as one
INLINE Record merged(const Record a, const Record b) {
  Record both = a + b;
  ELEMENT(both, LEAST_FOUND) = lower_float(ELEMENT(a, LEAST_FOUND), ELEMENT(b, LEAST_FOUND));
  ELEMENT(both, MOST_FOUND) = higher_float(ELEMENT(a, MOST_FOUND), ELEMENT(b, MOST_FOUND));
  return both;
}

// Local memory for the functions below, declared by the kernel
#if GROUP > 1
#define LOCAL_RECORDS(name) __local Record name[GROUP / 2]
#else
#define LOCAL_RECORDS(name) __local Record *const name = 0
#endif

// The records of a work-group's items, a power of two of them, put together in its first item: merged, or summed up.
INLINE Record record_of_group(Record mine, const int merge, __local Record *shared) {
#if GROUP > 1
  const int me = get_local_id(0);
  for (int count = GROUP / 2; count > 0; count /= 2) {
    if (me >= count && me < 2 * count) shared[me - count] = mine;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (me < count) mine = merge ? merged(mine, shared[me]) : mine + shared[me];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
#endif
  return mine;
}

// The record of `parts` records, in the first item of a work-group
INLINE Record merged_records(input records, const int parts, __local Record *shared) {
  Record all = (Record)0;
  for (int part = get_local_id(0); part < parts; part += GROUP)
    all = merged(all, load_record(records + (size_t)part * BLOCK));
  return record_of_group(all, 1, shared);
}

// The record of a group's statistics, in its first item. Without TRACED it has three fields, which take fewer steps.
INLINE float4 merged_shares(const float4 a, const float4 b) {
  return (float4)(lower_float(a.x, b.x), higher_float(a.y, b.y), a.z + b.z, 0.0f);
}
INLINE Record record_of_statistics(const RangeStatistics s, __local Record *shared) {
#if GROUP > 16 && !TRACED
  __local float4 *shares = (__local float4 *)shared;
  const int me = get_local_id(0), some = GROUP / 16;
  float4 all = (float4)(least_of(s.least), most_of(s.most), sum_of(s.clipped), 0.0f);
  shares[me] = all;
  barrier(CLK_LOCAL_MEM_FENCE);
  if (me < some) {
    UNROLL for (int i = 1; i < 16; i++) all = merged_shares(all, shares[me + i * some]);
    shares[me] = all;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (me == 0) UNROLL for (int i = 1; i < some; i++) all = merged_shares(all, shares[i]);
  Record record = (Record)0;
  ELEMENT(record, LEAST_FOUND) = all.x;
  ELEMENT(record, MOST_FOUND) = all.y;
  ELEMENT(record, CLIPPED) = all.z;
  return record;
#else
  return record_of_group(record_of(s), 1, shared);
#endif
}

// Writes the group's record to `records`; `values` is the number of values of the tensor. With `add`, earlier
// micro-batches have left records there. All work-items of a group take part.
INLINE void write_record(const RangeStatistics s, output records, const int values, const int add,
                         __local Record *shared) {
  Record mine = record_of_statistics(s, shared);
  if (get_local_id(0) > 0) return;
  output target = records + get_group_id(0) * BLOCK;
  if (get_group_id(0) == 0) ELEMENT(mine, COUNT) = values;
  if (add) mine = merged(mine, load_record(target));
  store_record(target, mine);
}

#if STATISTICS
#define STATISTICS_ARGUMENTS , OUTPUT(records), const int values, const int add_records
#define WRITE_STATISTICS(s, shared) write_record(s, START(records), values, add_records, shared)
#else
#define STATISTICS_ARGUMENTS
#define WRITE_STATISTICS(s, shared)
#endif

// The tiles of work-item: neighbouring ones on CPUs; on GPUs the members of a group take neighbours.
typedef struct { int first, last, step; } Tiles;
INLINE Tiles tiles_of_item(const int tiles) {
#if GROUP > 1
  return (Tiles){get_global_id(0), tiles, get_global_size(0)};
#else
  const int share = (tiles + (int)get_global_size(0) - 1) / (int)get_global_size(0);
  const int first = (int)get_global_id(0) * share;
  return (Tiles){first, first + share < tiles ? first + share : tiles, 1};
#endif
}

// The tiles of a work-item as bands of rows, `bands` in a block: it divides at the start alone.
typedef struct { Tiles tiles; int block, band, block_step, band_step; } Bands;
INLINE Bands bands_of_item(const int bands, const int blocks) {
  const Tiles tiles = tiles_of_item(bands * blocks * VECTORS);
  const int first = tiles.first / VECTORS, step = tiles.step / VECTORS;
  return (Bands){tiles, first / bands, first % bands, step / bands, step % bands};
}
INLINE void next_band(Bands *b, const int bands) {
  b->tiles.first += b->tiles.step;
  b->block += b->block_step;
  b->band += b->band_step;
  if (b->band < bands) return;
  b->band -= bands;
  b->block++;
}
#define FOR_BANDS(at, bands, blocks) \
  for (Bands at = bands_of_item(bands, blocks); at.tiles.first < at.tiles.last; next_band(&at, bands))

// For jobs: the record of a work-group, one of whose items is number `item` of a tensor with so many `values`
INLINE void write_job_record(const RangeStatistics s, output records, const int item, const int values,
                             __local Record *shared) {
  Record mine = record_of_group(record_of(s), 1, shared);
  if (get_local_id(0) > 0) return;
  if (item == 0) ELEMENT(mine, COUNT) = values;
  store_record(records + (size_t)(item / GROUP) * BLOCK, mine);
}
