// Several tensors into one: sums, and channels side by side.
#include "blocked.h"
#include "activation.h"
#include "band.h"
#include "gradient.h"

KERNEL add(INPUT(a), INPUT(b), OUTPUT(y), const int m, const int count) {
  FROM(a) FROM(b) INTO(y)
  BAND
  for (int row = start; row < stop; row++) {
    const size_t at = ((size_t)block * m + row) * BLOCK;
    STORE(y + at, LOAD(a + at) + LOAD(b + at));
  }
}

#define AT(x, c, row) x[((size_t)((c) / BLOCK) * m + (row)) * BLOCK + (c) % BLOCK]

// Channels `offset` and following of y = x, those after x zero. What lies before is left alone.
KERNEL concatenate_forward(INPUT(x), OUTPUT(y), const int m, const int count, const int channels, const int offset) {
  FROM(x) INTO(y)
  BAND
  const int first = (offset / BLOCK + block) * BLOCK;
  for (int row = start; row < stop; row++) for (int c = first < offset ? offset : first; c < first + BLOCK; c++)
    AT(y, c, row) = c - offset < channels ? AT(x, c - offset, row) : 0.0f;
}

// dx = channels `offset` and following of dy
KERNEL concatenate_backward(INPUT(dy), const int m, const int count, const int channels, const int offset,
                            GRADIENT_OUTPUT) {
  FROM(dy) GRADIENT_POINTERS
  BAND
  const int lanes = channels - block * BLOCK < BLOCK ? channels - block * BLOCK : BLOCK;
  for (int row = start; row < stop; row++) {
    V v = (V)0;
    for (int lane = 0; lane < lanes; lane++) LANE(v, lane) = AT(dy, offset + block * BLOCK + lane, row);
    WRITE_GRADIENT(((size_t)block * m + row) * BLOCK, v)
  }
}
