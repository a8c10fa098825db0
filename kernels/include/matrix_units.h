// Products of small matrices by a warp of 32 work-items that hold parts of them in registers. MMA: NVIDIA's matrix
// units, by inline PTX. PLAIN_MMA: the same in plain C, to test the others with. TYPE says what is multiplied:
// BFLOAT16, FLOAT16, or FLOAT32, rounded to TF32; sums are float32.
//
// A tile in local memory has rows of 16 values, CHUNKS pieces of 16 bytes, in an order that keeps the banks of local
// memory apart: chunk(row, piece). A product is deep PARTS times DEEP values. A register of the left factor, 16 rows by
// DEEP, or of the right one, DEEP by 8 columns, holds 4 bytes: two halves or a float.
#define PLAIN_MMA 0
#define MMA 10
#ifndef UNIT
#define UNIT PLAIN_MMA
#endif
#ifndef TYPE
#define TYPE FLOAT32
#endif

#if TYPE == FLOAT32
#define CHUNKS 4
#define PARTS 2
#define DEEP 8
#else
#define CHUNKS 2
#define PARTS 1
#define DEEP 16
#endif
typedef uint4 Chunk;
typedef uint4 Left;
typedef uint2 Right;
#define LANE ((int)get_local_id(0) % 32)

INLINE int chunk(const int row, const int piece) {
#if TYPE == FLOAT32
  return row * CHUNKS + (piece ^ ((row >> 1 & 1) * 2 + (row >> 2 & 1)));
#else
  return row * CHUNKS + (piece ^ (row >> 2 & 1));
#endif
}

// Word `w` of a row
INLINE int word(const int row, const int w) { return chunk(row, w / 4) * 4 + w % 4; }

#if UNIT == MMA
INLINE uint address_of(__local const Chunk *p) { return (uint)(ulong)p; }

// Begin to copy 16 bytes to local memory, or zeros if not `valid`; COMMIT_COPIES makes a batch of them, and
// WAIT_FOR_COPIES waits until all batches are there, or all but the last one.
INLINE void copy_chunk(__local Chunk *to, __global const Chunk *from, const int valid) {
  const int bytes = valid ? 16 : 0;
  __asm__ volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(address_of(to)), "l"(from), "r"(bytes) : "memory");
}
#define COMMIT_COPIES __asm__ volatile("cp.async.commit_group;" : : : "memory")
#define WAIT_FOR_COPIES __asm__ volatile("cp.async.wait_group 0;" : : : "memory")
#define WAIT_FOR_ALL_BUT_ONE __asm__ volatile("cp.async.wait_group 1;" : : : "memory")

// Four matrices of 8 rows of 16 bytes; lane i gives the address of row i % 8 of matrix i / 8.
INLINE Left load_matrices(__local const Chunk *p) {
  Left r;
  __asm__ volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "r"(address_of(p)) : "memory");
  return r;
}
INLINE Left load_transposed(__local const Chunk *p) {
  Left r;
  __asm__ volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "r"(address_of(p)) : "memory");
  return r;
}
#define LOAD_MATRICES(tile, at) load_matrices((tile) + at(LANE))
#define LOAD_TRANSPOSED(tile, at) load_transposed((tile) + at(LANE))

