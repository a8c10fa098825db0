/* The functions of edgelearn.h, the same for all targets: they follow the tables of plan.h and call the device. */
#include "edgelearn.h"

#include <math.h>
#include <string.h>

#include "plan.h"

enum { INVERSE_BATCH, LEARNING_RATE, CORRECTION, SEED, SEED_HIGH, STEP, SECOND_CORRECTION, UNSCALE, SCALARS = 16 };
enum { LOSS, CORRECT, SEEN, NONFINITE, COUNTERS = 16 };

static struct {
  int is_open, ranges_known;
  uint32_t updates;
  const el_program *prepared; /* whose weights are prepared, since none have changed */
  const el_program *begun;    /* of the step that is under way: its first micro-batch's */
  uint32_t examples, left;    /* of that step's mini-batch, and those that are to come */
  char detail[512];
} now;

/* -- errors -- */

const char *edgelearn_error(int code) {
  static const char *const texts[] = {
      "done", "an argument is null or can't be", "the plan has no mini-batch of so many examples",
      "no trained weight has this name", "the file was cut off or changed",
      "the file is of another network or plan", "a NaN or an infinity in the step; the weights are unchanged",
      "the state could not be written", "open already, or not open", "no OpenCL 1.2 library",
      "no such device, or it is too small", "not enough memory", "the driver refused a kernel",
      "the driver returned an error"};
  return code >= 0 && code < (int)(sizeof texts / sizeof *texts) ? texts[code] : "unknown code";
}

const char *edgelearn_detail(void) { return now.detail; }

static size_t append(size_t at, const char *text) {
  while (text && *text && at + 1 < sizeof now.detail) now.detail[at++] = *text++;
  now.detail[at] = 0;
  return at;
}

int el_fail(int code, const char *text, const char *more) {
  append(append(0, text), more);
  return code;
}

/* -- CRC-32 of zlib -- */

uint32_t el_checksum(uint32_t crc, const void *bytes, size_t size) {
  static const uint32_t nibbles[16] = {
      0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
      0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c};
  const unsigned char *p = bytes;
  for (crc = ~crc; size > 0; size--) {
    crc ^= *p++;
    crc = nibbles[crc & 15] ^ (crc >> 4);
    crc = nibbles[crc & 15] ^ (crc >> 4);
  }
  return ~crc;
}

/* -- tensors -- */

static uint32_t blocks_of(const el_tensor *t) { return (t->channels + t->block - 1) / t->block; }
static size_t floats_of(const el_tensor *t) { return (size_t)blocks_of(t) * t->rows * t->block; }
static size_t size_of(const el_tensor *t) { return (size_t)t->rows * t->channels; }

/* Copy `rows` rows of channels, which may be unaligned, into a tensor; rows after them and padding become zero. `stay`:
   as in el_device_put. */
static int put_rows(const el_tensor *t, const void *values, uint32_t rows, int stay) {
  const size_t bytes = 4 * floats_of(t);
  const char *from = values;
  float *start, *page;
  uint32_t block, row;
  if (stay && t->channels == t->block && t->rows == rows) return el_device_put(t->memory, t->place, from, bytes, 1);
  start = page = el_device_page(t->memory, t->place, bytes);
  if (page == NULL) return EDGELEARN_MEMORY;
  if (values == page) return EDGELEARN_OK; /* they are there: see edgelearn_input */
  if (t->channels == t->block) { /* nothing to pad */
    const size_t given = 4 * (size_t)rows * t->channels;
    memcpy(page, from, given);
    memset(page + given / 4, 0, bytes - given);
    return el_device_put(t->memory, t->place, page, bytes, 0);
  }
  for (block = 0; block < blocks_of(t); block++) {
    const uint32_t first = block * t->block;
    const uint32_t count = t->channels - first < t->block ? t->channels - first : t->block;
    for (row = 0; row < t->rows; row++, page += t->block) {
      const uint32_t given = row < rows ? count : 0;
      memcpy(page, from + 4 * ((size_t)row * t->channels + first), 4 * given);
      memset(page + given, 0, 4 * (t->block - given));
    }
  }
  return el_device_put(t->memory, t->place, start, bytes, 0);
}

/* Copy the first `rows` rows of a tensor's words to an array of channels. */
static void take_rows(const el_tensor *t, const float *words, float *values, uint32_t rows) {
  uint32_t block, row;
  for (row = 0; row < rows; row++)
    for (block = 0; block < blocks_of(t); block++) {
      const uint32_t first = block * t->block;
      const uint32_t count = t->channels - first < t->block ? t->channels - first : t->block;
      memcpy(values + (size_t)row * t->channels + first,
             words + ((size_t)block * t->rows + row) * t->block, 4 * count);
    }
}

