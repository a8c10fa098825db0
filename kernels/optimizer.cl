// Weight updates over a flat range of parameters (a whole number of blocks), as Keras defines them. A work-item updates
// CHUNK blocks. Nothing changes while counters[NONFINITE] says that a gradient holds a NaN or an infinity.
//
// With MEASURED a work-item updates the blocks of a row of `pieces`, and leaves the least and the most of the new
// weights where weight_range of quantize.cl reads them: so nothing reads kernels for their ranges again.
#include "blocked.h"
#include "statistics.h"
#include "scalars.h"

#ifndef MEASURED
#define MEASURED 0
#endif

// Blocks [first, last) of a work-item, and the extremes of what they become
typedef struct { int first, last; V least, most; } Piece;

#if MEASURED
// A row of `pieces`: first block, one behind the last, and where the extremes go, in blocks, or -1
#define PIECES_ARGUMENTS , INPUT_OF(int, pieces), OUTPUT(extremes)
#define PIECE piece_of(START(pieces) + 3 * ITEM)
#define WRITE_EXTREMES(piece)                                                          \
  if (START(pieces)[3 * ITEM + 2] >= 0) {                                              \
    output extremes = START_AT(extremes, START(pieces)[3 * ITEM + 2]) + FIRST_CHANNEL; \
    store(extremes, piece.least);                                                      \
    store(extremes + BLOCK, piece.most);                                               \
  }
INLINE Piece piece_of(__global const int *row) { return (Piece){row[0], row[1], (V)0, (V)0}; }
#else
#define PIECES_ARGUMENTS
#define PIECE piece_of(blocks)
#define WRITE_EXTREMES(piece)
INLINE Piece piece_of(const int blocks) {
  return (Piece){ITEM * CHUNK, (ITEM + 1) * CHUNK < blocks ? (ITEM + 1) * CHUNK : blocks, (V)0, (V)0};
}
#endif
INLINE void update(Piece *piece, output w, const V v) {
  store(w, v);
#if MEASURED
  piece->least = lower(piece->least, v);
  piece->most = higher(piece->most, v);
#endif
}

#define UPDATE_ARGUMENTS \
  OUTPUT(w), INPUT(g), INPUT(scalars), INPUT(counters), const int blocks, const float decay PIECES_ARGUMENTS

// w -= rate * g
KERNEL sgd(UPDATE_ARGUMENTS) {
  input g = ITEM_START(g);
  output w = ITEM_START(w);
  if (START(counters)[NONFINITE] != 0.0f) return;
  const float rate = START(scalars)[LEARNING_RATE];
  Piece piece = PIECE;
  for (int b = piece.first; b < piece.last; b++) {
    const size_t at = (size_t)b * BLOCK;
    update(&piece, w + at, load(w + at) * (1.0f - rate * decay) - load(g + at) * rate);
  }
  WRITE_EXTREMES(piece);
}

// v = momentum v - rate g; w += v, or with Nesterov's look-ahead w += momentum v - rate g
KERNEL sgd_momentum(UPDATE_ARGUMENTS, OUTPUT(velocity), const float momentum, const int nesterov) {
  input g = ITEM_START(g);
  output w = ITEM_START(w), velocity = ITEM_START(velocity);
  if (START(counters)[NONFINITE] != 0.0f) return;
  const float rate = START(scalars)[LEARNING_RATE];
  Piece piece = PIECE;
  for (int b = piece.first; b < piece.last; b++) {
    const size_t at = (size_t)b * BLOCK;
    const V step = load(g + at) * rate, v = load(velocity + at) * momentum - step;
    store(velocity + at, v);
    update(&piece, w + at, load(w + at) * (1.0f - rate * decay) + (nesterov ? v * momentum - step : v));
  }
  WRITE_EXTREMES(piece);
}

// Kingma and Ba 2015, algorithm 1 with the corrections moved into the rate (their section 2); decay as in AdamW.
// pace1 and pace2 are 1 - beta1 and 1 - beta2 from the host: 1 - 0.999f is off by 1e-5.
KERNEL adam(UPDATE_ARGUMENTS, OUTPUT(first), OUTPUT(second), const float pace1, const float pace2,
            const float epsilon) {
  input g = ITEM_START(g), scalars = START(scalars);
  output w = ITEM_START(w), first = ITEM_START(first), second = ITEM_START(second);
  if (START(counters)[NONFINITE] != 0.0f) return;
  const float rate = scalars[LEARNING_RATE];
  Piece piece = PIECE;
  for (int b = piece.first; b < piece.last; b++) {
    const size_t at = (size_t)b * BLOCK;
    const V gradient = load(g + at);
    V m = load(first + at), v = load(second + at);
    m += (gradient - m) * pace1;
    v += (gradient * gradient - v) * pace2;
    store(first + at, m);
    store(second + at, v);
    const V step = m * (rate * scalars[CORRECTION]) / (sqrt(v) + epsilon);
    update(&piece, w + at, load(w + at) * (1.0f - rate * decay) - step);
  }
  WRITE_EXTREMES(piece);
}

