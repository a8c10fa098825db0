// Memory traffic and arithmetic with known answers, for the self-test of a device.
#include "blocked.h"

// c = a + 3 b; a work-item computes `count` blocks
KERNEL triad(INPUT(a), INPUT(b), OUTPUT(c), const int blocks, const int count) {
  input a = ITEM_START(a), b = ITEM_START(b);
  output c = ITEM_START(c);
  const int first = ITEM * count, last = first + count < blocks ? first + count : blocks;
  for (int block = first; block < last; block++)
    store(c + block * BLOCK, load(a + block * BLOCK) + load(b + block * BLOCK) * 3.0f);
}

// c = CHAINS: as many independent chains of x = x / 2 + 1 / 2, from 1, 2, 3..., as hide the latency of an instruction
KERNEL multiply_add(OUTPUT(c), const int rounds) {
  const V a_half = (V)0.5f;
  V chain[CHAINS], sum = (V)0;
  UNROLL for (int i = 0; i < CHAINS; i++) chain[i] = (V)(i + 1);
  for (int r = 0; r < rounds; r++) { UNROLL for (int i = 0; i < CHAINS; i++) chain[i] = chain[i] * a_half + a_half; }
  UNROLL for (int i = 0; i < CHAINS; i++) sum += chain[i];
  store(ITEM_START(c) + (size_t)ITEM * BLOCK, sum);
}