/* A tensor of the plan that holds `examples` examples; its `rows` are those of one. */
static el_tensor of_examples(const el_tensor *t, uint32_t examples) {
  el_tensor all = *t;
  all.rows *= examples;
  return all;
}

/* -- steps -- */

static const el_program *find(int trains, uint32_t examples, int ranges, int first) {
  uint32_t i;
  for (i = 0; i < el_plan.programs; i++) {
    const el_program *p = &el_programs[i];
    if (p->trains == trains && p->examples == examples && p->ranges == ranges && p->first == first) return p;
  }
  return NULL;
}

/* How the next step gets ranges; predictions are step 0 */
static int ranges_of(uint32_t step) {
  size_t i;
  if (!now.ranges_known && el_plan.unknown[step > 0] != EL_OBSERVED) return el_plan.unknown[step > 0];
  for (i = 0; i < 2; i++)
    if (step > 0 && el_plan.search_every[i] && (step - 1) % el_plan.search_every[i] == 0) return EL_SEARCHED;
  return EL_OBSERVED;
}

/* Send the numbers of a mini-batch, and reset what the device counts. */
static int begin(uint32_t examples, float rate, uint32_t step) {
  float scalars[SCALARS] = {0};
  const double b1 = el_plan.beta_1, b2 = el_plan.beta_2;
  int code;
  scalars[INVERSE_BATCH] = (float)(el_plan.factor / (double)examples);
  scalars[LEARNING_RATE] = rate;
  scalars[UNSCALE] = 1.0f;
  if (step > 0) {
    scalars[CORRECTION] = scalars[SECOND_CORRECTION] = 1.0f;
    if (el_plan.correction == EL_ADAM)
      scalars[CORRECTION] = (float)(sqrt(1.0 - pow(b2, (double)step)) / (1.0 - pow(b1, (double)step)));
    if (el_plan.correction == EL_LAMB) {
      scalars[CORRECTION] = (float)(1.0 / (1.0 - pow(b1, (double)step)));
      scalars[SECOND_CORRECTION] = (float)(1.0 / sqrt(1.0 - pow(b2, (double)step)));
    }
  }
  memcpy(&scalars[SEED], &el_plan.seed[0], 4);
  memcpy(&scalars[SEED_HIGH], &el_plan.seed[1], 4);
  memcpy(&scalars[STEP], &step, 4);
  if ((code = put_rows(&el_plan.scalars, scalars, 1, 0)) != 0) return code;
  return el_device_zero(el_plan.counters.memory, el_plan.counters.place, 4 * COUNTERS);
}

static int put_targets(const void *targets, uint32_t examples, int stay) {
  el_tensor t = of_examples(&el_plan.targets, examples);
  if (t.channels == 0) t.block = t.channels = 1; /* class numbers have the size of floats */
  return put_rows(&t, targets, t.rows, stay);
}

static int check_examples(const void *targets, uint32_t examples) {
  uint32_t i;
  for (i = 0; el_plan.classes > 0 && i < examples * el_plan.targets.rows; i++) /* kernels read what they name */
    if ((uint32_t)((const int32_t *)targets)[i] - (uint32_t)(int32_t)el_plan.first_class >= el_plan.classes)
      return el_fail(EDGELEARN_ARGUMENT, "a class number that the network doesn't have", "");
  return EDGELEARN_OK;
}

/* Examples of the next micro-batch of the step that is under way */
static uint32_t next_size(void) { return now.left < el_plan.micro_batch ? now.left : el_plan.micro_batch; }

int edgelearn_begin_step(int examples, float learning_rate) {
  uint32_t i, known = examples > 0 && (uint32_t)examples == el_plan.batch_size;
  int code;
  if (!now.is_open) return el_fail(EDGELEARN_STATE, "edgelearn_open comes first", "");
  for (i = 0; i < 4; i++) known |= examples > 0 && (uint32_t)examples == el_plan.shortest[i];
  if (!known) return el_fail(EDGELEARN_BATCH, "name other sizes of mini-batches when the bundle is made", "");
  now.prepared = NULL;
  now.examples = now.left = (uint32_t)examples;
  now.begun = find(1, next_size(), ranges_of(now.updates + 1), 1);
  if (now.begun == NULL) return el_fail(EDGELEARN_BATCH, "no program", "");
  if ((code = begin((uint32_t)examples, learning_rate, now.updates + 1)) != 0) return code;
  return el_device_run(now.begun->prepare);
}

