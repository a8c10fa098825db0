// Pooling over blocked matrices.
#include "blocked.h"
#include "activation.h"
#include "gradient.h"

// y[image] = the mean of `pixels` rows of x
KERNEL global_average_forward(input x, output y, const int images, const int pixels) {
  const int image = get_global_id(0), block = get_global_id(1);
  if (image >= images) return;
  const size_t first = ((size_t)block * images + image) * pixels * BLOCK;
  V sum = (V)0;
  for (int p = 0; p < pixels; p++) sum += LOAD(x + first + p * BLOCK);
  STORE(y + ((size_t)block * images + image) * BLOCK, sum * (1.0f / pixels));
}

KERNEL global_average_backward(input dy, const int images, const int pixels, GRADIENT_OUTPUT) {
  const int image = get_global_id(0), block = get_global_id(1);
  if (image >= images) return;
  const size_t first = ((size_t)block * images + image) * pixels * BLOCK;
  const V share = LOAD(dy + ((size_t)block * images + image) * BLOCK) * (1.0f / pixels);
  for (int p = 0; p < pixels; p++) WRITE_GRADIENT(first + p * BLOCK, share)
}
