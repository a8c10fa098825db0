// Sums of products of four 8-bit integers at a time: the units of edgelearn/device.py. A quad is four bytes in a
// word; every lane of a vector has one.
//   add_quads(sum, x, w): sum + the four products of unsigned bytes of x and signed bytes of w, in each lane
//   quads_of_rows(p): four rows of 16 bytes, one after the other, as the 16 quads of their columns
//   quads_of_few(p, rows): of fewer rows, filled up with zeros
//   quads_of_some(p, first, stop, other): of four rows of which only those from number `first` to `stop` - 1 are read;
//     the bytes of the rest are `other`; clamp_quad(i) brings a row's number into 0 to 4
//   quads_of_four(a, b, c, d): of four rows that needn't be neighbours
//   rows_of_some(p, first, stop, other): what quads_of_some reads, row by row as in memory; with ROWS_AT_ONCE alone
//   mask_of_rows(first, stop), quads_by_mask(p, mask, other): quads_of_some in two steps; loads may share the first
//   bytes_of_some(p, first, stop, other): likewise, but `first` and `stop` count bytes and may lie outside
// Fours are quads as the unit multiplies them soonest. A kernel that multiplies many by the same makes them first:
//   fours_of(quads, is_signed); fours_of_rows(p, count): as weights_of_rows; fours_of_one(p): of four Unsigned numbers, in
//   all lanes; lane_of(memory, i): lane i of Fours in memory, in all lanes; ONE_EACH: ones; add_fours(sum, x, w)
#define PLAIN_QUADS 0
#define VNNI512 1
#define AVX512BW 2
#define AVX2 3
#define INTEGER_DOT 4
#define QCOM_DOT 5
#ifndef UNIT
#define UNIT PLAIN_QUADS
#endif

// A unit of another processor compiles as plain C, and its self-test finds no sums (units.cl): a compiler's errors would
// be printed to the user's terminal.
#if UNIT == VNNI512 && !defined(__AVX512VNNI__) || UNIT == AVX512BW && !defined(__AVX512BW__) \
    || UNIT == AVX2 && !defined(__AVX2__)
#undef UNIT
#define UNIT PLAIN_QUADS
#define HAS_UNIT 0
#else
#define HAS_UNIT 1
#endif

#define QUAD 4
typedef int16 Quads;
typedef Quads __attribute__((aligned(4))) Quads_in_memory;
INLINE int clamp_quad(const int i) { return i < 0 ? 0 : i < QUAD ? i : QUAD; }

#if UNIT == VNNI512
INLINE Quads add_quads(const Quads sum, const Quads x, const Quads w) {
  return __builtin_ia32_vpdpbusd512(sum, x, w);
}

#elif UNIT == AVX512BW || UNIT == AVX2
// Products of pairs of shorts: bytes 0 and 2 of a word, then bytes 1 and 3
#if UNIT == AVX512BW
typedef short __attribute__((ext_vector_type(32))) Pairs;
INLINE Quads products_of_pairs(const Quads x, const Quads w) {
  return __builtin_ia32_pmaddwd512(__builtin_astype(x, Pairs), __builtin_astype(w, Pairs));
}
#else
INLINE int8 products_of_half(const int8 x, const int8 w) {
  return __builtin_ia32_pmaddwd256(as_short16(x), as_short16(w));
}
INLINE Quads products_of_pairs(const Quads x, const Quads w) {
  return (Quads)(products_of_half(x.lo, w.lo), products_of_half(x.hi, w.hi));
}
#endif
INLINE Quads add_quads(const Quads sum, const Quads x, const Quads w) {
  const Quads even = ((w << 24) >> 24 & 0xFFFF) | ((w << 8) >> 24) << 16;
  const Quads odd = ((w << 16) >> 24 & 0xFFFF) | (w >> 24) << 16;
  return sum + products_of_pairs(x & 0x00FF00FF, even) + products_of_pairs((x >> 8) & 0x00FF00FF, odd);
}

#elif UNIT == INTEGER_DOT || UNIT == QCOM_DOT
#if UNIT == INTEGER_DOT
#pragma OPENCL EXTENSION cl_khr_integer_dot_product : enable
#define DOT(x, w, sum) ((sum) + dot_4x8packed_us_int(x, w))
#else
#pragma OPENCL EXTENSION cl_qcom_dot_product8 : enable
#define DOT(x, w, sum) qcom_dot8_acc(x, w, sum)
#endif
INLINE Quads add_quads(Quads sum, const Quads x, const Quads w) {
  UNROLL for (int i = 0; i < BLOCK; i++) ((int *)&sum)[i] = DOT(((uint *)&x)[i], ((uint *)&w)[i], ((int *)&sum)[i]);
  return sum;
}