static int add_examples(const float *inputs, const void *targets, int examples, int stay) {
  const uint32_t size = (uint32_t)examples;
  const el_program *program;
  const el_tensor x = of_examples(&el_plan.input, size);
  int code;
  if (inputs == NULL || targets == NULL || examples < 1) return el_fail(EDGELEARN_ARGUMENT, "no examples", "");
  if (now.begun == NULL) return el_fail(EDGELEARN_STATE, "edgelearn_begin_step comes first", "");
  if (size != next_size())
    return el_fail(EDGELEARN_BATCH, "a micro-batch of the plan, or the rest of the mini-batch, comes next", "");
  if ((code = check_examples(targets, size)) != 0) return code;
  program = find(1, size, ranges_of(now.updates + 1), now.left == now.examples);
  if (program == NULL) return el_fail(EDGELEARN_BATCH, "no program", "");
  if ((code = put_rows(&x, inputs, x.rows, stay)) != 0) return code;
  if ((code = put_targets(targets, size, stay)) != 0) return code;
  if ((code = el_device_run(program->micro)) != 0) return code;
  now.left -= size;
  return EDGELEARN_OK;
}

int edgelearn_add_examples(const float *inputs, const void *targets, int examples) {
  return add_examples(inputs, targets, examples, 0);
}

int edgelearn_end_step(edgelearn_result *result) {
  const uint32_t step = now.updates + 1;
  const el_program *begun = now.begun;
  const void *found;
  float counters[COUNTERS];
  int code;
  if (begun == NULL || now.left > 0) return el_fail(EDGELEARN_STATE, "a mini-batch comes first", "");
  now.begun = NULL;
  if ((code = el_device_run(begun->finish)) != 0) return code;
  if ((code = el_device_get(el_plan.counters.memory, el_plan.counters.place, sizeof counters, &found)) != 0)
    return code;
  memcpy(counters, found, sizeof counters);
  if (result != NULL) {
    result->loss = (double)counters[LOSS] / now.examples;
    result->correct = counters[CORRECT];
  }
  if (counters[NONFINITE] != 0.0f || !(counters[LOSS] - counters[LOSS] == 0.0f))
    return el_fail(EDGELEARN_NONFINITE, "check the examples, or take a smaller learning rate", "");
  now.updates = step;
  now.ranges_known = el_plan.quantizes;
  return EDGELEARN_OK;
}

int edgelearn_train_step(const float *inputs, const void *targets, int examples, float learning_rate,
                         edgelearn_result *result) {
  const size_t row = 4 * (size_t)el_plan.targets.rows * (el_plan.targets.channels ? el_plan.targets.channels : 1);
  int code;
  if (inputs == NULL || targets == NULL || examples < 1) return el_fail(EDGELEARN_ARGUMENT, "no examples", "");
  if ((code = edgelearn_begin_step(examples, learning_rate)) != 0) return code;
  if ((code = check_examples(targets, (uint32_t)examples)) != 0) return code;
  while (now.left > 0) {
    const uint32_t size = next_size();
    if ((code = add_examples(inputs, targets, (int)size, 1)) != 0) return code;
    inputs += (size_t)size * size_of(&el_plan.input);
    targets = (const char *)targets + row * size;
  }
  return edgelearn_end_step(result);
}

float *edgelearn_input(void) {
  const el_tensor *t = &el_plan.input;
  if (!now.is_open || !el_device_is_memory || t->channels != t->block) return NULL;
  return el_device_page(t->memory, t->place, 0);
}

int edgelearn_predict(const float *inputs, int examples, float *outputs) {
  const el_program *program = find(0, el_plan.micro_batch, ranges_of(0), 1);
  const el_tensor x = of_examples(&el_plan.input, el_plan.micro_batch);
  const el_tensor y = of_examples(&el_plan.output, el_plan.micro_batch);
  const void *words;
  int code;
  if (!now.is_open) return el_fail(EDGELEARN_STATE, "edgelearn_open comes first", "");
  if (inputs == NULL || outputs == NULL || examples < 1) return el_fail(EDGELEARN_ARGUMENT, "no examples", "");
  if (program == NULL) return el_fail(EDGELEARN_BATCH, "no program", "");
  if ((code = begin(1, 0.0f, 0)) != 0) return code;
  while (examples > 0) { /* a last, smaller group is filled up with zeros */
    const uint32_t count = (uint32_t)examples < el_plan.micro_batch ? (uint32_t)examples : el_plan.micro_batch;
    if (now.prepared != program && (code = el_device_run(program->prepare)) != 0) return code;
    now.prepared = program;
    if ((code = put_rows(&x, inputs, count * el_plan.input.rows, 1)) != 0) return code;
    if ((code = el_device_run(program->micro)) != 0) return code;
    if ((code = el_device_get(y.memory, y.place, 4 * floats_of(&y), &words)) != 0) return code;
    take_rows(&y, words, outputs, count * el_plan.output.rows);
    inputs += (size_t)count * el_plan.input.rows * x.channels;
    outputs += (size_t)count * el_plan.output.rows * y.channels;
    examples -= (int)count;
  }
  return EDGELEARN_OK;
}

