/* The device of plan.h as this processor: memories are static arrays, a launch is a call. No heap, no system. */
#include <string.h>

#include "calls.h"
#include "edgelearn.h"
#include "plan.h"

const int el_device_is_memory = 1;

int el_device_open(const void *options) {
  (void)options;
  return EDGELEARN_OK;
}

void el_device_close(void) {}

static void *at(uint32_t memory, uint32_t place) { return el_memories[memory] + (size_t)place * EL_BLOCK; }

void *el_device_page(uint32_t memory, uint32_t place, size_t bytes) {
  (void)bytes;
  return at(memory, place);
}

int el_device_put(uint32_t memory, uint32_t place, const void *from, size_t bytes, int stay) {
  (void)stay;
  if (from != at(memory, place)) memcpy(at(memory, place), from, bytes);
  return EDGELEARN_OK;
}

int el_device_get(uint32_t memory, uint32_t place, size_t bytes, const void **found) {
  (void)bytes;
  *found = at(memory, place);
  return EDGELEARN_OK;
}

int el_device_zero(uint32_t memory, uint32_t place, size_t bytes) {
  if (!el_memory_is_constant[memory]) memset(at(memory, place), 0, bytes);
  return EDGELEARN_OK;
}

int el_device_run(el_span list) {
  uint32_t i, j;
  for (i = 0; i < list.count; i++) {
    const el_call *call = &el_calls[el_lists[list.first + i]];
    el_value values[EL_MOST_VALUES];
    memset(values, 0, sizeof values);
    for (j = 0; j < call->count; j++) {
      const el_argument *argument = &el_arguments[call->first + j];
      if (argument->kind == EL_MEMORY) values[j].p = at(argument->memory, argument->bits);
      else values[j].i = (int32_t)argument->bits;
    }
    call->kernel(values);
  }
  return EDGELEARN_OK;
}
