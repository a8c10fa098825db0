/* An example for a board with a debugger, or its emulator: examples come from a file of the computer by semihosting, and
   losses go there. On a board of your own, sensors take its place. */
#include <stdint.h>
#include <string.h>

#include "edgelearn.h"
#include "weights.h"

enum { AT_END = -1 };
enum { SYS_OPEN = 0x01, SYS_WRITE0 = 0x04, SYS_READ = 0x06, SYS_EXIT = 0x18, STOPPED = 0x20026 };

static int semihosting(int operation, const void *block) {
  register int r0 __asm("r0") = operation;
  register const void *r1 __asm("r1") = block;
  __asm volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
  return r0;
}

/* The bits of a number, as 16 hexadecimal digits */
static void print_bits(double value) {
  char text[] = "0000000000000000\n";
  uint64_t bits;
  int i;
  memcpy(&bits, &value, sizeof bits);
  for (i = 15; i >= 0; i--, bits >>= 4) text[i] = "0123456789abcdef"[bits & 15];
  semihosting(SYS_WRITE0, text);
}

static void print(const char *text) { semihosting(SYS_WRITE0, text); }

#if EL_INPUT_IS_PADDED
static float inputs[EL_INPUT_FLOATS];
#define INPUTS inputs
#else
#define INPUTS edgelearn_input() /* micro-batches are read to where the plan wants them */
#endif
static int32_t targets[EL_TARGET_WORDS];

static int read_bytes(uint32_t file, void *to, uint32_t size) {
  const uint32_t block[3] = {file, (uint32_t)(uintptr_t)to, size};
  return semihosting(SYS_READ, block) == 0; /* the number of bytes that are missing */
}

/* One update: examples come micro-batch by micro-batch, inputs before targets. */
static int train_step(uint32_t file, edgelearn_result *result) {
  int left = edgelearn_batch_size(), code = edgelearn_begin_step(left, EL_LEARNING_RATE);
  while (code == EDGELEARN_OK && left > 0) {
    const int size = left < edgelearn_micro_batch_size() ? left : edgelearn_micro_batch_size();
    if (!read_bytes(file, INPUTS, 4 * (uint32_t)size * edgelearn_input_size())) return AT_END;
    if (!read_bytes(file, targets, 4 * (uint32_t)size * EL_TARGET_WORDS / edgelearn_micro_batch_size())) return AT_END;
    code = edgelearn_add_examples(INPUTS, targets, size);
    left -= size;
  }
  return code == EDGELEARN_OK ? edgelearn_end_step(result) : code;
}

int main(void) {
  static const char name[] = "examples.bin";
  const uint32_t opening[3] = {(uint32_t)(uintptr_t)name, 1 /* rb */, sizeof name - 1};
  edgelearn_options options = {0};
  edgelearn_result result;
  uint32_t file;
  int code;
  options.weights = el_weights;
  options.weights_bytes = el_weights_bytes;
  code = edgelearn_open(&options);
  file = (uint32_t)semihosting(SYS_OPEN, opening);
  while (code == EDGELEARN_OK && (code = train_step(file, &result)) == EDGELEARN_OK) {
    print_bits(result.loss);
    print_bits(result.correct);
  }
  if (code == AT_END) code = EDGELEARN_OK;
  if (code != EDGELEARN_OK) print(edgelearn_error(code));
  semihosting(SYS_EXIT, (const void *)STOPPED);
  return code;
}
