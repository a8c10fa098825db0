// Products of small matrices by a warp of 32 work-items that hold parts of them in registers. MMA: NVIDIA's matrix
// units, by inline PTX. WGMMA: those of NVIDIA's Hopper, by which four warps multiply matrices in local memory
// (warpgroups.h). PLAIN_MMA and PLAIN_WGMMA: the same in plain C, to test the others with. TYPE says what is multiplied:
// BFLOAT16, FLOAT16, or FLOAT32, rounded to TF32, whose sums are float32; or INT8, whose sums are int32.
//
// A tile in local memory has rows of 16 values, CHUNKS pieces of 16 bytes, in an order that keeps the banks of local
// memory apart: chunk(row, piece). A product is deep PARTS times DEEP values. A register of the left factor, 16 rows by
// DEEP, or of the right one, DEEP by 8 columns, holds 4 bytes: two halves or a float.
//
// With DEPTH_ROWS, the rows of the right factor's tiles are its columns, so that those of both factors run along the
// depth: WGMMA takes floats only so, and others load them faster.
#define PLAIN_MMA 0
#define PLAIN_WGMMA 12
#define MMA 10
#define WGMMA 11
#ifndef UNIT
#define UNIT PLAIN_MMA
#endif
#define BY_PTX (UNIT == MMA || UNIT == WGMMA)
#define WARPGROUPS (UNIT == WGMMA || UNIT == PLAIN_WGMMA)
#ifndef TYPE
#define TYPE FLOAT32
#endif
#ifndef DEPTH_ROWS
#define DEPTH_ROWS 0
#endif

#if TYPE == FLOAT32
#define CHUNKS 4
#define PARTS 2
#define DEEP 8
#elif TYPE == INT8
#define CHUNKS 1
#define PARTS 1
#define DEEP 32
#else
#define CHUNKS 2
#define PARTS 1
#define DEEP 16
#endif
#if TYPE == INT8  // a product takes two tiles, STEP_CHUNKS apart
typedef char Factor;
typedef int4 Sums;
#define STEPS 2
#ifndef STEP_CHUNKS
#define STEP_CHUNKS 16
#endif
#else
typedef Value Factor;
typedef float4 Sums;
#define STEPS 1
#endif
typedef __global const Factor *restrict factors;
typedef uint4 Chunk;
typedef uint4 Left;
typedef uint2 Right;
#define LANE ((int)get_local_id(0) % 32)

INLINE int chunk(const int row, const int piece) {
#if DEPTH_ROWS
  return row * CHUNKS + (piece ^ (row >> 1 & 3));
#elif TYPE == FLOAT32
  return row * CHUNKS + (piece ^ ((row >> 1 & 1) * 2 + (row >> 2 & 1)));
#elif TYPE == INT8
  return row;
#else
  return row * CHUNKS + (piece ^ (row >> 2 & 1));
#endif
}

// Word `w` of a row
INLINE int word(const int row, const int w) { return chunk(row, w / 4) * 4 + w % 4; }

// Where lane i finds a row of 16 bytes of the four matrices of 8 rows that a warp loads together, in a tile that starts
// with row 0 of what the warp multiplies. ROWS_FIRST: the second matrix lies below the first one, and the others beside
// these, from `piece` on; DEPTH_FIRST: beside, and below.
#define ROWS_FIRST 0
#define DEPTH_FIRST 1
INLINE int row_of_lane(const int i, const int order, const int piece) {
#if TYPE == INT8
  return i % 16 + i / 16 * STEP_CHUNKS;
#else
  return order == ROWS_FIRST ? chunk(i % 16, i / 16 + piece) : chunk(i % 8 + i / 16 * 8, i / 8 % 2);
#endif
}

#if BY_PTX
#define COPY_16_BYTES(cache)                                                                \
  __asm__ volatile("cp.async." cache ".shared.global [%0], [%1], 16, %2;"                  \
                   : : "r"(address_of(to)), "l"(from), "r"(bytes) : "memory")
INLINE uint address_of(__local const Chunk *p) { return (uint)(ulong)p; }

