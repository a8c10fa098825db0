/* Messages of a federation, and a round of training. See client.h. */
#include "client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "edgelearn.h"

enum { LENGTH = 4, LARGEST_HEADER = 1 << 16, REPLY_HEADER = 512, PROBLEM = 200 };

static edgelearn_client self;
static int *order_of_names;   /* numbers of the weights, by ascending name */
static int weights;
static size_t values;         /* floats of a payload */
static unsigned char *state;  /* of the training before the first round */
static size_t state_bytes;
static uint32_t *order;       /* of the examples in an epoch */
static float *batch_inputs;
static char *batch_targets;
static size_t largest_batch;

/* -- messages ------------------------------------------------------------------------------------------------------ */

static const char *skip_spaces(const char *at, const char *end) {
  while (at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r')) at++;
  return at;
}

/* A number of up to nine digits; null if there is none. */
static const char *read_number(const char *at, const char *end, uint32_t *value) {
  const char *begin = at;
  *value = 0;
  while (at < end && *at >= '0' && *at <= '9' && at - begin < 9) *value = *value * 10 + (uint32_t)(*at++ - '0');
  return at == begin || (*begin == '0' && at - begin > 1) ? NULL : at;
}

int edgelearn_read_instruction(const void *message, size_t size, edgelearn_instruction *instruction) {
  static const char *const names[] = {"\"round\"", "\"client\""};
  const unsigned char *bytes = message;
  const char *at, *end;
  uint32_t found[2] = {0, 0}, length;
  int seen = 0, name;
  if (message == NULL || size < LENGTH) return EDGELEARN_DAMAGED;
  length = (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
  if (length > LARGEST_HEADER || length > size - LENGTH) return EDGELEARN_DAMAGED;
  at = (const char *)bytes + LENGTH;
  end = at + length;
  at = skip_spaces(at, end);
  if (at == end || *at++ != '{') return EDGELEARN_DAMAGED;
  do {
    at = skip_spaces(at, end);
    for (name = 0; name < 2; name++)
      if ((size_t)(end - at) > strlen(names[name]) && memcmp(at, names[name], strlen(names[name])) == 0) break;
    if (name == 2 || (seen & 1 << name) != 0) return EDGELEARN_DAMAGED;
    seen |= 1 << name;
    at = skip_spaces(at + strlen(names[name]), end);
    if (at == end || *at++ != ':') return EDGELEARN_DAMAGED;
    at = read_number(skip_spaces(at, end), end, &found[name]);
    if (at == NULL) return EDGELEARN_DAMAGED;
    at = skip_spaces(at, end);
  } while (at < end && *at++ == ',');
  if (seen != 3 || at[-1] != '}' || skip_spaces(at, end) != end) return EDGELEARN_DAMAGED;
  instruction->round = found[0];
  instruction->client = found[1];
  instruction->payload = bytes + LENGTH + length;
  instruction->payload_bytes = size - LENGTH - length;
  return EDGELEARN_OK;
}

/* Write a reply without payload; `metrics` are the inside of a JSON object. Returns its size, 0 if there is no room. */
static size_t write_reply(unsigned char *reply, size_t room, uint32_t number, uint32_t client, size_t examples,
                          const char *metrics, const char *problem) {
  int length;
  if (room < LENGTH + REPLY_HEADER) return 0;
  length = snprintf((char *)reply + LENGTH, REPLY_HEADER,
                    "{\"round\":%lu,\"client\":%lu,\"examples\":%lu,\"metrics\":{%s},\"problem\":\"%s\"}",
                    (unsigned long)number, (unsigned long)client, (unsigned long)examples, metrics, problem);
  if (length < 0 || length >= REPLY_HEADER) return 0;
  reply[0] = (unsigned char)(length & 255);
  reply[1] = (unsigned char)(length >> 8);
  reply[2] = reply[3] = 0;
  return LENGTH + (size_t)length;
}

int edgelearn_hello(void *message, size_t room, size_t *size) {
  *size = write_reply(message, room, 0, self.number, self.examples, "", "");
  return *size > 0 ? EDGELEARN_OK : EDGELEARN_ARGUMENT;
}

size_t edgelearn_client_room(void) {
  return LENGTH + LARGEST_HEADER + sizeof(float) * values;
}

/* -- training ------------------------------------------------------------------------------------------------------ */

static int keep_piece(void *context, const void *bytes, size_t size) {
  (void)context;
  memcpy(state + state_bytes, bytes, size);
  state_bytes += size;
  return 0;
}

void edgelearn_client_close(void) {
  free(order_of_names);
  free(state);
  free(order);
  free(batch_inputs);
  free(batch_targets);
  order_of_names = NULL;
  state = NULL;
  order = NULL;
  batch_inputs = NULL;
  batch_targets = NULL;
}

int edgelearn_client_open(const edgelearn_client *client) {
  int number, place;
  if (client == NULL || client->inputs == NULL || client->targets == NULL || client->examples == 0 ||
      client->examples > 999999999 || client->epochs < 1 || edgelearn_batch_size() < 1)
    return EDGELEARN_ARGUMENT;
  self = *client;
  largest_batch = (size_t)edgelearn_batch_size();
  for (weights = 0, values = 0; edgelearn_weight_name(weights) != NULL; weights++)
    values += edgelearn_weight_size(weights);
  state_bytes = 0;
  order_of_names = malloc(sizeof *order_of_names * ((size_t)weights + 1));
  state = malloc(edgelearn_save_size() + 1);
  order = malloc(sizeof *order * self.examples);
  batch_inputs = malloc(sizeof(float) * edgelearn_input_size() * largest_batch);
  batch_targets = malloc(self.target_bytes * largest_batch);
  if (order_of_names == NULL || state == NULL || order == NULL || batch_inputs == NULL || batch_targets == NULL) {
    edgelearn_client_close();
    return EDGELEARN_MEMORY;
  }
  for (number = 0; number < weights; number++) {
    for (place = number; place > 0; place--) {
      if (strcmp(edgelearn_weight_name(order_of_names[place - 1]), edgelearn_weight_name(number)) < 0) break;
      order_of_names[place] = order_of_names[place - 1];
    }
    order_of_names[place] = number;
  }
  return edgelearn_save(keep_piece, NULL);
}

/* The next of a stream of random numbers (splitmix64, S. Vigna). */
static uint64_t next_random(uint64_t *stream) {
  uint64_t x = *stream += 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

/* Shuffle the examples; the order depends on round, client and epoch alone. */
static void shuffle(uint32_t number, int epoch) {
  uint64_t stream = (uint64_t)number << 40 ^ (uint64_t)self.number << 16 ^ (uint64_t)epoch;
  size_t at, other;
  uint32_t kept;
  for (at = 0; at < self.examples; at++) order[at] = (uint32_t)at;
  for (at = self.examples - 1; at > 0; at--) {
    other = (size_t)(next_random(&stream) % (at + 1));
    kept = order[at];
    order[at] = order[other];
    order[other] = kept;
  }
}

/* Train an epoch. Sums of loss and right answers over its examples are added to `total`. */
static int train_epoch(uint32_t number, int epoch, edgelearn_result *total) {
  size_t begin, count, i, inputs = edgelearn_input_size();
  edgelearn_result result;
  int code;
  shuffle(number, epoch);
  for (begin = 0; begin < self.examples; begin += count) {
    count = self.examples - begin < largest_batch ? self.examples - begin : largest_batch;
    for (i = 0; i < count; i++) {
      size_t example = order[begin + i];
      memcpy(batch_inputs + i * inputs, self.inputs + example * inputs, sizeof(float) * inputs);
      memcpy(batch_targets + i * self.target_bytes, self.targets + example * self.target_bytes, self.target_bytes);
    }
    code = edgelearn_train_step(batch_inputs, batch_targets, (int)count, self.rate, &result);
    if (code != EDGELEARN_OK) return code;
    total->loss += result.loss * (double)count;
    total->correct += result.correct;
  }
  return EDGELEARN_OK;
}

/* Train from the weights of an instruction; their changes are written to `changes`. */
static int train_round(const edgelearn_instruction *instruction, unsigned char *changes, edgelearn_result *total) {
  int i, epoch, code = edgelearn_load(state, state_bytes);
  size_t at = 0, value, size;
  for (i = 0; i < weights && code == EDGELEARN_OK; i++, at += size) {
    size = edgelearn_weight_size(order_of_names[i]);
    memcpy(changes + sizeof(float) * at, instruction->payload + sizeof(float) * at, sizeof(float) * size);
    code = edgelearn_set_weights(edgelearn_weight_name(order_of_names[i]), (float *)(void *)changes + at, size);
  }
  for (epoch = 0; epoch < self.epochs && code == EDGELEARN_OK; epoch++) {
    total->loss = total->correct = 0;
    code = train_epoch(instruction->round, epoch, total);
  }
  for (i = 0, at = 0; i < weights && code == EDGELEARN_OK; i++, at += size) {
    size = edgelearn_weight_size(order_of_names[i]);
    code = edgelearn_get_weights(edgelearn_weight_name(order_of_names[i]), (float *)(void *)changes + at, size);
  }
  for (value = 0; value < values && code == EDGELEARN_OK; value++) {
    float before, after;
    memcpy(&before, instruction->payload + sizeof before * value, sizeof before);
    memcpy(&after, changes + sizeof after * value, sizeof after);
    after -= before;
    memcpy(changes + sizeof after * value, &after, sizeof after);
  }
  return code;
}

int edgelearn_answer(const void *message, size_t size, void *reply, size_t room, size_t *reply_size) {
  edgelearn_instruction asked;
  edgelearn_result total = {0, 0};
  char metrics[PROBLEM], problem[PROBLEM] = "";
  unsigned char *written = reply, *changes;
  double begin = self.seconds != NULL ? self.seconds() : 0;
  int code = edgelearn_read_instruction(message, size, &asked);
  *reply_size = 0;
  if (code != EDGELEARN_OK) return code;
  if (room < edgelearn_client_room()) return EDGELEARN_ARGUMENT;
  /* Changes are written where they are aligned, after the largest header; then they move to the end of their own. */
  changes = written + LENGTH + LARGEST_HEADER;
  if (asked.client != self.number || asked.round < 1) {
    code = EDGELEARN_ARGUMENT;
    sprintf(problem, "this is client %lu", (unsigned long)self.number);
  } else if (asked.payload_bytes != sizeof(float) * values) {
    code = EDGELEARN_OTHER;
    sprintf(problem, "%lu bytes of weights arrived, and the bundle trains %lu", (unsigned long)asked.payload_bytes,
            (unsigned long)(sizeof(float) * values));
  } else if ((code = train_round(&asked, changes, &total)) != EDGELEARN_OK) {
    sprintf(problem, "%.150s", edgelearn_error(code));
  }
  sprintf(metrics, "\"loss\":%.9g,\"accuracy\":%.9g,\"seconds\":%.4f", total.loss / (double)self.examples,
          total.correct / (double)self.examples, self.seconds != NULL ? self.seconds() - begin : 0);
  *reply_size = write_reply(written, room, asked.round, asked.client, code == EDGELEARN_OK ? self.examples : 0,
                            code == EDGELEARN_OK ? metrics : "", problem);
  if (code != EDGELEARN_OK || *reply_size == 0) return code != EDGELEARN_OK ? code : EDGELEARN_ARGUMENT;
  memmove(written + *reply_size, changes, sizeof(float) * values);
  *reply_size += sizeof(float) * values;
  return EDGELEARN_OK;
}
