// Peak arithmetic of a unit: independent chains of its products, as many as hide their latency. The factors change from
// round to round and from chain to chain, so that no product is computed once for all.
#include "blocked.h"
#include "quads.h"
#include "matrix_units.h"

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
