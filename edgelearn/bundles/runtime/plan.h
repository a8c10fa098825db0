/* The plan as constant tables. model.c defines them; edgelearn.c follows them. */
#ifndef EDGELEARN_PLAN_H
#define EDGELEARN_PLAN_H

#include <stddef.h>
#include <stdint.h>

#define EL_BLOCK 16u /* channels of a block; a block of floats has 64 bytes, the unit of places */

/* A matrix of floats, [channels / block][rows][block], channels padded with zeros. */
typedef struct {
  uint32_t memory, place; /* number of the memory, and 64 bytes units from its start */
  uint32_t rows, channels, block;
} el_tensor;

/* A tensor that outlives the process: its name and size in the network, and where it lies. */
typedef struct {
  const char *name;
  el_tensor tensor;
} el_named;

/* Part of el_lists: numbers of launches, in order. */
typedef struct {
  uint32_t first, count;
} el_span;

/* The launches for micro-batches of `examples`. */
typedef struct {
  uint8_t trains; /* else it predicts */
  uint8_t ranges; /* how quantized tensors get their ranges: EL_OBSERVED, ... */
  uint8_t first;  /* gradients start anew */
  uint32_t examples;
  el_span measure, prepare, micro, finish;
} el_program;

enum { EL_OBSERVED = 0, EL_SEARCHED = 1, EL_MEASURED = 2 };
enum { EL_NO_CORRECTION = 0, EL_ADAM = 1, EL_LAMB = 2 };

typedef struct {
  const char *name;
  uint32_t batch_size, micro_batch;
  uint32_t shortest[4]; /* sizes of other mini-batches, 0 after the last */
  el_tensor input;      /* of a micro-batch; `rows` are those of one example */
  el_tensor output;     /* the same, of predictions */
  el_tensor targets;    /* the same; class numbers have 0 channels */
  el_tensor scalars, counters;
  double factor;        /* of a row's share in the loss */
  uint32_t classes;     /* targets are so many class numbers; 0 if they are values */
  int8_t first_class;   /* the least of them */
  uint8_t correction;   /* EL_ADAM, ... */
  double beta_1, beta_2;
  uint32_t seed[2];
  uint8_t quantizes;           /* ranges are known after the first update */
  uint8_t unknown[2];          /* ranges of predictions and of training while they aren't known */
  uint32_t search_every[2];    /* updates between searches for ranges, 0 for none */
  uint32_t memories, programs, trained, kept, fills;
} el_plan_facts;

/* What open copies from the bundle's weights into a memory. */
typedef struct {
  uint32_t memory, place, bytes;
} el_fill;

extern const el_plan_facts el_plan;
extern const uint64_t el_memory_bytes[]; /* of each memory */
extern const uint16_t el_lists[];
extern const el_program el_programs[];
extern const el_named el_kept[]; /* trained weights, then optimizer state and ranges: what a state file holds */
extern const el_fill el_fills[];
extern const char el_state_header[]; /* of state files, which differ only in their numbers */
extern const uint32_t el_state_header_bytes;

/* -- the device, one file for each target -- */

int el_device_open(const void *options);
void el_device_close(void);
/* Host memory for `bytes` (of at most a tensor) that are then put to the place. */
void *el_device_page(uint32_t memory, uint32_t place, size_t bytes);
/* Copy to a place. What lies where el_device_page said may be copied later, and so may bytes that `stay` as they are
   until the next el_device_get or error; others are copied at once. */
int el_device_put(uint32_t memory, uint32_t place, const void *from, size_t bytes, int stay);
/* Whether el_device_page returns the place itself, so that programs may write there before. */
extern const int el_device_is_memory;
/* The bytes of a place, until the next call. */
int el_device_get(uint32_t memory, uint32_t place, size_t bytes, const void **found);
int el_device_zero(uint32_t memory, uint32_t place, size_t bytes);
int el_device_run(el_span list);

/* Note what is to be said about an error, in printf's manner of %s alone; returns the code. */
int el_fail(int code, const char *text, const char *more);

uint32_t el_checksum(uint32_t crc, const void *bytes, size_t size);
#endif
