// Pixels of a row as unsigned quads (quads.h), for units whose first factor is unsigned: bytes are 128 above the signed
// ones. With x = q + 128 and a = zero + 128, the sum of (q - zero) * w is the sum of x * w less a times that of w.
// Pixels in the padding hold a, so they add nothing.
#define OFFSET 0x80808080  // 128 in each byte: signed to unsigned, and back
#define ONES 0x01010101

INLINE int within(const int i, const int count) { return i < 0 ? 0 : i < count ? i : count - 1; }

// The quads of four pixels of a row of 16 channels from column `first` on, every `step`-th. Pixels outside the row, and
// those after the first `count`, hold what padding does.
INLINE Quads quads_of_columns(__global const char *row, const int first, const int step, const int count,
                              const int width, const short zero) {
#define AT(column) *(__global const Row_in_memory *)(row + (column) * BLOCK)
  if (count == QUAD && first >= 0 && first + (QUAD - 1) * step < width) {
    if (step == 1) return quads_of_rows(row + first * BLOCK) ^ (Quads)OFFSET;
    return quads_of_four(AT(first), AT(first + step), AT(first + 2 * step), AT(first + 3 * step)) ^ (Quads)OFFSET;
  }
  if (step == 1) {
    const int outside = first < -QUAD ? QUAD : first < 0 ? -first : 0, rest = width - first;
    const int stop = rest < count ? rest : count;
    return quads_of_some(row + first * BLOCK, outside, stop < outside ? outside : stop, (char)zero) ^ (Quads)OFFSET;
  }
  int mask = count < QUAD ? (1 << 8 * count) - 1 : -1;
  UNROLL for (int q = 0; q < QUAD; q++) {
    const int ix = first + q * step;
    if (ix < 0 || ix >= width) mask &= ~(255 << 8 * q);
  }
  const Quads quads = quads_of_four(AT(within(first, width)), AT(within(first + step, width)),
                                    AT(within(first + 2 * step, width)), AT(within(first + 3 * step, width)));
  return ((quads ^ (Quads)OFFSET) & mask) | ((zero + 128) * ONES & ~mask);
#undef AT
}
