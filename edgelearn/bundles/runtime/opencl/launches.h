/* The launches of the plan and the texts of their kernels. kernels.c and model.c define them. */
#ifndef EDGELEARN_LAUNCHES_H
#define EDGELEARN_LAUNCHES_H

#include <stdint.h>

/* A kernel: its text is that of the paragraphs el_paragraph_lists[first ...]. */
typedef struct {
  const char *kernel, *options;
  uint32_t first, count;
} el_source;

enum { EL_MEMORY = 0, EL_NUMBER = 1, EL_MOST_PARAGRAPHS = 256 };

/* An argument of a kernel: a memory and a place in it, or the bits of an int or a float. */
typedef struct {
  uint16_t kind, memory;
  uint32_t bits;
} el_argument;

typedef struct {
  uint16_t source, dimensions;
  uint32_t grid[3], group;
  uint32_t first, count; /* of el_arguments */
} el_launch;

extern const char *const el_paragraphs[];
extern const uint16_t el_paragraph_lists[];
extern const el_source el_sources[];
extern const el_argument el_arguments[];
extern const el_launch el_launches[];
extern const char *const el_builtins;    /* declares what the kernels call, */
extern const char *const el_no_builtins; /* in programs with this option, instead of the long header of PoCL */
extern const uint32_t el_source_count, el_launch_count, el_page_bytes, el_largest_group;
extern const int el_for_gpu;

#endif
