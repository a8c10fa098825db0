// Philox4x32 (Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3"): four random words from
// a counter and a key alone, so that any work-item can draw any of them, and draw them again. The authors propose 10
// rounds; 7 are the fewest with which their tests find nothing, and enough to round by.
#define FEW_ROUNDS 7
INLINE uint4 philox(uint4 counter, uint2 key, const int rounds) {
  for (int round = 0; round < rounds; round++) {
    const ulong a = (ulong)0xD2511F53u * counter.x, b = (ulong)0xCD9E8D57u * counter.z;
    counter = (uint4)((uint)(b >> 32) ^ counter.y ^ key.x, (uint)b, (uint)(a >> 32) ^ counter.w ^ key.y, (uint)a);
    key.x += 0x9E3779B9u;
    key.y += 0xBB67AE85u;
  }
  return counter;
}

// Random bits for DRAWN rows of 16 values, 16 each, after FEW_ROUNDS, for CPUs, whose vector units draw them side by
// side: two chains, since each multiplication waits for the one before. Row i takes two counters from `first`[i] on,
// which is x, with y[i].
#define DRAWN 8
typedef struct { ushort16 of[DRAWN]; } DrawnRows;
#define TWICE(v) ((ulong8)((v).x, (v).x, (v).y, (v).y, (v).z, (v).z, (v).w, (v).w))
static DrawnRows philox_rows(const uint8 first, const uint8 y, const uint z, const uint w, uint2 key) {
  // Words are the low halves of 64 bits, since that is where vector units multiply; the high halves hold anything.
  const ulong8 low = (ulong8)0xFFFFFFFF, steps = (ulong8)(0, 1, 0, 1, 0, 1, 0, 1);
  ulong8 a[2] = {TWICE(first.lo) + steps, TWICE(first.hi) + steps}, b[2] = {TWICE(y.lo), TWICE(y.hi)};
  ulong8 c[2] = {(ulong8)z, (ulong8)z}, d[2] = {(ulong8)w, (ulong8)w};
  __attribute__((opencl_unroll_hint(FEW_ROUNDS))) for (int round = 0; round < FEW_ROUNDS; round++) {
    __attribute__((opencl_unroll_hint(2))) for (int i = 0; i < 2; i++) {
      const ulong8 p = (a[i] & low) * 0xD2511F53ul, q = (c[i] & low) * 0xCD9E8D57ul;
      a[i] = q >> 32 ^ b[i] ^ key.x;
      b[i] = q;
      c[i] = p >> 32 ^ d[i] ^ key.y;
      d[i] = p;
    }
    key.x += 0x9E3779B9u;
    key.y += 0xBB67AE85u;
  }
  DrawnRows rows;
  __attribute__((opencl_unroll_hint(2))) for (int i = 0; i < 2; i++) {
    const ulong8 x = (a[i] & low) | (b[i] << 32), u = (c[i] & low) | (d[i] << 32);
    rows.of[4 * i] = as_ushort16((ulong4)(x.s0, u.s0, x.s1, u.s1));
    rows.of[4 * i + 1] = as_ushort16((ulong4)(x.s2, u.s2, x.s3, u.s3));
    rows.of[4 * i + 2] = as_ushort16((ulong4)(x.s4, u.s4, x.s5, u.s5));
    rows.of[4 * i + 3] = as_ushort16((ulong4)(x.s6, u.s6, x.s7, u.s7));
  }
  return rows;
}
