// Stored tensors to floats, integers transposed, and sums of integers.
#include "integers.h"
#include "stored.h"
#include "jobs.h"

// What integers or halves stand for, as the gradient of an input is written.
KERNEL to_floats(INPUT_STORED(x), RESULT_ARGUMENTS, const int m, const int blocks_x MASK_ARGUMENTS) {
  FROM_STORED(x) RESULT_POINTERS MASK_POINTERS
  EACH_TILE(m * blocks_x) {
    const int block = tile / m, row = tile % m;
    STORED_BLOCK(x, block)
    WRITE_GRADIENT(block, row, LOAD_STORED(x, (size_t)tile * BLOCK))
  }
  LEAVE_FOUND
}

// sums[group]: (add ? what was there : 0) + the sum of each channel over the `count` rows of a group
KERNEL integer_channel_sums(INPUT_RANGED(x), OUTPUT(sums), const int m, const int blocks, const int count,
                            const int add) {
  FROM_RANGED(x) INTO(sums)
  const int block = get_global_id(0), group = get_global_id(1);
  if (block >= blocks) return;
  const int start = group * count, stop = start + count < m ? start + count : m;
  const short zero = (short)x_range[ZERO];
  const size_t at = ((size_t)group * blocks + block) * BLOCK;
  A sum = (A)0;
  for (int row = start; row < stop; row++) sum += LOAD_CENTRED(x + ((size_t)block * m + row) * BLOCK, zero);
  V v = TO_FLOATS(sum) * x_range[SCALE_OF];
  if (add) v += LOAD(sums + at);
  STORE(sums + at, v);
}

// [out/16][taps][in][16] -> [in/16][taps][out][16], a row of the result a work-item
KERNEL transpose_integers(INPUT_Q(w), OUTPUT_Q(t), JOBS) {
  FIND_JOB(6)
  const int taps = job[3], inputs = job[4], outputs = job[5];
  const int out = item % outputs, tap = item / outputs % taps, block = item / (outputs * taps);
  __global const char *from = w_memory + (size_t)job[1] * 4 * BLOCK + ((size_t)(out / BLOCK * taps + tap) * inputs) * BLOCK + out % BLOCK;
  __global char *to = t_memory + (size_t)job[2] * 4 * BLOCK + (size_t)item * BLOCK;
  for (int lane = 0; lane < BLOCK; lane++) {
    const int in = block * BLOCK + lane;
    to[lane] = in < inputs ? from[in * BLOCK] : 0;
  }
}