// Begin to copy 16 bytes to local memory. If not `valid`, zeros; of integers, `fill`, which stands for zeros.
// `again`: the compute unit soon reads the same again, and its cache keeps it. COMMIT_COPIES makes a batch of copies, and
// WAIT_FOR_COPIES waits until all batches are there, or all but the last.
INLINE void copy_chunk(__local Chunk *to, __global const Chunk *from, const int valid, const Chunk fill,
                       const int again) {
#if TYPE == INT8
  if (!valid) {
    *to = fill;
    return;
  }
#endif
  const int bytes = valid ? 16 : 0;
  if (again) COPY_16_BYTES("ca");
  else COPY_16_BYTES("cg");
}
#define COMMIT_COPIES __asm__ volatile("cp.async.commit_group;" : : : "memory")
#define WAIT_FOR_COPIES __asm__ volatile("cp.async.wait_group 0;" : : : "memory")
#define WAIT_FOR_ALL_BUT_ONE __asm__ volatile("cp.async.wait_group 1;" : : : "memory")

INLINE Left load_matrices(__local const Chunk *tile, const int order, const int piece) {
  __local const Chunk *p = tile + row_of_lane(LANE, order, piece);
  Left r;
  __asm__ volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "r"(address_of(p)) : "memory");
  return r;
}
INLINE Left load_transposed(__local const Chunk *tile, const int order) {
  __local const Chunk *p = tile + row_of_lane(LANE, order, 0);
  Left r;
  __asm__ volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "r"(address_of(p)) : "memory");
  return r;
}

