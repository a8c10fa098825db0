/* A client of a federation: it answers the messages of edgelearn's server by training a bundle on examples that stay
   here.

   A message is four bytes with the length of its header (the low byte first), the header, a JSON object, and the
   payload: weights, or changes of weights, as float32, one after the other in the order of their names. No socket is
   here: main.c carries messages. Functions return the codes of edgelearn.h. */
#ifndef EDGELEARN_CLIENT_H
#define EDGELEARN_CLIENT_H

#include <stddef.h>
#include <stdint.h>

/* What the server asks for: train from these weights. */
typedef struct {
  uint32_t round, client;
  const unsigned char *payload; /* in the message */
  size_t payload_bytes;
} edgelearn_instruction;

/* What the client trains with. */
typedef struct {
  uint32_t number;       /* of the client */
  const float *inputs;   /* all examples */
  const char *targets;   /* and their targets, `target_bytes` each */
  size_t target_bytes, examples;
  int epochs;            /* of a round */
  float rate;            /* learning rate */
  double (*seconds)(void); /* a clock, or null */
} edgelearn_client;

/* Keep what is needed between rounds. The bundle is open, and nothing was trained yet: each round begins with the state
   of its optimizer as it is now. */
int edgelearn_client_open(const edgelearn_client *client);
void edgelearn_client_close(void);

/* Bytes of the largest message in either direction. */
size_t edgelearn_client_room(void);

/* Read an instruction. EDGELEARN_DAMAGED for other bytes. */
int edgelearn_read_instruction(const void *message, size_t size, edgelearn_instruction *instruction);

/* Write the message by which a client says that it is there, a reply to round 0 without payload. */
int edgelearn_hello(void *message, size_t room, size_t *size);

/* Carry out an instruction and write the reply. What the client can't do is the problem of its reply, and the code.
   EDGELEARN_DAMAGED with a reply of no bytes if nobody can tell what the message asks for. */
int edgelearn_answer(const void *message, size_t size, void *reply, size_t room, size_t *reply_size);

#endif
