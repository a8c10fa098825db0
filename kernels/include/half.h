// IEEE 754 half precision by integer arithmetic: devices without cl_khr_fp16 have no type for it, and PoCL does not inline
// vload_half and vstore_half. Needs vectors.h.
#define HALF_INFINITY 0x7C00

// the bits of the halves nearest to v, ties to even: beyond 65504 an infinity, below 2^-14 a multiple of 2^-24
static A halves_of(const V v) {
  const A bits = BITS_OF(v), sign = (bits >> 16) & 0x8000, size = bits & 0x7FFFFFFF;
  const A normal = (size - 0x38000000 + 0xFFF + ((size >> 13) & 1)) >> 13;
  // 2^-24 is the last place of 1.5 * 2^-1: the sum is rounded there
  const A small = BITS_OF(OF_BITS(size) + (V)0.75f) - 0x3F400000;
  A half_ = size < 0x38800000 ? small : normal;
  half_ = size < 0x477FF000 ? half_ : (A)HALF_INFINITY;  // 65520 is the first that goes there
  half_ = size > 0x7F800000 ? (A)0x7E00 : half_;
  return sign | half_;
}

// what the bits stand for
static V of_halves(const A half_) {
  const A size = half_ & 0x7FFF, sign = (half_ & 0x8000) << 16;
  const A normal = (size << 13) + (size < HALF_INFINITY ? (A)0x38000000 : (A)0x70000000);
  const A small = BITS_OF(TO_FLOATS(size) * 0x1p-24f);
  return OF_BITS(sign | (size < 0x400 ? small : normal));
}

#define LOAD_HALVES(pointer) of_halves(TO_INTS(*(__global const H *)(pointer)))
#define STORE_HALVES(pointer, bits) (*(__global H *)(pointer) = TO_HALVES(bits))