INLINE uint to_tf32(const uint v) {
  uint r;
  __asm__("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(as_float(v)));
  return r;
}

#if TYPE == FLOAT32
#define SHAPE "m16n8k8.row.col.f32.tf32.tf32.f32"
#elif TYPE == BFLOAT16
#define SHAPE "m16n8k16.row.col.f32.bf16.bf16.f32"
#elif TYPE == INT8
#define SHAPE "m16n8k32.row.col.s32.s8.s8.s32"
#else
#define SHAPE "m16n8k16.row.col.f32.f16.f16.f32"
#endif
#if TYPE == INT8
#define IN_REGISTER "+r"
#else
#define IN_REGISTER "+f"
#endif
// sum + left * right: lane 4 g + t holds columns 2 t and 2 t + 1 of rows g and g + 8
INLINE Sums add_product(Sums sum, const Left a, const Right b, __local uint *exchange) {
  __asm__ volatile("mma.sync.aligned." SHAPE " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : IN_REGISTER(sum.x), IN_REGISTER(sum.y), IN_REGISTER(sum.z), IN_REGISTER(sum.w)
               : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
  return sum;
}
#define LOCAL_EXCHANGE(name) __local uint *const name = 0

#else
#undef UNROLL
#define UNROLL __attribute__((opencl_unroll_hint(1)))  // barriers in unrolled loops take minutes to compile
INLINE void copy_chunk(__local Chunk *to, __global const Chunk *from, const int valid, const Chunk fill,
                       const int again) {
  *to = valid ? *from : fill;
}
#define COMMIT_COPIES
#define WAIT_FOR_COPIES
#define WAIT_FOR_ALL_BUT_ONE

// Register i of a lane: row LANE / 4 of matrix i, word LANE % 4; transposed: rows 2 t and 2 t + 1, column LANE / 4
INLINE uint plain_word(__local const Chunk *tile, const int matrix, const int order, const int piece) {
  return ((__local const uint *)(tile + row_of_lane(8 * matrix + LANE / 4, order, piece)))[LANE % 4];
}
INLINE Left load_matrices(__local const Chunk *tile, const int order, const int piece) {
  return (Left)(plain_word(tile, 0, order, piece), plain_word(tile, 1, order, piece),
                plain_word(tile, 2, order, piece), plain_word(tile, 3, order, piece));
}
INLINE uint plain_pair(__local const Chunk *tile, const int matrix, const int order) {
  const int i = 8 * matrix + LANE % 4 * 2;
  return ((__local const ushort *)(tile + row_of_lane(i, order, 0)))[LANE / 4]
         | (uint)((__local const ushort *)(tile + row_of_lane(i + 1, order, 0)))[LANE / 4] << 16;
}
INLINE Left load_transposed(__local const Chunk *tile, const int order) {
  return (Left)(plain_pair(tile, 0, order), plain_pair(tile, 1, order), plain_pair(tile, 2, order),
                plain_pair(tile, 3, order));
}

INLINE uint to_tf32(const uint v) { return (v + 0x1000) & 0xFFFFE000; }

// Number `part` of a register that a warp has left in `exchange`, 6 a lane
#if TYPE == INT8
typedef int Summed;
#else
typedef float Summed;
#endif
#define PACKED (DEEP / 8)  // values of a register
INLINE Summed exchanged(__local const uint *exchange, const int lane, const int register_, const int part) {
  const uint bits = exchange[lane * 6 + register_];
#if TYPE == FLOAT32
  return as_float(bits);
#elif TYPE == INT8
  return (char)(bits >> part * 8);
#else
  return float_of((ushort)(part ? bits >> 16 : bits & 0xFFFF));
#endif
}
INLINE Sums add_product(Sums sum, const Left a, const Right b, __local uint *exchange) {
  __local uint *warp = exchange + get_local_id(0) / 32 * 32 * 6, *mine = warp + LANE * 6;
  mine[0] = a.x; mine[1] = a.y; mine[2] = a.z; mine[3] = a.w; mine[4] = b.x; mine[5] = b.y;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = 0; i < 4; i++) {
    const int row = LANE / 4 + i / 2 * 8, column = LANE % 4 * 2 + i % 2;
    Summed s = 0;
    for (int k = 0; k < DEEP; k++) {
      const int half_of_row = k / (DEEP / 2), w = k % (DEEP / 2) / PACKED, part = k % PACKED;
      s += exchanged(warp, row % 8 * 4 + w, row / 8 + 2 * half_of_row, part)
           * exchanged(warp, column * 4 + w, 4 + half_of_row, part);
    }
    ((Summed *)&sum)[i] += s;
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  return sum;
}
#define LOCAL_EXCHANGE(name) __local uint name[GROUP * 6]
#endif

// Sixteen rows of the left factor from `row` of a step, whose rows are pixels
INLINE Left left_rows(__local const Chunk *tile, const int row, const int part) {
  Left a = load_matrices(tile + row * CHUNKS, ROWS_FIRST, part * 2);
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

#if TYPE == INT8
// A lane that loads transposed pairs of bytes gets two columns at once, of rows 2 t, 2 t + 1, 2 t + 8 and 2 t + 9. The
// left factor, loaded row by row, has depths 4 t to 4 t + 3 in that lane: so row `slot` of the right one holds depth
// DEPTH_OF(slot). Products of two transposed factors don't mind.
#define DEPTH_OF(slot) ((slot) % 8 / 2 * 4 + (slot) % 2 + (slot) / 8 * 2)
#if BY_PTX
INLINE uint even_bytes(const uint a, const uint b) {
  uint r;
  __asm__("prmt.b32 %0, %1, %2, 0x6420;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
INLINE uint odd_bytes(const uint a, const uint b) {
  uint r;
  __asm__("prmt.b32 %0, %1, %2, 0x7531;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
#else
INLINE uint even_bytes(const uint a, const uint b) {
  return (a & 0xFF) | (a >> 8 & 0xFF00) | (b & 0xFF) << 16 | (b & 0xFF0000) << 8;
}
INLINE uint odd_bytes(const uint a, const uint b) { return even_bytes(a >> 8, b >> 8); }
#endif
#else
#define DEPTH_OF(slot) (slot)
#endif

// The same from a step whose rows are the depth, in blocks of 16 columns. Of integers, row g is column 2 g, and row
// g + 8 column 2 g + 1.
INLINE Left left_columns(__local const Chunk *tile, const int column, const int part) {
  tile += column * CHUNKS;
#if TYPE == FLOAT32
  const int k = part * 8 + LANE % 4, m = LANE / 4;
  return (Left)(tf32_at(tile, k, m), tf32_at(tile, k, m + 8), tf32_at(tile, k + 4, m), tf32_at(tile, k + 4, m + 8));
#elif TYPE == INT8
  const Left r = load_transposed(tile, ROWS_FIRST);
  return (Left)(even_bytes(r.x, r.y), odd_bytes(r.x, r.y), even_bytes(r.z, r.w), odd_bytes(r.z, r.w));
#else
  return load_transposed(tile, DEPTH_FIRST);
#endif
}

// Sixteen columns of the right factor from `column` on, as two of 8. Of integers, column c of the first is column 2 c,
// that of the second column 2 c + 1.
INLINE Left right_columns(__local const Chunk *tile, const int column, const int part) {
#if DEPTH_ROWS
  return left_rows(tile, column, part).xzyw;
#else
  tile += column * CHUNKS;
#if TYPE == FLOAT32
  const int k = part * 8 + LANE % 4, n = LANE / 4;
  return (Left)(tf32_at(tile, k, n), tf32_at(tile, k + 4, n), tf32_at(tile, k, n + 8), tf32_at(tile, k + 4, n + 8));
#elif TYPE == INT8
  const Left r = load_transposed(tile, ROWS_FIRST);
  return (Left)(even_bytes(r.x, r.y), even_bytes(r.z, r.w), odd_bytes(r.x, r.y), odd_bytes(r.z, r.w));
#else
  return load_transposed(tile, ROWS_FIRST);
#endif
#endif
}
