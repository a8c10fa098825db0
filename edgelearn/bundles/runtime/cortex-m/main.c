/* An example for a board with a debugger, or its emulator: examples come from a file of the computer by semihosting, and
   losses go there. On a board of your own, sensors take its place. */
#include <stdint.h>
#include <string.h>

#include "edgelearn.h"
#include "weights.h"

enum { SYS_OPEN = 0x01, SYS_WRITE0 = 0x04, SYS_READ = 0x06, SYS_EXIT = 0x18, STOPPED = 0x20026 };

static int semihosting(int operation, const void *block) {
  register int r0 __asm("r0") = operation;
  register const void *r1 __asm("r1") = block;
  __asm volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
  return r0;
}

/* The bits of a loss, as 16 hexadecimal digits */
static void print_bits(double value) {
  char text[] = "0000000000000000\n";
  uint64_t bits;
  int i;
  memcpy(&bits, &value, sizeof bits);
  for (i = 15; i >= 0; i--, bits >>= 4) text[i] = "0123456789abcdef"[bits & 15];
  semihosting(SYS_WRITE0, text);
}

static void print(const char *text) { semihosting(SYS_WRITE0, text); }

static float inputs[EL_INPUT_FLOATS];
static int32_t targets[EL_TARGET_WORDS];

static int read_bytes(uint32_t file, void *to, uint32_t size) {
  const uint32_t block[3] = {file, (uint32_t)(uintptr_t)to, size};
  return semihosting(SYS_READ, block) == 0; /* the number of bytes that are missing */
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
  while (code == EDGELEARN_OK && read_bytes(file, inputs, sizeof inputs) && read_bytes(file, targets, sizeof targets)) {
    code = edgelearn_train_step(inputs, targets, edgelearn_batch_size(), EL_LEARNING_RATE, &result);
    if (code == EDGELEARN_OK) print_bits(result.loss);
  }
  if (code != EDGELEARN_OK) print(edgelearn_error(code));
  semihosting(SYS_EXIT, (const void *)STOPPED);
  return code;
}
