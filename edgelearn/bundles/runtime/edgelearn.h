/* A network that trains on this device: its plan, made by edgelearn, runs without Python.

   One model, one thread at a time. Everything is allocated by `edgelearn_open`; later calls allocate nothing. Every
   function but `edgelearn_close` returns a code: EDGELEARN_OK, or what went wrong; `edgelearn_error` says it in words.

   Examples are float32 arrays with channels last, one after the other, as in Keras. */
#ifndef EDGELEARN_H
#define EDGELEARN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  EDGELEARN_OK = 0,
  EDGELEARN_ARGUMENT = 1,   /* a null pointer, or a number that can't be */
  EDGELEARN_BATCH = 2,      /* the plan has no mini-batch of so many examples */
  EDGELEARN_NAME = 3,       /* no trained weight has this name */
  EDGELEARN_DAMAGED = 4,    /* a file that was cut off or changed */
  EDGELEARN_OTHER = 5,      /* a file of another network or another plan */
  EDGELEARN_NONFINITE = 6,  /* a NaN or an infinity in the step; the weights are unchanged */
  EDGELEARN_WRITE = 7,      /* the function that writes a file returned an error */
  EDGELEARN_STATE = 8,      /* open already, or not open */
  EDGELEARN_LIBRARY = 9,    /* no OpenCL library, or one without OpenCL 1.2 */
  EDGELEARN_DEVICE = 10,    /* no device of this name, or one that is too small */
  EDGELEARN_MEMORY = 11,    /* not enough memory */
  EDGELEARN_COMPILE = 12,   /* the driver refused a kernel */
  EDGELEARN_DRIVER = 13     /* the driver returned an error while it ran */
};

/* How to open. Zeros are defaults. */
typedef struct {
  const void *weights;      /* content of model.weights, which the bundle holds; may be freed after open. Ignored by
                               bundles whose weights are compiled in */
  size_t weights_bytes;     /* its size */
  const char *library;      /* OpenCL only: path of the library (default: the system's) */
  const char *device;       /* OpenCL only: part of "PLATFORM / DEVICE" (default: the first of the plan's kind) */
  const char *cache_folder; /* OpenCL only: where compiled kernels are kept (default: nowhere) */
} edgelearn_options;

/* Results of a step, from before its update. */
typedef struct {
  double loss;    /* mean over the mini-batch */
  double correct; /* number of right answers */
} edgelearn_result;

/* Allocate all memory, compile the kernels, load the bundle's weights. */
int edgelearn_open(const edgelearn_options *options);

/* One update from a mini-batch.
   inputs: `examples` examples. targets: int32_t class numbers, or float values if the loss takes such (plan.txt says
   which). learning_rate: of this update. result: may be null. */
int edgelearn_train_step(const float *inputs, const void *targets, int examples, float learning_rate,
                         edgelearn_result *result);

/* The same update in parts, for devices without room for a mini-batch: begin; then as many examples as a micro-batch has
   (the last one of a mini-batch may be shorter), until all are there; then end. Nothing else may be called in between.
   edgelearn_input: memory where the next examples may be written before edgelearn_add_examples gets this very pointer,
   which spares their copy; null if there is none (target opencl, and inputs that the plan pads). */
int edgelearn_begin_step(int examples, float learning_rate);
int edgelearn_add_examples(const float *inputs, const void *targets, int examples);
int edgelearn_end_step(edgelearn_result *result);
float *edgelearn_input(void);

/* The network's outputs for any number of examples. */
int edgelearn_predict(const float *inputs, int examples, float *outputs);

/* Sizes: numbers of an example and of its output, examples of a mini-batch and of a micro-batch. */
size_t edgelearn_input_size(void);
size_t edgelearn_output_size(void);
int edgelearn_batch_size(void);
int edgelearn_micro_batch_size(void);

/* Updates so far. */
uint32_t edgelearn_updates(void);

/* Name and size of the weights that training changes, by number; null and 0 after the last. */
const char *edgelearn_weight_name(int number);
size_t edgelearn_weight_size(int number);

/* Copy a weight, `count` floats in the network's shape, by name such as "dense/kernel". */
int edgelearn_get_weights(const char *name, float *values, size_t count);
int edgelearn_set_weights(const char *name, const float *values, size_t count);

/* Write the training's state, a safetensors file: trained weights, optimizer state, number of updates, checksum. `write`
   gets it piece by piece and returns 0. */
int edgelearn_save(int (*write)(void *context, const void *bytes, size_t size), void *context);
size_t edgelearn_save_size(void);

/* Continue from a state that `edgelearn_save` wrote. It is checked first: after an error nothing has changed. */
int edgelearn_load(const void *bytes, size_t size);

/* Give all memory back. */
void edgelearn_close(void);

/* A code in words, and what was said about the last error, such as the driver's log. */
const char *edgelearn_error(int code);
const char *edgelearn_detail(void);

#ifdef __cplusplus
}
#endif
#endif
