// Peak arithmetic of a unit: independent chains of its products, as many as hide their latency. The factors change from
// round to round and from chain to chain, so that no product is computed once for all.
#include "blocked.h"
#include "quads.h"
#include "matrix_units.h"
#if UNIT == WGMMA
#define WARP_COLUMNS 128
#include "warpgroups.h"
#endif

#if TYPE == INT8
typedef int4 Chain;
#else
typedef float4 Chain;
#endif

// sums[item] = the sum of CHAINS chains of `rounds` products of quads
KERNEL repeat_quads(OUTPUT_OF(int, sums), const int rounds) {
  const int item = get_global_id(0);
  Quads chain[CHAINS], total = (Quads)0;
  for (int i = 0; i < CHAINS; i++) chain[i] = (Quads)0;
  for (int r = 0; r < rounds; r++) {
    const Quads x = (Quads)(0x01010101 * (r & 63));
    UNROLL for (int i = 0; i < CHAINS; i++) chain[i] = add_quads(chain[i], x, (Quads)(0x01010101 * (i + 1)));
  }
  for (int i = 0; i < CHAINS; i++) total += chain[i];
  *(__global Quads_in_memory *)(START(sums) + item * BLOCK) = total;
}

// sums[item] = the sum of CHAINS chains of `rounds` products of zeros by a warp
KERNEL repeat_products(OUTPUT_OF(Chain, sums), const int rounds) {
  LOCAL_EXCHANGE(exchange);
  Chain chain[CHAINS], total = (Chain)0;
  for (int i = 0; i < CHAINS; i++) chain[i] = (Chain)0;
  Left a = (Left)0;
  Right b = (Right)0;
  for (int r = 0; r < rounds; r++) {
    UNROLL for (int i = 0; i < CHAINS; i++) chain[i] = add_product(chain[i], a, b, exchange);
  }
  for (int i = 0; i < CHAINS; i++) total += chain[i];
  START(sums)[get_global_id(0)] = total;
}

// sums[item] = the sum of what a work-item holds of four times `rounds` products of 64 x DEEP by DEEP x 128, of zeros
KERNEL repeat_products_of_warpgroups(OUTPUT_OF(Chain, sums), const int rounds) {
  __local Chunk left[64 * CHUNKS] ALIGNED, right[128 * CHUNKS] ALIGNED;
  for (int i = get_local_id(0); i < 128 * CHUNKS; i += GROUP) left[i % (64 * CHUNKS)] = right[i] = (Chunk)0;
  WAIT_FOR_PRODUCTS;
  barrier(CLK_LOCAL_MEM_FENCE);
  const ulong a = matrix_at(chunk_number(left)), b = matrix_at(chunk_number(right));
  Sums chain[16];
  Chain total = (Chain)0;
  for (int i = 0; i < 16; i++) chain[i] = (Sums)0;
  for (int r = 0; r < rounds; r++) {
    BEGIN_PRODUCTS;
    UNROLL for (int i = 0; i < 4; i++) MULTIPLY_64(chain, a, b, 0);
    END_PRODUCTS;
    WAIT_FOR_PRODUCTS;
  }
  HOLD(chain);
  for (int i = 0; i < 16; i++) total += chain[i];
  START(sums)[get_global_id(0)] = total;
}
