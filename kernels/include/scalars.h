// Numbers that host and device share during a mini-batch; the same places as in edgelearn/ops/emit.py.
// `scalars`, written by the host:
#define INVERSE_BATCH 0   // factor of a row's gradient: 1 / examples of the mini-batch, 1 / rows of one, the loss's weight
#define LEARNING_RATE 1   // of this update
#define CORRECTION 2      // Adam: sqrt(1 - beta2^t) / (1 - beta1^t); LAMB: 1 / (1 - beta1^t)
#define SEED 3            // two words as uint, the low one first: floats would hold integers only up to 2^24
#define STEP 5            // as uint
#define SECOND_CORRECTION 6  // LAMB: 1 / sqrt(1 - beta2^t)
#define UNSCALE 7         // 1 / loss scale, a power of two
// `counters`, counted by the device:
#define LOSS 0            // sum of the losses of the mini-batch so far
#define CORRECT 1         // right answers so far
#define SEEN 2            // examples so far
#define NONFINITE 3       // chunks of gradients with a NaN or an infinity, and the loss if it is one
#define OUTPUTS 4         // of each of several outputs: sum of its losses, right answers
