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

// Of four counters in a row, the words that 16 values get: for CPUs, whose vector units draw them side by side. `first`
// is the first counter's x.
static uint16 philox_row(uint first, uint y, uint z, uint w, uint2 key) {
  // Words are the low halves of 64 bits, since that is where vector units multiply; the high halves hold anything.
  const ulong4 low = (ulong4)0xFFFFFFFF;
  ulong4 a = (ulong4)first + (ulong4)(0, 1, 2, 3), b = (ulong4)y, c = (ulong4)z, d = (ulong4)w;
  __attribute__((opencl_unroll_hint(10))) for (int round = 0; round < 10; round++) {
    const ulong4 p = (a & low) * 0xD2511F53ul, q = (c & low) * 0xCD9E8D57ul;
    a = q >> 32 ^ b ^ key.x;
    b = q;
    c = p >> 32 ^ d ^ key.y;
    d = p;
    key.x += 0x9E3779B9u;
    key.y += 0xBB67AE85u;
  }
  const uint8 x = as_uint8((a & low) | (b << 32)), u = as_uint8((c & low) | (d << 32));
  return (uint16)(x.s01, u.s01, x.s23, u.s23, x.s45, u.s45, x.s67, u.s67);
}
