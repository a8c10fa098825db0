// Self-test of a unit: see edgelearn/runtime/devices.py.
#include "blocked.h"
#include "quads.h"
#include "matrix_units.h"
#define WARP_COLUMNS 32
#if UNIT == WGMMA
#include "warpgroups.h"
#endif

// sums[block] += the products of x[block], unsigned bytes, with the four rows of 16 signed bytes w[block]
KERNEL add_quads_of_blocks(INPUT_OF(int, x), INPUT_OF(char, w), OUTPUT_OF(int, sums), const int blocks) {
  const int block = get_global_id(0);
  if (block >= (HAS_UNIT ? blocks : 0)) return;
  const Quads x = *(__global const Quads_in_memory *)(START(x) + block * BLOCK);
  __global int *sums = START(sums) + block * BLOCK;
  const Quads sum = *(__global const Quads_in_memory *)sums;
  *(__global Quads_in_memory *)sums = add_quads(sum, x, quads_of_rows(START(w) + block * QUAD * BLOCK));
}

// sums = the product of x and w, 16 x 16 each, or of integers 16 x 32 and 32 x 16, by one warp
KERNEL add_products_of_tiles(INPUT_OF(Factor, x), INPUT_OF(Factor, w), OUTPUT(sums)) {
  __local Chunk left[STEPS * 16 * CHUNKS], right[STEPS * 16 * CHUNKS];
  LOCAL_EXCHANGE(exchange);
  for (int i = LANE; i < STEPS * 16 * CHUNKS; i += 32) {
    const int at = chunk(i / CHUNKS, i % CHUNKS);
    copy_chunk(left + at, (__global const Chunk *)START(x) + i, 1, (Chunk)0, 0);
    copy_chunk(right + at, (__global const Chunk *)START(w) + i, 1, (Chunk)0, 0);
  }
  COMMIT_COPIES;
  WAIT_FOR_COPIES;
  barrier(CLK_LOCAL_MEM_FENCE);
  Sums sum[2] = {(Sums)0, (Sums)0};
  for (int part = 0; part < PARTS; part++) {
    const Left a = left_rows(left, 0, part), b = right_columns(right, 0, part);
    sum[0] = add_product(sum[0], a, b.xy, exchange);
    sum[1] = add_product(sum[1], a, b.zw, exchange);
  }
  output to = START(sums) + LANE / 4 * BLOCK;
  for (int j = 0; j < 2; j++) for (int i = 0; i < 2; i++) {
    const int column = LANE % 4 * 2 + i;
    output at = to + (STEPS == 2 ? column * 2 + j : j * 8 + column);  // even and odd columns of integers
    at[0] = i ? sum[j].y : sum[j].x;
    at[8 * BLOCK] = i ? sum[j].w : sum[j].z;
  }
}

// sums, 64 x 32, = the product of x and w, of 16 x 32 in blocks, by a warpgroup. TRANSPOSED: of x transposed, in blocks.
// DEPTH_ROWS: w is transposed.
KERNEL add_products_of_warpgroups(INPUT_OF(Factor, x), INPUT_OF(Factor, w), OUTPUT(sums)) {
  __local Chunk left[64 * CHUNKS] ALIGNED, right[32 * CHUNKS] ALIGNED;
  for (int i = get_local_id(0); i < 64 * CHUNKS; i += GROUP) {
    const int at = chunk(i / CHUNKS, i % CHUNKS);
    copy_chunk(left + at, (__global const Chunk *)START(x) + i, 1, (Chunk)0, 0);
    if (i < 32 * CHUNKS) copy_chunk(right + at, (__global const Chunk *)START(w) + i, 1, (Chunk)0, 0);
  }
  COMMIT_COPIES;
  WAIT_FOR_COPIES;
  WAIT_FOR_PRODUCTS;
  barrier(CLK_LOCAL_MEM_FENCE);
  Sums sum[4] = {(Sums)0, (Sums)0, (Sums)0, (Sums)0};
  BEGIN_PRODUCTS;
  for (int part = 0; part < PARTS; part++) {
    const ulong a = matrix_at(chunk_number(left) + part * 2), b = matrix_at(chunk_number(right) + part * 2);
    if (TRANSPOSED) MULTIPLY_64(sum, a, b, 1);
    else MULTIPLY_64(sum, a, b, 0);
  }
  END_PRODUCTS;
  WAIT_FOR_PRODUCTS;
  HOLD(sum);
  output to = START(sums) + (get_local_id(0) / 32 * 16 + LANE / 4) * 32 + LANE % 4 * 2;
  for (int j = 0; j < 4; j++) {
    *(__global float2 *)(to + j * 8) = sum[j].xy;
    *(__global float2 *)(to + j * 8 + 8 * 32) = sum[j].zw;
  }
}
