// Philox4x32-10 (Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3"): four random words
// from a counter and a key alone, so that any work-item can draw any of them, and draw them again.
static uint4 philox(uint4 counter, uint2 key) {
  for (int round = 0; round < 10; round++) {
    const ulong a = (ulong)0xD2511F53u * counter.x, b = (ulong)0xCD9E8D57u * counter.z;
    counter = (uint4)((uint)(b >> 32) ^ counter.y ^ key.x, (uint)b, (uint)(a >> 32) ^ counter.w ^ key.y, (uint)a);
    key.x += 0x9E3779B9u;
    key.y += 0xBB67AE85u;
  }
  return counter;
}

// Words for DRAWN rows of 16 values, for CPUs, whose vector units draw them side by side: two chains, since each
// multiplication waits for the one before. Row i takes four counters from `first`[i] on, which is x, with y[i].
#define DRAWN 4
typedef struct { uint16 of[DRAWN]; } Words;
static Words philox_rows(const uint4 first, const uint4 y, const uint z, const uint w, uint2 key) {
  // Words are the low halves of 64 bits, since that is where vector units multiply; the high halves hold anything.
  const ulong8 low = (ulong8)0xFFFFFFFF, steps = (ulong8)(0, 1, 2, 3, 0, 1, 2, 3);
  ulong8 a[2] = {(ulong8)((ulong4)first.x, (ulong4)first.y) + steps, (ulong8)((ulong4)first.z, (ulong4)first.w) + steps};
  ulong8 b[2] = {(ulong8)((ulong4)y.x, (ulong4)y.y), (ulong8)((ulong4)y.z, (ulong4)y.w)};
  ulong8 c[2] = {(ulong8)z, (ulong8)z}, d[2] = {(ulong8)w, (ulong8)w};
  __attribute__((opencl_unroll_hint(10))) for (int round = 0; round < 10; round++) {
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
  Words words;
  __attribute__((opencl_unroll_hint(2))) for (int i = 0; i < 2; i++) {
    const ulong8 x = (a[i] & low) | (b[i] << 32), u = (c[i] & low) | (d[i] << 32);
    words.of[2 * i] = as_uint16((ulong8)(x.s0, u.s0, x.s1, u.s1, x.s2, u.s2, x.s3, u.s3));
    words.of[2 * i + 1] = as_uint16((ulong8)(x.s4, u.s4, x.s5, u.s5, x.s6, u.s6, x.s7, u.s7));
  }
  return words;
}
