// Weight updates over a flat range of parameters (a whole number of blocks), as Keras defines them. Nothing is
// changed while counters[NONFINITE] says that a gradient holds a NaN or an infinity.
#include "blocked.h"
#include "scalars.h"

#define RANGE                                                                     \
  if (counters[NONFINITE] != 0.0f) return;                                        \
  const float rate = scalars[LEARNING_RATE];                                      \
  const int stop = (ITEM + 1) * CHUNK < blocks ? (ITEM + 1) * CHUNK : blocks; \
  for (int b = ITEM * CHUNK; b < stop; b++)

#define DECAYED(at) (LOAD(w + at) * (1.0f - rate * decay))

// w -= rate * g
KERNEL sgd(OUTPUT(w), INPUT(g), INPUT(scalars), INPUT(counters), const int blocks, const float decay) {
  INTO(w) FROM(g) FROM_WORDS(float, scalars) FROM_WORDS(float, counters)
  RANGE {
    const size_t at = (size_t)b * BLOCK;
    STORE(w + at, DECAYED(at) - LOAD(g + at) * rate);
  }
}

// v = momentum v - rate g; w += v, or with Nesterov's look-ahead w += momentum v - rate g
KERNEL sgd_momentum(OUTPUT(w), INPUT(g), INPUT(scalars), INPUT(counters), const int blocks, const float decay,
                    OUTPUT(velocity), const float momentum, const int nesterov) {
  INTO(w) FROM(g) FROM_WORDS(float, scalars) FROM_WORDS(float, counters) INTO(velocity)
  RANGE {
    const size_t at = (size_t)b * BLOCK;
    const V step = LOAD(g + at) * rate, v = LOAD(velocity + at) * momentum - step;
    STORE(velocity + at, v);
    STORE(w + at, DECAYED(at) + (nesterov ? v * momentum - step : v));
  }
}

// Kingma and Ba 2015, algorithm 1 with the corrections moved into the rate (their section 2); decay as in AdamW.
// pace1 and pace2 are 1 - beta1 and 1 - beta2 from the host: 1 - 0.999f is off by 1e-5.
KERNEL adam(OUTPUT(w), INPUT(g), INPUT(scalars), INPUT(counters), const int blocks, const float decay, OUTPUT(first),
            OUTPUT(second), const float pace1, const float pace2, const float epsilon) {
  INTO(w) FROM(g) FROM_WORDS(float, scalars) FROM_WORDS(float, counters) INTO(first) INTO(second)
  RANGE {
    const size_t at = (size_t)b * BLOCK;
    const V gradient = LOAD(g + at);
    V m = LOAD(first + at), v = LOAD(second + at);
    m += (gradient - m) * pace1;
    v += (gradient * gradient - v) * pace2;
    STORE(first + at, m);
    STORE(second + at, v);
    STORE(w + at, DECAYED(at) - m * (rate * scalars[CORRECTION]) / (sqrt(v) + epsilon));
  }
}

// y = x, unless a NaN or an infinity was found
KERNEL commit(INPUT(x), OUTPUT(y), INPUT(counters), const int blocks) {
  FROM(x) INTO(y) FROM_WORDS(float, counters)
  if (counters[NONFINITE] != 0.0f) return;
  const int stop = (ITEM + 1) * CHUNK < blocks ? (ITEM + 1) * CHUNK : blocks;
  for (int b = ITEM * CHUNK; b < stop; b++) STORE(y + (size_t)b * BLOCK, LOAD(x + (size_t)b * BLOCK));
}
