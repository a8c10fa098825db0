// Jobs on kernels (edgelearn/ops/transpose.py, KernelView): a row of 16 weights as a pass wants it. SCALE: each output
// channel times its scale. TRANSPOSED: in each tap, [out/16][taps][in][16] -> [in/16][taps][out][16]; else as it lies.
// A work-item does `count` rows of a block. Their numbers stand in KERNEL_NUMBERS words of a job; BEHIND(1) is the first
// word behind the kernel's own.
#ifndef SCALE
#define SCALE 0
#endif
#ifndef TRANSPOSED
#define TRANSPOSED 0
#endif
#define KERNEL_NUMBERS 5
#define BEHIND(word) ((word) + 1 + SCALE)

#if SCALE
#define INPUT_KERNEL INPUT(w), INPUT(scale)
#define JOB_SCALE JOB_INPUT(scale, 2)
#else
#define INPUT_KERNEL INPUT(w)
#define JOB_SCALE
#endif
#define JOB_KERNEL(word)                                                           \
  JOB_INPUT(w, 1)                                                                  \
  JOB_SCALE                                                                        \
  const int m = job[word], blocks = job[(word) + 1], count = job[(word) + 2];      \
  const int inputs = job[(word) + 3], outputs = job[(word) + 4];                   \
  const int block = item % blocks, start = item / blocks * count, stop = start + count < m ? start + count : m;

#if SCALE && TRANSPOSED
#define SCALED(v, row) v *= scale[(row) % outputs];
#elif SCALE
#define SCALED(v, row) v *= LOAD(scale + block * BLOCK);
#else
#define SCALED(v, row)
#endif
#if TRANSPOSED
#define GET_KERNEL_ROW(v, row)                                                     \
  {                                                                                \
    const int out_ = (row) % outputs, tap_ = (row) / outputs;                      \
    const int lanes_ = inputs - block * BLOCK < BLOCK ? inputs - block * BLOCK : BLOCK; \
    input from_ = w + ((size_t)(out_ / BLOCK * (m / outputs) + tap_) * inputs + block * BLOCK) * BLOCK + out_ % BLOCK; \
    for (int lane = 0; lane < lanes_; lane++) LANE(v, lane) = from_[lane * BLOCK]; \
  }
#else
#define GET_KERNEL_ROW(v, row) v = LOAD(w + ((size_t)block * m + (row)) * BLOCK);
#endif
#define KERNEL_ROW(v, row)                                                         \
  V v = (V)0;                                                                      \
  GET_KERNEL_ROW(v, row)                                                           \
  SCALED(v, row)
