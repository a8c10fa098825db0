// Memory traffic and arithmetic with known answers, for the self-test of a device.
#include "blocked.h"

// c = a + 3 b; a work-item has `count` blocks
KERNEL triad(INPUT(a), INPUT(b), OUTPUT(c), const int blocks, const int count) {
  FROM(a) FROM(b) INTO(c)
  const int first = ITEM * count, last = first + count < blocks ? first + count : blocks;
  for (int block = first; block < last; block++)
    STORE(c + block * BLOCK, LOAD(a + block * BLOCK) + LOAD(b + block * BLOCK) * 3.0f);
}

// c = CHAINS: as many independent chains of x = x / 2 + 1 / 2, from 1, 2, 3..., as hide the latency of an instruction
KERNEL multiply_add(OUTPUT(c), const int rounds) {
  INTO(c)
  const V a_half = (V)0.5f;
  V chain[CHAINS], sum = (V)0;
  UNROLL for (int i = 0; i < CHAINS; i++) chain[i] = (V)(i + 1);
  for (int r = 0; r < rounds; r++) { UNROLL for (int i = 0; i < CHAINS; i++) chain[i] = chain[i] * a_half + a_half; }
  UNROLL for (int i = 0; i < CHAINS; i++) sum += chain[i];
  STORE(c + (size_t)ITEM * BLOCK, sum);
}
