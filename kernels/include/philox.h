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
  uint4 a = (uint4)(first, first + 1, first + 2, first + 3), b = (uint4)y, c = (uint4)z, d = (uint4)w;
  for (int round = 0; round < 10; round++) {
    const ulong4 p = convert_ulong4(a) * 0xD2511F53ul, q = convert_ulong4(c) * 0xCD9E8D57ul;
    a = convert_uint4(q >> 32) ^ b ^ key.x;
    b = convert_uint4(q);
    c = convert_uint4(p >> 32) ^ d ^ key.y;
    d = convert_uint4(p);
    key.x += 0x9E3779B9u;
    key.y += 0xBB67AE85u;
  }
  return (uint16)(a.x, b.x, c.x, d.x, a.y, b.y, c.y, d.y, a.z, b.z, c.z, d.z, a.w, b.w, c.w, d.w);
}
