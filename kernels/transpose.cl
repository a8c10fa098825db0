// Weights as the backward pass to data reads them.
#include "blocked.h"
#include "jobs.h"

// t[tap]: [in/16][out][16] = (w[tap]: [out/16][in][16])^T; with SCALE, each output channel times its scale. A job a
// layer.
#if SCALE
#define TRANSPOSE_ARGUMENTS INPUT(w), OUTPUT(t), INPUT(scale), JOBS
#define SCALE_START JOB_START(scale, 3)
#else
#define TRANSPOSE_ARGUMENTS INPUT(w), OUTPUT(t), JOBS
#define SCALE_START 0
#endif
#define NUMBERS_WORD (3 + SCALE)

INLINE float weight_at(input w, const int row, const int rows) { return row < rows ? w[row * BLOCK] : 0.0f; }

#if VECTOR_WIDTH == BLOCK
// For GPUs: a work-item computes one row of t
KERNEL transpose_rows(TRANSPOSE_ARGUMENTS) {
  if (ITEM >= items) return;
  const Job job = find_job(START(table), jobs, NUMBERS_WORD + 3);
  const int taps = job.words[NUMBERS_WORD], in = job.words[NUMBERS_WORD + 1], out = job.words[NUMBERS_WORD + 2];
  const int j = job.item % out, tap = job.item / out % taps, in_block = job.item / out / taps;
  const int rows = in - in_block * BLOCK < BLOCK ? in - in_block * BLOCK : BLOCK;
  input source = JOB_START(w, 1) + (((size_t)(j / BLOCK) * taps + tap) * in + in_block * BLOCK) * BLOCK + j % BLOCK;
  V row;
  UNROLL for (int i = 0; i < BLOCK; i++) ELEMENT(row, i) = weight_at(source, i, rows);
#if SCALE
  row *= SCALE_START[j];
#endif
  store(JOB_START(t, 2) + (((size_t)in_block * taps + tap) * out + j) * BLOCK, row);
}

// Interleaves rows 0-7 with rows 8-15. Four times that transposes: each time a bit of the row's number and one of the
// column's change places.
INLINE void interleave(V to[BLOCK], const V from[BLOCK]) {
  UNROLL for (int i = 0; i < 8; i++) {
    const V x = from[i], y = from[i + 8];
    to[2 * i] = (V)(x.s0, y.s0, x.s1, y.s1, x.s2, y.s2, x.s3, y.s3, x.s4, y.s4, x.s5, y.s5, x.s6, y.s6, x.s7, y.s7);
    to[2 * i + 1] = (V)(x.s8, y.s8, x.s9, y.s9, x.sa, y.sa, x.sb, y.sb, x.sc, y.sc, x.sd, y.sd, x.se, y.se, x.sf, y.sf);
  }
}

// For CPUs: a work-item transposes 16 output channels of one tap, in blocks of 16 x 16 that stay in registers
KERNEL transpose_blocks(TRANSPOSE_ARGUMENTS) {
  if (ITEM >= items) return;
  const Job job = find_job(START(table), jobs, NUMBERS_WORD + 3);
  const int taps = job.words[NUMBERS_WORD], in = job.words[NUMBERS_WORD + 1], out = job.words[NUMBERS_WORD + 2];
  const int tap = job.item % taps, column = job.item / taps * BLOCK;
  const int columns = out - column < BLOCK ? out - column : BLOCK;
  input source = JOB_START(w, 1) + ((size_t)(column / BLOCK) * taps + tap) * in * BLOCK;
#if SCALE
  const V s = load(SCALE_START + column);
#else
  const V s = (V)1;
#endif
  for (int row = 0; row < in; row += BLOCK) {
    V a[BLOCK], b[BLOCK];
    UNROLL for (int i = 0; i < BLOCK; i++) a[i] = row + i < in ? load(source + (row + i) * BLOCK) * s : (V)0;
    interleave(b, a);
    interleave(a, b);
    interleave(b, a);
    interleave(a, b);
    output target = JOB_START(t, 2) + (((size_t)(row / BLOCK) * taps + tap) * out + column) * BLOCK;
    UNROLL for (int i = 0; i < BLOCK; i++) if (i < columns) store(target + i * BLOCK, a[i]);
  }
}

// t: [channels/16][taps][filters of a group][16] = w transposed group by group, which are whole blocks
KERNEL transpose_columns(INPUT(w), OUTPUT(t), const int taps, const int in_group, const int out_group) {
  const int row = get_global_id(0), block = get_global_id(1);
  if (row >= taps * out_group) return;
  const int tap = row / out_group, group = block * BLOCK / in_group, o = group * out_group + row % out_group;
  input from = START(w) + ((size_t)(o / BLOCK * taps + tap) * in_group + block * BLOCK % in_group) * BLOCK + o % BLOCK;
  V v = (V)0;
  UNROLL for (int i = 0; i < BLOCK; i++) ELEMENT(v, i) = from[i * BLOCK];
  store(ITEM_START(t) + ((size_t)block * taps * out_group + row) * BLOCK, v);
}
#endif

// t = w * scale for a kernel [channels/16][rows][16]; a job a layer, so many work-items a block of channels
KERNEL scale_taps(INPUT(w), OUTPUT(t), INPUT(scale), JOBS) {
  if (ITEM >= items) return;
  const Job job = find_job(START(table), jobs, 6);
  input w = JOB_ITEM_START(w, 1);
  output t = JOB_ITEM_START(t, 2);
  const int rows = job.words[4], together = job.words[5], block = job.item / together;
  const V s = load(JOB_ITEM_START(scale, 3) + block * BLOCK);
  for (int row = job.item % together; row < rows; row += together) {
    const size_t at = ((size_t)block * rows + row) * BLOCK;
    store(t + at, load(w + at) * s);
  }
}
