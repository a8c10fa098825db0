// y = x: how layers that only move values along pass on a gradient (see gradient.h).
#include "blocked.h"
#include "activation.h"
#include "band.h"
#include "gradient.h"

KERNEL copy(INPUT(x), const int m, const int count, GRADIENT_OUTPUT) {
  FROM(x) GRADIENT_POINTERS
  BAND
  for (int row = start; row < stop; row++) {
    const size_t at = ((size_t)block * m + row) * BLOCK;
    WRITE_GRADIENT(at, LOAD(x + at))
  }
}
