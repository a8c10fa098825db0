/* A client of a federation, over a socket to edgelearn's gateway (edgelearn federated gateway).

   On the socket every message follows its size, eight bytes, the low byte first. The client says that it is there; then
   it answers instructions, until a message of no bytes says that the federation is over. A connection that is lost is
   opened again.

   examples: all inputs (float32), then their targets (4 bytes each). */
#define _POSIX_C_SOURCE 200112L
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "client.h"
#include "edgelearn.h"

enum { SIZE = 8, ATTEMPTS = 60, LOST = -1 };

static unsigned long long received, sent; /* bytes, sizes included */

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

static double clock_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int connect_to(const char *host, const char *port) {
  struct addrinfo hints, *found = NULL, *each;
  int at = -1;
  memset(&hints, 0, sizeof hints);
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(host, port, &hints, &found) != 0) return -1;
  for (each = found; each != NULL; each = each->ai_next) {
    at = socket(each->ai_family, each->ai_socktype, each->ai_protocol);
    if (at >= 0 && connect(at, each->ai_addr, each->ai_addrlen) == 0) break;
    if (at >= 0) close(at);
    at = -1;
  }
  freeaddrinfo(found);
  return at;
}

static int send_bytes(int at, const unsigned char *bytes, size_t size) {
  while (size > 0) {
    ssize_t count = send(at, bytes, size, 0);
    if (count <= 0) return LOST;
    bytes += count;
    size -= (size_t)count;
    sent += (unsigned long long)count;
  }
  return EDGELEARN_OK;
}

static int receive_bytes(int at, unsigned char *bytes, size_t size) {
  while (size > 0) {
    ssize_t count = recv(at, bytes, size, 0);
    if (count <= 0) return LOST;
    bytes += count;
    size -= (size_t)count;
    received += (unsigned long long)count;
  }
  return EDGELEARN_OK;
}

static int send_message(int at, const unsigned char *message, size_t size) {
  unsigned char length[SIZE];
  int i;
  for (i = 0; i < SIZE; i++) length[i] = (unsigned char)((unsigned long long)size >> 8 * i & 255);
  return send_bytes(at, length, SIZE) == EDGELEARN_OK ? send_bytes(at, message, size) : LOST;
}

/* EDGELEARN_DAMAGED for a message that is larger than any that an instruction can have. */
static int receive_message(int at, unsigned char *message, size_t room, size_t *size) {
  unsigned char length[SIZE];
  unsigned long long told = 0;
  int i;
  if (receive_bytes(at, length, SIZE) != EDGELEARN_OK) return LOST;
  for (i = 0; i < SIZE; i++) told |= (unsigned long long)length[i] << 8 * i;
  if (told > room) return EDGELEARN_DAMAGED;
  *size = (size_t)told;
  return receive_bytes(at, message, *size);
}

/* Answer instructions until the federation is over, the connection is lost, or a message is damaged. */
static int answer_all(int at, unsigned char *message, unsigned char *reply, size_t room) {
  size_t size, written;
  int code = edgelearn_hello(reply, room, &written);
  if (code == EDGELEARN_OK) code = send_message(at, reply, written);
  while (code == EDGELEARN_OK) {
    code = receive_message(at, message, room, &size);
    if (code != EDGELEARN_OK || size == 0) break;
    code = edgelearn_answer(message, size, reply, room, &written);
    if (code != EDGELEARN_OK) fprintf(stderr, "%s\n", edgelearn_error(code));
    if (written > 0) code = send_message(at, reply, written);
    printf("%llu bytes received, %llu sent\n", received, sent);
    fflush(stdout);
  }
  return code;
}

static int usage(const char *name) {
  fprintf(stderr, "usage: %s HOST PORT CLIENT MODEL.WEIGHTS EXAMPLES RATE EPOCHS [TARGETS]\n"
                  "CLIENT: its number, from 0. TARGETS: of an example, default 1\n", name);
  return EDGELEARN_ARGUMENT;
}

int main(int count, char **words) {
  edgelearn_options options = {0};
  edgelearn_client client = {0};
  unsigned char *examples, *message, *reply;
  size_t size = 0, room;
  unsigned long long before;
  int at, code, attempt;
  if (count < 8) return usage(words[0]);
  signal(SIGPIPE, SIG_IGN);
  options.weights = read_file(words[4], &options.weights_bytes);
  options.library = getenv("EDGELEARN_OPENCL");
  options.device = getenv("EDGELEARN_DEVICE");
  options.cache_folder = getenv("EDGELEARN_CACHE");
  code = edgelearn_open(&options);
  free((void *)options.weights);
  if (code != EDGELEARN_OK) {
    fprintf(stderr, "%s (%s)\n", edgelearn_error(code), edgelearn_detail());
    return code;
  }
  examples = read_file(words[5], &size);
  client.number = (uint32_t)atol(words[3]);
  client.target_bytes = 4 * (size_t)(count > 8 ? atol(words[8]) : 1);
  client.examples = size / (sizeof(float) * edgelearn_input_size() + client.target_bytes);
  client.inputs = (const float *)(const void *)examples;
  client.targets = (const char *)examples + sizeof(float) * edgelearn_input_size() * client.examples;
  client.rate = (float)atof(words[6]);
  client.epochs = atoi(words[7]);
  client.seconds = clock_seconds;
  code = examples == NULL ? EDGELEARN_ARGUMENT : edgelearn_client_open(&client);
  room = edgelearn_client_room();
  message = malloc(room);
  reply = malloc(room);
  if (code == EDGELEARN_OK && (message == NULL || reply == NULL)) code = EDGELEARN_MEMORY;
  if (code != EDGELEARN_OK) {
    fprintf(stderr, "%s\n", edgelearn_error(code));
    return code;
  }
  code = LOST;
  for (attempt = 0; attempt < ATTEMPTS && code == LOST; attempt++) {
    if (attempt > 0) sleep(1);
    at = connect_to(words[1], words[2]);
    if (at < 0) continue;
    before = received;
    code = answer_all(at, message, reply, room);
    if (received > before) attempt = 0;
    close(at);
  }
  if (code == LOST) fprintf(stderr, "no gateway at %s port %s\n", words[1], words[2]);
  else if (code != EDGELEARN_OK) fprintf(stderr, "a message: %s\n", edgelearn_error(code));
  free(message);
  free(reply);
  free(examples);
  edgelearn_client_close();
  edgelearn_close();
  return code == LOST ? EDGELEARN_DRIVER : code;
}
