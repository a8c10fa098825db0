/* An example: train on data from a file, print the loss of each step, and keep the state.

   data: for each step, inputs of a mini-batch (float32), then its targets (4 bytes each). */
#include <stdio.h>
#include <stdlib.h>

#include "edgelearn.h"

static void *read_file(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  void *bytes = NULL;
  long end;
  if (file != NULL && fseek(file, 0, SEEK_END) == 0 && (end = ftell(file)) >= 0 && fseek(file, 0, SEEK_SET) == 0 &&
      (bytes = malloc((size_t)end + 1)) != NULL)
    *size = fread(bytes, 1, (size_t)end, file);
  if (file != NULL) fclose(file);
  return bytes;
}

static int write_piece(void *file, const void *bytes, size_t size) {
  return fwrite(bytes, 1, size, file) != size;
}

static int check(int code) {
  if (code != EDGELEARN_OK) {
    fprintf(stderr, "%s (%s)\n", edgelearn_error(code), edgelearn_detail());
    exit(code);
  }
  return code;
}

int main(int count, char **words) {
  edgelearn_options options = {0};
  edgelearn_result result;
  size_t size = 0, batch, step, targets, steps;
  float rate;
  char *data;
  FILE *file;
  if (count < 6) {
    fprintf(stderr, "usage: %s MODEL.WEIGHTS DATA TARGETS RATE STATE [RESUMED]\nTARGETS: of an example, such as 1\n",
            words[0]);
    return EDGELEARN_ARGUMENT;
  }
  options.weights = read_file(words[1], &options.weights_bytes);
  options.library = getenv("EDGELEARN_OPENCL");
  options.device = getenv("EDGELEARN_DEVICE");
  options.cache_folder = getenv("EDGELEARN_CACHE");
  check(edgelearn_open(&options));
  free((void *)options.weights);
  if (count > 6) {
    char *state = read_file(words[6], &size);
    check(edgelearn_load(state, size));
    free(state);
  }
  data = read_file(words[2], &size);
  if (data == NULL) {
    fprintf(stderr, "%s can't be read\n", words[2]);
    return EDGELEARN_ARGUMENT;
  }
  batch = (size_t)edgelearn_batch_size();
  targets = 4 * batch * (size_t)atol(words[3]);
  rate = (float)atof(words[4]);
  steps = size / (4 * batch * edgelearn_input_size() + targets);
  for (step = 0; step < steps; step++) {
    char *inputs = data + step * (4 * batch * edgelearn_input_size() + targets);
    check(edgelearn_train_step((const float *)(void *)inputs, inputs + 4 * batch * edgelearn_input_size(), (int)batch,
                               rate, &result));
    printf("%lu %.9g %.9g\n", (unsigned long)edgelearn_updates(), result.loss, result.correct);
  }
  if ((file = fopen(words[5], "wb")) != NULL) {
    check(edgelearn_save(write_piece, file));
    fclose(file);
  }
  free(data);
  edgelearn_close();
  return EDGELEARN_OK;
}
