// Weights as the backward pass to data wants them.
#include "blocked.h"
#include "jobs.h"

// t[tap]: [in/16][out][16] = (w[tap]: [out/16][in][16])^T, each output channel times its scale if SCALE. A job a layer;
// a work-item one tap, 16 input channels and `count` output channels.
KERNEL transpose_weights(INPUT(w), OUTPUT(t)
#if SCALE
                         , INPUT(scale)
#endif
                         , JOBS) {
  FIND_JOB(7 + SCALE)
  JOB_INPUT(w, 1)
  JOB_OUTPUT(t, 2)
#if SCALE
  JOB_INPUT(scale, 3)
#endif
  const int taps = job[3 + SCALE], in = job[4 + SCALE], out = job[5 + SCALE], count = job[6 + SCALE];
  const int parts = (out + count - 1) / count, part = item % parts;
  const int tap = item / parts % taps, in_block = item / parts / taps;
  const int stop = (part + 1) * count < out ? (part + 1) * count : out;
  const int rows = in - in_block * BLOCK < BLOCK ? in - in_block * BLOCK : BLOCK;
  for (int j = part * count; j < stop; j++) {
    input source = w + (((size_t)(j / BLOCK) * taps + tap) * in + in_block * BLOCK) * BLOCK + j % BLOCK;
#define AT(i) ((i) < rows ? source[(i) * BLOCK] : 0.0f)
    V row = (V)(AT(0), AT(1), AT(2), AT(3), AT(4), AT(5), AT(6), AT(7),
                AT(8), AT(9), AT(10), AT(11), AT(12), AT(13), AT(14), AT(15));
#if SCALE
    row *= scale[j];
#endif
    STORE(t + (((size_t)in_block * taps + tap) * out + j) * BLOCK, row);
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