#else
INLINE Quads add_quads(Quads sum, const Quads x, const Quads w) {
  UNROLL for (int i = 0; i < QUAD; i++) sum += (x >> 8 * i & 255) * (w << 24 - 8 * i >> 24);
  return sum;
}
#endif

typedef char16 __attribute__((aligned(4))) Row_in_memory;
typedef char16 __attribute__((aligned(1))) Row_at_any_place;
INLINE Quads bytes_of_row(__global const char *p) { return convert_int16(*(__global const Row_in_memory *)p) & 255; }
INLINE Quads quads_of_few(__global const char *p, const int rows) {
  Quads quads = (Quads)0;
  for (int i = 0; i < rows; i++) quads |= bytes_of_row(p + i * BLOCK) << 8 * i;
  return quads;
}

#if UNIT == VNNI512 || UNIT == AVX512BW
typedef char __attribute__((ext_vector_type(32))) Pair_of_rows;
typedef char __attribute__((ext_vector_type(64))) Rows;
typedef Rows __attribute__((aligned(4))) Rows_in_memory;
INLINE Quads columns_of(const Rows rows) {
  return __builtin_astype(__builtin_shufflevector(rows, rows,
      0, 16, 32, 48, 1, 17, 33, 49, 2, 18, 34, 50, 3, 19, 35, 51,
      4, 20, 36, 52, 5, 21, 37, 53, 6, 22, 38, 54, 7, 23, 39, 55,
      8, 24, 40, 56, 9, 25, 41, 57, 10, 26, 42, 58, 11, 27, 43, 59,
      12, 28, 44, 60, 13, 29, 45, 61, 14, 30, 46, 62, 15, 31, 47, 63), Quads);
}
INLINE Quads quads_of_rows(__global const char *p) { return columns_of(*(__global const Rows_in_memory *)p); }
#define ROWS_AT_ONCE 1
INLINE ushort mask_of_rows(const int first, const int stop) { return (1 << 4 * stop) - (1 << 4 * first); }
INLINE Quads rows_by_mask(__global const char *p, const ushort mask, const char other) {
  return __builtin_ia32_loaddqusi512_mask((__global const int *)p, (Quads)((other & 255) * 0x01010101), mask);
}
INLINE Quads rows_of_some(__global const char *p, const int first, const int stop, const char other) {
  return rows_by_mask(p, mask_of_rows(first, stop), other);
}
INLINE Quads bytes_of_some(__global const char *p, const int first, const int stop, const char other) {
  const ulong below = first <= 0 ? 0 : first < 64 ? (1UL << first) - 1 : ~0UL;
  const ulong mask = stop <= 0 ? 0 : stop < 64 ? (1UL << stop) - 1 : ~0UL;
  const Rows rows = __builtin_ia32_loaddquqi512_mask((__global const Rows *)p, (Rows)other, mask & ~below);
  return __builtin_astype(rows, Quads);
}
INLINE Quads quads_by_mask(__global const char *p, const ushort mask, const char other) {
  return columns_of(__builtin_astype(rows_by_mask(p, mask, other), Rows));
}
INLINE Quads quads_of_some(__global const char *p, const int first, const int stop, const char other) {
  return quads_by_mask(p, mask_of_rows(first, stop), other);
}
INLINE Pair_of_rows pair_of(const char16 a, const char16 b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22,
                                 23, 24, 25, 26, 27, 28, 29, 30, 31);
}
INLINE Quads quads_of_four(const char16 a, const char16 b, const char16 c, const char16 d) {
  const Pair_of_rows x = pair_of(a, b), y = pair_of(c, d);
  return columns_of(__builtin_shufflevector(x, y,
      0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
      32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60,
      61, 62, 63));
}
#else
#define ROWS_AT_ONCE 0
INLINE Quads quads_of_rows(__global const char *p) { return quads_of_few(p, QUAD); }
INLINE Quads quads_of_some(__global const char *p, const int first, const int stop, const char other) {
  Quads quads = (Quads)0;
  for (int i = 0; i < QUAD; i++)
    quads |= (i >= first && i < stop ? bytes_of_row(p + i * BLOCK) : (Quads)(other & 255)) << 8 * i;
  return quads;
}
INLINE Quads quads_of_four(const char16 a, const char16 b, const char16 c, const char16 d) {
  return (convert_int16(a) & 255) | (convert_int16(b) & 255) << 8 | (convert_int16(c) & 255) << 16
         | convert_int16(d) << 24;
}
#endif

