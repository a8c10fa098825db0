/* The launches of the plan as calls of kernels.h, and the memories they work on. calls.c defines them. */
#ifndef EDGELEARN_CALLS_H
#define EDGELEARN_CALLS_H

#include "kernels.h"

enum { EL_MEMORY = 0, EL_NUMBER = 1 };

/* An argument: a memory and a place in it, or the bits of an int or a float; 0 stands for a tensor that isn't there. */
typedef struct {
  uint16_t kind, memory;
  uint32_t bits;
} el_argument;

typedef struct {
  void (*kernel)(const el_value *values);
  uint32_t first, count; /* of el_arguments */
} el_call;

extern const el_argument el_arguments[];
extern const el_call el_calls[];
extern float *const el_memories[];          /* where each memory starts */
extern const uint8_t el_memory_is_constant[]; /* it is part of the program, and nothing writes to it */

#endif