/* -- sizes -- */

size_t edgelearn_input_size(void) { return size_of(&el_plan.input); }
size_t edgelearn_output_size(void) { return size_of(&el_plan.output); }
int edgelearn_batch_size(void) { return (int)el_plan.batch_size; }
int edgelearn_micro_batch_size(void) { return (int)el_plan.micro_batch; }
uint32_t edgelearn_updates(void) { return now.updates; }

/* -- weights -- */

static const el_named *weight(int number) {
  return number >= 0 && (uint32_t)number < el_plan.trained ? &el_kept[number] : NULL;
}

const char *edgelearn_weight_name(int number) {
  return weight(number) ? weight(number)->name : NULL;
}

size_t edgelearn_weight_size(int number) {
  return weight(number) ? size_of(&weight(number)->tensor) : 0;
}

static int find_weight(const char *name, const void *values, size_t count, const el_tensor **found) {
  int i;
  if (!now.is_open) return el_fail(EDGELEARN_STATE, "edgelearn_open comes first", "");
  if (name == NULL || values == NULL) return el_fail(EDGELEARN_ARGUMENT, "null", "");
  for (i = 0; weight(i); i++)
    if (strcmp(weight(i)->name, name) == 0) {
      *found = &weight(i)->tensor;
      return size_of(*found) == count ? EDGELEARN_OK : el_fail(EDGELEARN_ARGUMENT, "another size: ", name);
    }
  return el_fail(EDGELEARN_NAME, "edgelearn_weight_name lists them; not ", name);
}

int edgelearn_get_weights(const char *name, float *values, size_t count) {
  const el_tensor *t = NULL;
  const void *words;
  int code = find_weight(name, values, count, &t);
  if (code || (code = el_device_get(t->memory, t->place, 4 * floats_of(t), &words)) != 0) return code;
  take_rows(t, words, values, t->rows);
  return EDGELEARN_OK;
}

/* What updates leave for later ones, such as extremes of kernels, is taken from weights that were put */
static int changed(void) {
  now.prepared = NULL;
  return el_plan.programs > 0 ? el_device_run(el_programs[0].measure) : EDGELEARN_OK;
}

int edgelearn_set_weights(const char *name, const float *values, size_t count) {
  const el_tensor *t = NULL;
  int code = find_weight(name, values, count, &t);
  if (code || (code = put_rows(t, values, t->rows, 0)) != 0) return code;
  return changed();
}

/* -- the state: a safetensors file whose header is a constant of the bundle -- */

static size_t state_floats(void) {
  size_t floats = 0;
  uint32_t i;
  for (i = 0; i < el_plan.kept; i++) floats += size_of(&el_kept[i].tensor);
  return floats;
}

size_t edgelearn_save_size(void) { return el_state_header_bytes + 4 * (state_floats() + 2); }

typedef struct {
  int (*write)(void *context, const void *bytes, size_t size);
  void *context;
  uint32_t crc;
} Sink;

static int sink(Sink *to, const void *bytes, size_t size) {
  to->crc = el_checksum(to->crc, bytes, size);
  return to->write(to->context, bytes, size) ? el_fail(EDGELEARN_WRITE, "the writing function returned an error", "")
                                             : EDGELEARN_OK;
}

int edgelearn_save(int (*write)(void *context, const void *bytes, size_t size), void *context) {
  Sink to = {write, context, 0};
  uint32_t i, row, crc;
  int code;
  if (!now.is_open) return el_fail(EDGELEARN_STATE, "edgelearn_open comes first", "");
  if (write == NULL) return el_fail(EDGELEARN_ARGUMENT, "no function to write with", "");
  if ((code = sink(&to, el_state_header, el_state_header_bytes)) != 0) return code;
  for (i = 0; i < el_plan.kept; i++) {
    const el_tensor *t = &el_kept[i].tensor;
    const void *words;
    if ((code = el_device_get(t->memory, t->place, 4 * floats_of(t), &words)) != 0) return code;
    for (row = 0; row < t->rows; row++) {
      uint32_t block;
      for (block = 0; block < blocks_of(t); block++) {
        const uint32_t left = t->channels - block * t->block, count = left < t->block ? left : t->block;
        const float *from = (const float *)words + ((size_t)block * t->rows + row) * t->block;
        if ((code = sink(&to, from, 4 * count)) != 0) return code;
      }
    }
  }
  if ((code = sink(&to, &now.updates, 4)) != 0) return code;
  crc = to.crc;
  return sink(&to, &crc, 4);
}

