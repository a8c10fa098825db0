// The kernels of convolutions at the points of winograd.h.
#include "blocked.h"
#include "winograd.h"

// u: [points][out/16][channels][16] = the kernel w: [out/16][9][channels][16] transformed, or, FLIPPED, the kernel turned
// by half: that of the backward pass
KERNEL winograd_kernel(INPUT(w), OUTPUT(u), const int channels, const int out_blocks) {
  const int channel = get_global_id(0), block = get_global_id(1);
  V g[9], points[POINTS];
  UNROLL for (int tap = 0; tap < 9; tap++)
    g[FLIPPED ? 8 - tap : tap] = load(START(w) + ((size_t)(block * 9 + tap) * channels + channel) * BLOCK);
  transform_kernel(g, points);
  UNROLL for (int i = 0; i < POINTS; i++)
    store(START(u) + ((size_t)(i * out_blocks + block) * channels + channel) * BLOCK, points[i]);
}
