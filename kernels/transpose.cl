// Weights as the backward pass to data wants them.
#include "blocked.h"

// t[tap]: [in/16][out][16] = (w[tap]: [out/16][in][16])^T, each output channel times its scale if SCALE.
KERNEL transpose_weights(INPUT(w), OUTPUT(t), const int taps, const int in, const int out
#if SCALE
                         , INPUT(scale)
#endif
) {
  FROM(w) INTO(t)
#if SCALE
  FROM(scale)
#endif
  const int in_block = get_global_id(0), out_block = get_global_id(1), tap = get_global_id(2);
  if (in_block * BLOCK >= in) return;
  input source = w + (((size_t)out_block * taps + tap) * in + in_block * BLOCK) * BLOCK;
  output target = t + (((size_t)in_block * taps + tap) * out + out_block * BLOCK) * BLOCK;
  const int rows = in - in_block * BLOCK < BLOCK ? in - in_block * BLOCK : BLOCK;
  const int columns = out - out_block * BLOCK < BLOCK ? out - out_block * BLOCK : BLOCK;
  for (int j = 0; j < columns; j++) {
#if SCALE
    const float factor = scale[out_block * BLOCK + j];
#else
    const float factor = 1.0f;
#endif
#define AT(i) ((i) < rows ? source[(i) * BLOCK + j] : 0.0f)
    const V column = (V)(AT(0), AT(1), AT(2), AT(3), AT(4), AT(5), AT(6), AT(7),
                         AT(8), AT(9), AT(10), AT(11), AT(12), AT(13), AT(14), AT(15));
    STORE(target + j * BLOCK, column * factor);
  }
}

// t = w * scale for a depthwise kernel [channels/16][taps][16]
KERNEL scale_taps(INPUT(w), OUTPUT(t), const int taps, const int blocks, INPUT(scale)) {
  FROM(w) INTO(t) FROM(scale)
  const int block = get_global_id(0);
  if (block >= blocks) return;
  const V s = LOAD(scale + block * BLOCK);
  for (int tap = 0; tap < taps; tap++)
    STORE(t + ((size_t)block * taps + tap) * BLOCK, LOAD(w + ((size_t)block * taps + tap) * BLOCK) * s);
}