int edgelearn_load(const void *bytes, size_t size) {
  const char *at = bytes;
  uint32_t i, crc;
  int code;
  if (!now.is_open) return el_fail(EDGELEARN_STATE, "edgelearn_open comes first", "");
  if (bytes == NULL) return el_fail(EDGELEARN_ARGUMENT, "null", "");
  if (size < el_state_header_bytes) return el_fail(EDGELEARN_DAMAGED, "the state is too short", "");
  if (memcmp(at, el_state_header, el_state_header_bytes) != 0)
    return el_fail(EDGELEARN_OTHER, "the state's header is not this bundle's", "");
  if (size != edgelearn_save_size()) return el_fail(EDGELEARN_DAMAGED, "the state has another size", "");
  memcpy(&crc, at + size - 4, 4);
  if (crc != el_checksum(0, at, size - 4)) return el_fail(EDGELEARN_DAMAGED, "the checksum differs", "");
  at += el_state_header_bytes;
  for (i = 0; i < el_plan.kept; i++) {
    const el_tensor *t = &el_kept[i].tensor;
    if (i == el_plan.trained && (code = changed()) != 0) return code; /* before ranges, which it may move */
    if ((code = put_rows(t, at, t->rows, 0)) != 0) return code;
    at += 4 * size_of(t);
  }
  if (el_plan.kept == el_plan.trained && (code = changed()) != 0) return code;
  memcpy(&now.updates, at, 4);
  now.ranges_known = el_plan.quantizes && now.updates > 0;
  return EDGELEARN_OK;
}

/* -- opening and closing -- */

enum { WEIGHTS_HEADER = 12 }; /* "ELWEIGHT" and the checksum of what follows */

static int check_weights(const char *bytes, size_t size) {
  size_t expected = WEIGHTS_HEADER;
  uint32_t i, crc;
  for (i = 0; i < el_plan.fills; i++) expected += el_fills[i].bytes;
  if (bytes == NULL) return el_fail(EDGELEARN_ARGUMENT, "options->weights is the content of model.weights, not null", "");
  if (size < WEIGHTS_HEADER) return el_fail(EDGELEARN_DAMAGED, "model.weights is too short", "");
  if (memcmp(bytes, "ELWEIGHT", 8) != 0) return el_fail(EDGELEARN_OTHER, "this is no model.weights", "");
  memcpy(&crc, bytes + 8, 4);
  if (crc != el_checksum(0, bytes + WEIGHTS_HEADER, size - WEIGHTS_HEADER))
    return el_fail(EDGELEARN_DAMAGED, "the checksum of model.weights differs", "");
  if (size != expected) return el_fail(EDGELEARN_OTHER, "model.weights is of another plan", "");
  return EDGELEARN_OK;
}

static int put_weights(const char *bytes) {
  uint32_t i;
  int code;
  bytes += WEIGHTS_HEADER;
  for (i = 0; i < el_plan.fills; bytes += el_fills[i++].bytes) {
    const el_fill *f = &el_fills[i];
    if ((code = el_device_put(f->memory, f->place, bytes, f->bytes, 0)) != 0) return code;
  }
  return EDGELEARN_OK;
}

int edgelearn_open(const edgelearn_options *options) {
  static const edgelearn_options defaults;
  int code;
  uint32_t i;
  if (now.is_open) return el_fail(EDGELEARN_STATE, "close it first", "");
  if (options == NULL) options = &defaults;
  memset(&now, 0, sizeof now);
  if ((code = check_weights(options->weights, options->weights_bytes)) != 0) return code;
  code = el_device_open(options);
  for (i = 0; code == EDGELEARN_OK && i < el_plan.memories; i++)
    code = el_device_zero(i, 0, (size_t)el_memory_bytes[i]);
  if (code == EDGELEARN_OK) code = put_weights(options->weights);
  if (code == EDGELEARN_OK) code = changed();
  if (code != EDGELEARN_OK) el_device_close();
  now.is_open = code == EDGELEARN_OK;
  return code;
}

void edgelearn_close(void) {
  if (now.is_open) el_device_close();
  now.is_open = 0;
}