INLINE uint to_tf32(const uint v) {
  uint r;
  __asm__("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(as_float(v)));
  return r;
}

#if TYPE == FLOAT32
#define SHAPE "m16n8k8.row.col.f32.tf32.tf32.f32"
#elif TYPE == BFLOAT16
#define SHAPE "m16n8k16.row.col.f32.bf16.bf16.f32"
#else
#define SHAPE "m16n8k16.row.col.f32.f16.f16.f32"
#endif
// sum + left * right: lane 4 g + t holds columns 2 t and 2 t + 1 of rows g and g + 8
INLINE float4 add_product(float4 sum, const Left a, const Right b, __local uint *exchange) {
  __asm__ volatile("mma.sync.aligned." SHAPE " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(sum.x), "+f"(sum.y), "+f"(sum.z), "+f"(sum.w)
               : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
  return sum;
}
#define LOCAL_EXCHANGE(name) __local uint *const name = 0

#else
INLINE void copy_chunk(__local Chunk *to, __global const Chunk *from, const int valid) {
  *to = valid ? *from : (Chunk)0;
}
#define COMMIT_COPIES
#define WAIT_FOR_COPIES
#define WAIT_FOR_ALL_BUT_ONE

// Register i of a lane: row LANE / 4 of matrix i, word LANE % 4; transposed: rows 2 t and 2 t + 1, column LANE / 4
#define LOAD_MATRICES(tile, at)                                                                              \
  ((Left)(plain_word((tile) + at(LANE / 4)), plain_word((tile) + at(8 + LANE / 4)),                          \
          plain_word((tile) + at(16 + LANE / 4)), plain_word((tile) + at(24 + LANE / 4))))
INLINE uint plain_word(__local const Chunk *p) { return ((__local const uint *)p)[LANE % 4]; }
#define PLAIN_PAIR(tile, at, i)                                                        \
  (plain_half((tile) + at(8 * (i) + LANE % 4 * 2)) | plain_half((tile) + at(8 * (i) + LANE % 4 * 2 + 1)) << 16)
INLINE uint plain_half(__local const Chunk *p) { return ((__local const ushort *)p)[LANE / 4]; }
#define LOAD_TRANSPOSED(tile, at) \
  ((Left)(PLAIN_PAIR(tile, at, 0), PLAIN_PAIR(tile, at, 1), PLAIN_PAIR(tile, at, 2), PLAIN_PAIR(tile, at, 3)))

INLINE uint to_tf32(const uint v) { return (v + 0x1000) & 0xFFFFE000; }

// Value `k` of registers that a warp has left in `exchange`, 6 a lane: of a row of the left factor, or of a column
INLINE float exchanged(__local const uint *exchange, const int lane, const int register_, const int odd) {
  const uint bits = exchange[lane * 6 + register_];
#if TYPE == FLOAT32
  return as_float(bits);
#else
  return float_of((ushort)(odd ? bits >> 16 : bits & 0xFFFF));
#endif
}
INLINE float4 add_product(float4 sum, const Left a, const Right b, __local uint *exchange) {
  __local uint *warp = exchange + get_local_id(0) / 32 * 32 * 6, *mine = warp + LANE * 6;
  mine[0] = a.x; mine[1] = a.y; mine[2] = a.z; mine[3] = a.w; mine[4] = b.x; mine[5] = b.y;
  barrier(CLK_LOCAL_MEM_FENCE);
  const int words = 32 / 8;  // of a row of 16 bytes
  for (int i = 0; i < 4; i++) {
    const int row = LANE / 4 + i / 2 * 8, column = LANE % 4 * 2 + i % 2;
    float s = 0;
    for (int k = 0; k < DEEP; k++) {
      const int half_of_row = k / (DEEP / 2), w = k % (DEEP / 2) * words / (DEEP / 2), odd = DEEP == 16 ? k % 2 : 0;
      s += exchanged(warp, row % 8 * 4 + w, row / 8 + 2 * half_of_row, odd)
           * exchanged(warp, column * 4 + w, 4 + half_of_row, odd);
    }
    ((float *)&sum)[i] += s;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  return sum;
}
#define LOCAL_EXCHANGE(name) __local uint name[GROUP * 6]
#endif

// Where lane i finds a row of 16 bytes of the four matrices that it loads (matrix_units.h), in a tile that starts with
// row 0 of what the warp multiplies
#define ROWS_FIRST(i) chunk((i) % 16, (i) / 16 + piece)
#define DEPTH_FIRST(i) chunk((i) % 8 + (i) / 16 * 8, (i) / 8 % 2)

// Sixteen rows of the left factor from `row` of a step, whose rows are pixels
INLINE Left left_rows(__local const Chunk *tile, const int row, const int part) {
  const int piece = part * 2;
  Left a = LOAD_MATRICES(tile + row * CHUNKS, ROWS_FIRST);
#if TYPE == FLOAT32
  a = (Left)(to_tf32(a.x), to_tf32(a.y), to_tf32(a.z), to_tf32(a.w));
#endif
  return a;
}

#if TYPE == FLOAT32
INLINE uint tf32_at(__local const Chunk *tile, const int row, const int column) {
  return to_tf32(((__local const uint *)tile)[word(row, column)]);
}
#endif

// The same from a step whose rows are the depth, in blocks of 16 columns
INLINE Left left_columns(__local const Chunk *tile, const int column, const int part) {
  tile += column * CHUNKS;
#if TYPE == FLOAT32
  const int k = part * 8 + LANE % 4, m = LANE / 4;
  return (Left)(tf32_at(tile, k, m), tf32_at(tile, k, m + 8), tf32_at(tile, k + 4, m), tf32_at(tile, k + 4, m + 8));
#else
  return LOAD_TRANSPOSED(tile, DEPTH_FIRST);
#endif
}

// Sixteen columns of the right factor from `column` on, as two of 8
INLINE Left right_columns(__local const Chunk *tile, const int column, const int part) {
  tile += column * CHUNKS;
#if TYPE == FLOAT32
  const int k = part * 8 + LANE % 4, n = LANE / 4;
  return (Left)(tf32_at(tile, k, n), tf32_at(tile, k + 4, n), tf32_at(tile, k, n + 8), tf32_at(tile, k + 4, n + 8));
#else
  const int piece = 0;
  return LOAD_TRANSPOSED(tile, ROWS_FIRST);
#endif
}
