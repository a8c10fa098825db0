// Jobs on kernels (edgelearn/ops/formats.py, KernelView): rows of 16 weights as a pass reads them. SCALE: each output
// channel times its scale. TRANSPOSED: in each tap, [out/16][taps][in][16] -> [in/16][taps][out][16]; else as it lies.
// A work-group computes `count` rows of a block, and a work-item every GROUP-th of them. KERNEL_NUMBERS words of a job
// hold their numbers; BEHIND(1) is the first word after the kernel's own tensors.
#include "jobs.h"

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
#define KERNEL_ROWS(word) kernel_rows(job, word, JOB_ITEM_START(w, 1), JOB_ITEM_START(scale, 2))
#else
#define INPUT_KERNEL INPUT(w)
#define KERNEL_ROWS(word) kernel_rows(job, word, JOB_ITEM_START(w, 1), 0)
#endif

typedef struct { input w, scale; int m, blocks, inputs, outputs, block, start, stop; } KernelRows;

INLINE KernelRows kernel_rows(const Job job, const int word, input w, input scale) {
  __global const int *numbers = job.words + word;
  const int m = numbers[0], blocks = numbers[1], count = numbers[2], part = job.item / GROUP;
  const int parts = (m + count - 1) / count, start = part % parts * count;
  return (KernelRows){w, scale, m, blocks, numbers[3], numbers[4], part / parts,
                      start + job.item % GROUP, start + count < m ? start + count : m};
}

INLINE V kernel_row(const KernelRows k, const int row) {
  V v = (V)0;
#if TRANSPOSED
  const int out = row % k.outputs, tap = row / k.outputs, first = k.block * BLOCK;
  const int count = k.inputs - first < BLOCK ? k.inputs - first : BLOCK;
  input from = k.w + ((size_t)(out / BLOCK * (k.m / k.outputs) + tap) * k.inputs + first) * BLOCK + out % BLOCK;
  for (int i = 0; i < count; i++) ELEMENT(v, i) = from[i * BLOCK];
#else
  v = load(k.w + ((size_t)k.block * k.m + row) * BLOCK);
#endif
#if SCALE && TRANSPOSED
  v *= k.scale[row % k.outputs];
#elif SCALE
  v *= load(k.scale + k.block * BLOCK);
#endif
  return v;
}
