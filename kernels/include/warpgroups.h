// Products by warpgroups: WGMMA lets four neighbouring warps multiply 64 rows by WARP_COLUMNS columns, reading both
// factors from local memory, while the work-items go on. A warp gets 16 of the rows. Halves may lie transposed there;
// the rows of floats must run along the depth (DEPTH_ROWS), and the last 13 of their bits don't count.
//
// Only a target named sm_90a has these instructions, and NVIDIA's OpenCL compiler has no such target. So they are written
// as comments, which runtime/kernels.py turns into instructions in the PTX that the compiler returns.
#define SM_90A "//sm_90a: "
#define BEGIN_PRODUCTS __asm__ volatile(SM_90A "wgmma.fence.sync.aligned;" : : : "memory")
#define END_PRODUCTS __asm__ volatile(SM_90A "wgmma.commit_group.sync.aligned;" : : : "memory")
// Wait until the products are there, and make copies that have arrived visible to the next ones.
#define WAIT_FOR_PRODUCTS \
  __asm__ volatile(SM_90A "wgmma.wait_group.sync.aligned 0; fence.proxy.async.shared::cta;" : : : "memory")

#if TYPE == FLOAT32
#define FACTORS "k8.f32.tf32.tf32 "
#define TRANSPOSED_FACTORS(left)
#define SWAPPED 2UL
#elif TYPE == BFLOAT16
#define FACTORS "k16.f32.bf16.bf16 "
#else
#define FACTORS "k16.f32.f16.f16 "
#endif
#if TYPE != FLOAT32
#define TRANSPOSED_FACTORS(left) ", " #left ", 1"
#define SWAPPED 3UL
#endif

// The instruction finds a factor by a word that says where it starts in local memory, how far apart blocks of 16 columns
// and groups of 8 rows are, all in chunks, and how pieces are SWAPPED, as `chunk` does: in rows of 64 bytes, or of 32.
// Tiles start at a multiple of 8 rows.
#define ALIGNED __attribute__((aligned(8 * 16 * CHUNKS)))
#define BETWEEN_BLOCKS (16 * CHUNKS)
#define BETWEEN_GROUPS (8 * CHUNKS)
INLINE ulong matrix_at(const uint first) {
  return (first | (uint)BETWEEN_BLOCKS << 16) | (ulong)BETWEEN_GROUPS << 32 | SWAPPED << 62;
}
INLINE uint chunk_number(__local const Chunk *p) { return address_of(p) >> 4; }

#define SUM(s, j) "+f"((s)[j].x), "+f"((s)[j].y), "+f"((s)[j].z), "+f"((s)[j].w)
#define SUMS_4(s, j) SUM(s, j), SUM(s, j + 1), SUM(s, j + 2), SUM(s, j + 3)
#define SUMS_8(s, j) SUMS_4(s, j), SUMS_4(s, j + 4)
#define NUMBERS_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define NUMBERS_32 NUMBERS_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NUMBERS_64                                                                \
  NUMBERS_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
             "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#if WARP_COLUMNS == 32
#define NUMBERS NUMBERS_16
#define OPERANDS "%16, %17"
#define ALL_SUMS(s) SUMS_4(s, 0)
#elif WARP_COLUMNS == 64
#define NUMBERS NUMBERS_32
#define OPERANDS "%32, %33"
#define ALL_SUMS(s) SUMS_8(s, 0)
#elif WARP_COLUMNS == 128
#define NUMBERS NUMBERS_64
#define OPERANDS "%64, %65"
#define ALL_SUMS(s) SUMS_8(s, 0), SUMS_8(s, 8)
#endif
#define TEXT_EXPANDED(number) #number
#define TEXT(number) TEXT_EXPANDED(number)
#define MULTIPLY_64(s, a, b, transposed)                                                                               \
  __asm__ volatile(SM_90A "wgmma.mma_async.sync.aligned.m64n" TEXT(WARP_COLUMNS) FACTORS "{" NUMBERS "}, " OPERANDS      \
                   ", 1, 1, 1" TRANSPOSED_FACTORS(transposed) ";" : ALL_SUMS(s) : "l"(a), "l"(b) : "memory")

// Keeps the compiler from reading sums before WAIT_FOR_PRODUCTS.
#define HOLD(s) __asm__ volatile("" : ALL_SUMS(s) : : "memory")
