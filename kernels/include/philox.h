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
