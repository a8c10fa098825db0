// What the self-test of a unit runs: see edgelearn/runtime/units.py.
#include "blocked.h"
#include "quads.h"

// sums[block] += the products of x[block], unsigned bytes, with the four rows of 16 signed bytes w[block]
KERNEL add_quads_of_blocks(INPUT_OF(int, x), INPUT_OF(char, w), OUTPUT_OF(int, sums), const int blocks) {
  const int block = get_global_id(0);
  if (block >= blocks) return;
  const Quads x = *(__global const Quads_in_memory *)(START(x) + block * BLOCK);
  __global int *sums = START(sums) + block * BLOCK;
  const Quads sum = *(__global const Quads_in_memory *)sums;
  *(__global Quads_in_memory *)sums = add_quads(sum, x, quads_of_rows(START(w) + block * QUAD * BLOCK));
}
