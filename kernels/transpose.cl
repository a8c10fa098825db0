// Weights as the backward pass to data wants them.
#include "blocked.h"
#include "jobs.h"

// t[tap]: [in/16][out][16] = (w[tap]: [out/16][in][16])^T, each output channel times its scale if SCALE. A job a layer.
#if SCALE
#define TRANSPOSE_ARGUMENTS INPUT(w), OUTPUT(t), INPUT(scale), JOBS
#define SCALE_POINTER JOB_INPUT(scale, 3)
#else
#define TRANSPOSE_ARGUMENTS INPUT(w), OUTPUT(t), JOBS
#define SCALE_POINTER
#endif
#define TRANSPOSE_JOB                                                             \
  FIND_JOB(6 + SCALE)                                                             \
  JOB_INPUT(w, 1)                                                                 \
  JOB_OUTPUT(t, 2)                                                                \
  SCALE_POINTER                                                                   \
  const int taps = job[3 + SCALE], in = job[4 + SCALE], out = job[5 + SCALE];

// For GPUs: a work-item one row of t
KERNEL transpose_rows(TRANSPOSE_ARGUMENTS) {
  TRANSPOSE_JOB
  const int j = item % out, tap = item / out % taps, in_block = item / out / taps;
  const int rows = in - in_block * BLOCK < BLOCK ? in - in_block * BLOCK : BLOCK;
  input source = w + (((size_t)(j / BLOCK) * taps + tap) * in + in_block * BLOCK) * BLOCK + j % BLOCK;
#define AT(i) ((i) < rows ? source[(i) * BLOCK] : 0.0f)
  V row = (V)(AT(0), AT(1), AT(2), AT(3), AT(4), AT(5), AT(6), AT(7),
              AT(8), AT(9), AT(10), AT(11), AT(12), AT(13), AT(14), AT(15));
#if SCALE
  row *= scale[j];
#endif
  STORE(t + (((size_t)in_block * taps + tap) * out + j) * BLOCK, row);
}

// Riffling rows 0-7 with rows 8-15, four times, transposes: each time a bit of the row's number and one of the column's
// change places.
#define RIFFLE(from, to)                                                          \
  UNROLL for (int i = 0; i < 8; i++) {                                            \
    const V x = from[i], y = from[i + 8];                                         \
    to[2 * i] = (V)(x.s0, y.s0, x.s1, y.s1, x.s2, y.s2, x.s3, y.s3,               \
                    x.s4, y.s4, x.s5, y.s5, x.s6, y.s6, x.s7, y.s7);              \
    to[2 * i + 1] = (V)(x.s8, y.s8, x.s9, y.s9, x.sa, y.sa, x.sb, y.sb,           \
                        x.sc, y.sc, x.sd, y.sd, x.se, y.se, x.sf, y.sf);          \
  }

// For CPUs: a work-item 16 output channels of one tap, in blocks of 16 x 16 that stay in registers
KERNEL transpose_blocks(TRANSPOSE_ARGUMENTS) {
  TRANSPOSE_JOB
  const int tap = item % taps, column = item / taps * BLOCK;
  const int columns = out - column < BLOCK ? out - column : BLOCK;
  input source = w + ((size_t)(column / BLOCK) * taps + tap) * in * BLOCK;
#if SCALE
  const V s = LOAD(scale + column);
#else
  const V s = (V)1;
#endif
  for (int row = 0; row < in; row += BLOCK) {
    V a[BLOCK], b[BLOCK];
    UNROLL for (int i = 0; i < BLOCK; i++) a[i] = row + i < in ? LOAD(source + (row + i) * BLOCK) * s : (V)0;
    RIFFLE(a, b)
    RIFFLE(b, a)
    RIFFLE(a, b)
    RIFFLE(b, a)
    output target = t + (((size_t)(row / BLOCK) * taps + tap) * out + column) * BLOCK;
    UNROLL for (int i = 0; i < BLOCK; i++) if (i < columns) STORE(target + i * BLOCK, a[i]);
  }
}

// t = w * scale for a depthwise kernel [channels/16][taps][16]; a job a layer, a work-item 16 channels
KERNEL scale_taps(INPUT(w), OUTPUT(t), INPUT(scale), JOBS) {
  FIND_JOB(5)
  JOB_INPUT(w, 1)
  JOB_OUTPUT(t, 2)
  JOB_INPUT(scale, 3)
  const int taps = job[4];
  const V s = LOAD(scale + item * BLOCK);
  for (int tap = 0; tap < taps; tap++)
    STORE(t + ((size_t)item * taps + tap) * BLOCK, LOAD(w + ((size_t)item * taps + tap) * BLOCK) * s);
}