typedef int __attribute__((aligned(1))) Quad_in_memory;
#if UNIT == AVX2
// Pairs of shorts: bytes 0 and 1, and bytes 2 and 3, of a word. Widened once, they are multiplied by one instruction and
// added by one more.
typedef ushort Unsigned;
typedef ushort16 __attribute__((aligned(4))) Numbers_in_memory;
typedef struct { Quads low, high; } Fours;
#define ONE_EACH ((Fours){(Quads)0x00010001, (Quads)0x00010001})
INLINE Fours fours_of(const Quads q, const int is_signed) {
  if (is_signed) return (Fours){(q << 24 >> 24 & 0xFFFF) | q << 16 >> 24 << 16, (q << 8 >> 24 & 0xFFFF) | q >> 24 << 16};
  return (Fours){(q & 0xFF) | (q & 0xFF00) << 8, (q >> 16 & 0xFF) | (q >> 24 & 0xFF) << 16};
}
INLINE Quads widened(const char16 columns, const char16 more) {
  return (Quads)(as_int8(__builtin_convertvector(columns, short16)), as_int8(__builtin_convertvector(more, short16)));
}
INLINE Quads pairs_of(const char16 a, const char16 b) {
  return widened(__builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
                 __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31));
}
INLINE Fours fours_of_rows(__global const char *p, const int count) {
  __global const Row_in_memory *rows = (__global const Row_in_memory *)p;
  if (count >= QUAD) return (Fours){pairs_of(rows[0], rows[1]), pairs_of(rows[2], rows[3])};
  char16 row[QUAD];
  UNROLL for (int i = 0; i < QUAD; i++)
    row[i] = *(__global const Row_in_memory *)(p + (i < count ? i : 0) * BLOCK) & (char16)(i < count ? -1 : 0);
  return (Fours){pairs_of(row[0], row[1]), pairs_of(row[2], row[3])};
}
// Fours of unsigned bytes, whose highest bit is inverted in memory
INLINE Fours fours_of_unsigned(const char16 a, const char16 b, const char16 c, const char16 d) {
  const Fours f = {pairs_of(a, b), pairs_of(c, d)};
  return (Fours){f.low & 0x00FF00FF ^ 0x00800080, f.high & 0x00FF00FF ^ 0x00800080};
}
INLINE Fours fours_of_one(const Unsigned *p) {
  return (Fours){(Quads)(*(const Quad_in_memory *)p), (Quads)(*(const Quad_in_memory *)(p + 2))};
}
INLINE Fours lane_of(const Fours *memory, const int i) {
  return (Fours){(Quads)(((const int *)&memory->low)[i]), (Quads)(((const int *)&memory->high)[i])};
}
INLINE Quads add_fours(const Quads sum, const Fours x, const Fours w) {
  return sum + products_of_pairs(x.low, w.low) + products_of_pairs(x.high, w.high);
}
// 16 bytes as Unsigned numbers
INLINE void store_unsigned(Unsigned *to, const int4 bytes) {
  *(Numbers_in_memory *)to = __builtin_convertvector(as_uchar16(bytes), ushort16);
}
#else
typedef uchar Unsigned;
typedef Quads Fours;
#define ONE_EACH ((Quads)0x01010101)
INLINE Fours fours_of(const Quads q, const int is_signed) { return q; }
INLINE Fours fours_of_rows(__global const char *p, const int count) {
  return count < QUAD ? quads_of_few(p, count) : quads_of_rows(p);
}
INLINE Fours fours_of_one(const Unsigned *p) { return (Quads)(*(const Quad_in_memory *)p); }
INLINE Fours lane_of(const Fours *memory, const int i) { return (Quads)(((const int *)memory)[i]); }
INLINE Quads add_fours(const Quads sum, const Fours x, const Fours w) { return add_quads(sum, x, w); }
#endif

// Sixteen columns of 16 bytes, given as the quads of rows 0 to 3, 4 to 7, 8 to 11 and 12 to 15: each of the results has
// four columns, one after the other.
INLINE void rows_of_quads(Quads to[BLOCK / QUAD], const Quads from[BLOCK / QUAD]) {
  const Quads a = from[0], b = from[1], c = from[2], d = from[3];
  to[0] = (Quads)(a.s0, b.s0, c.s0, d.s0, a.s1, b.s1, c.s1, d.s1, a.s2, b.s2, c.s2, d.s2, a.s3, b.s3, c.s3, d.s3);
  to[1] = (Quads)(a.s4, b.s4, c.s4, d.s4, a.s5, b.s5, c.s5, d.s5, a.s6, b.s6, c.s6, d.s6, a.s7, b.s7, c.s7, d.s7);
  to[2] = (Quads)(a.s8, b.s8, c.s8, d.s8, a.s9, b.s9, c.s9, d.s9, a.sa, b.sa, c.sa, d.sa, a.sb, b.sb, c.sb, d.sb);
  to[3] = (Quads)(a.sc, b.sc, c.sc, d.sc, a.sd, b.sd, c.sd, d.sd, a.se, b.se, c.se, d.se, a.sf, b.sf, c.sf, d.sf);
}