// Hinton 2012, with Keras's place for epsilon; MOMENTUM and CENTERED add a slot each. pace is 1 - rho from the host.
#ifndef MOMENTUM
#define MOMENTUM 0
#endif
#ifndef CENTERED
#define CENTERED 0
#endif
KERNEL rmsprop(UPDATE_ARGUMENTS, OUTPUT(velocity) OUTPUT_IF(MOMENTUM, momentum) OUTPUT_IF(CENTERED, average),
               const float pace, const float epsilon, const float inertia) {
  input g = ITEM_START(g);
  output w = ITEM_START(w), velocity = ITEM_START(velocity);
  if (START(counters)[NONFINITE] != 0.0f) return;
  const float rate = START(scalars)[LEARNING_RATE];
  Piece piece = PIECE;
  for (int b = piece.first; b < piece.last; b++) {
    const size_t at = (size_t)b * BLOCK;
    const V gradient = load(g + at);
    V v = load(velocity + at);
    v += (gradient * gradient - v) * pace;
    store(velocity + at, v);
#if CENTERED
    V mean = load(ITEM_START(average) + at);
    mean += (gradient - mean) * pace;
    store(ITEM_START(average) + at, mean);
    v -= mean * mean;
#endif
    V step = gradient * rate / sqrt(v + epsilon);
#if MOMENTUM
    step += load(ITEM_START(momentum) + at) * inertia;
    store(ITEM_START(momentum) + at, step);
#endif
    update(&piece, w + at, load(w + at) * (1.0f - rate * decay) - step);
  }
  WRITE_EXTREMES(piece);
}

// Chen et al. 2023, algorithm 2. pace1 and pace2 are 1 - beta1 and 1 - beta2 from the host.
KERNEL lion(UPDATE_ARGUMENTS, OUTPUT(momentum), const float pace1, const float pace2) {
  input g = ITEM_START(g);
  output w = ITEM_START(w), momentum = ITEM_START(momentum);
  if (START(counters)[NONFINITE] != 0.0f) return;
  const float rate = START(scalars)[LEARNING_RATE];
  Piece piece = PIECE;
  for (int b = piece.first; b < piece.last; b++) {
    const size_t at = (size_t)b * BLOCK;
    const V gradient = load(g + at), m = load(momentum + at), mixed = m + (gradient - m) * pace1;
    const V sign = mixed > (V)0 ? (V)1 : mixed < (V)0 ? (V)-1 : (V)0;
    store(momentum + at, m + (gradient - m) * pace2);
    update(&piece, w + at, load(w + at) * (1.0f - rate * decay) - sign * rate);
  }
  WRITE_EXTREMES(piece);
}

// average += (w - average) * pace; the first step sets it to w
KERNEL moving_average(OUTPUT(average), INPUT(w), INPUT(scalars), INPUT(counters), const int blocks, const float pace) {
  input w = ITEM_START(w);
  output average = ITEM_START(average);
  if (START(counters)[NONFINITE] != 0.0f) return;
  const int first = ((__global const uint *)START(scalars))[STEP] == 1;
  const Piece piece = PIECE;
  for (int b = piece.first; b < piece.last; b++) {
    const size_t at = (size_t)b * BLOCK;
    const V v = load(w + at), before = load(average + at);
    store(average + at, first ? v : before + (v - before) * pace);
  }
}

// g += pull (w - reference); the first step sets the reference to w
KERNEL proximal(OUTPUT(g), OUTPUT(reference), INPUT(w), INPUT(scalars), INPUT(counters), const int blocks,
                const float pull) {
  input w = ITEM_START(w);
  output g = ITEM_START(g), reference = ITEM_START(reference);
  if (START(counters)[NONFINITE] != 0.0f) return;
  const int first = ((__global const uint *)START(scalars))[STEP] == 1;
  const Piece piece = PIECE;
  for (int b = piece.first; b < piece.last; b++) {
    const size_t at = (size_t)b * BLOCK;
    const V now = load(w + at);
    if (first) store(reference + at, now);
    else store(g + at, load(g + at) + (now - load(reference + at)) * pull);
  }
}

// y = x, unless a NaN or an infinity was found
KERNEL commit(INPUT(x), OUTPUT(y), INPUT(counters), const int blocks) {
  input x = ITEM_START(x);
  output y = ITEM_START(y);
  if (START(counters)[NONFINITE] != 0.0f) return;
  const Piece piece = PIECE;
  for (int b = piece.first; b < piece.last; b++) store(y + (size_t)b * BLOCK, load(x + (size_t)b * BLOCK));
}
