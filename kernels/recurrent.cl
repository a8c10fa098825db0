// One step of an LSTM or GRU, forward and backward. A state has SETS rows for each image: h, and of an LSTM c. Kernels are
// packed with a row for each input and gate, row input * GATES + gate, so that gates of a unit lie below each other.
// Gradients of gates have four rows in both cells: of a GRU the last two are those of the candidate's part from the input
// and from the state, which the reset gate multiplies.
#include "elementwise.h"
#include "sigmoid.h"

#define LSTM 0
#define GRU 1
#if CELL == LSTM
#define GATES 4
#define SETS 2
#define STATE_GATE(g) (g)
#else
#define GATES 3
#define SETS 1
#define STATE_GATE(g) ((g) < 2 ? (g) : 3)  // which of the four sums the state's gate g belongs to
#endif
#define SUMS 4
#ifndef ROWS
#define ROWS 4  // images of a work-item
#endif
#ifndef DEPTH
#define DEPTH 4  // rows of a kernel of a work-item
#endif
#ifndef BEGINS
#define BEGINS 0  // there is no state before: it is 0
#endif
#ifndef BIAS
#define BIAS 0
#endif
#ifndef MASKED
#define MASKED 0
#endif
#if BEGINS
#define CONTINUES 0
#else
#define CONTINUES 1
#endif
#ifndef READS_OUTPUT
#define READS_OUTPUT 0  // the output has the h of this step
#endif
#ifndef READS_LATER
#define READS_LATER 0  // later steps, or the caller, have a gradient of the state after this step
#endif

// n images, of which x has `steps` rows each; this step reads row `place` of them.
#define STEP_ARGUMENTS const int n, const int steps, const int place, const int inputs, const int units
#define CELL_INPUTS                                                                                         \
  INPUT(x), INPUT(kernel_), INPUT(recurrent) INPUT_IF(BIAS, bias) INPUT_IF(CONTINUES, before) INPUT_IF(MASKED, mask)

typedef struct { V sums[SUMS]; } Gates;

// row[r] += the products of `inputs` values of each of ROWS rows, (inputs / 16, m, 16), with a kernel's block
INLINE void add_products(Gates *gates, __global const float *values, const int m, const int *rows,
                         __global const float *weights, const int inputs, const int from_state) {
  for (int k = 0; k < inputs; k++) {
    __global const float *column = values + value_at(k, m, 0);
    V w[GATES];
    UNROLL for (int g = 0; g < GATES; g++) w[g] = load(weights + (size_t)(k * GATES + g) * BLOCK);
    UNROLL for (int r = 0; r < ROWS; r++) {
      const float v = column[(size_t)rows[r] * BLOCK];
      UNROLL for (int g = 0; g < GATES; g++) gates[r].sums[from_state ? STATE_GATE(g) : g] += v * w[g];
    }
  }
}

typedef struct { V h, c; } State;
typedef struct { V a, b, c, d, h, cell, squashed; } Cell;  // gates in the order of their sums; the state after them

INLINE V squash(const V v) { return tanh_forward(v, 0, 0); }

INLINE Cell cell_of(const Gates gates, const State before) {
  Cell s;
#if CELL == LSTM
  s.a = sigmoid(gates.sums[0]);
  s.b = sigmoid(gates.sums[1]);
  s.c = squash(gates.sums[2]);
  s.d = sigmoid(gates.sums[3]);
  s.cell = s.b * before.c + s.a * s.c;
  s.squashed = squash(s.cell);
  s.h = s.d * s.squashed;
#else
  s.a = sigmoid(gates.sums[0]);
  s.b = sigmoid(gates.sums[1]);
  s.d = gates.sums[3];
  s.c = squash(gates.sums[2] + s.b * s.d);
  s.h = s.a * before.h + ((V)1 - s.a) * s.c;
  s.cell = s.squashed = (V)0;
#endif
  return s;
}

#if BIAS
#define START_GATES                                                                                       \
  UNROLL for (int r = 0; r < ROWS; r++) {                                                                 \
    UNROLL for (int g = 0; g < SUMS; g++) gates[r].sums[g] = (V)0;                                        \
    UNROLL for (int g = 0; g < GATES; g++) gates[r].sums[g] += load(own_bias + g * BLOCK);                \
    if (CELL == GRU)                                                                                      \
      UNROLL for (int g = 0; g < GATES; g++) gates[r].sums[STATE_GATE(g)] += load(own_bias + (GATES + g) * BLOCK); \
  }
#define OWN_BIAS input own_bias = ITEM_START(bias) + row_at(block, CELL == GRU ? 2 * GATES : GATES, 0)
#else
#define START_GATES \
  UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int g = 0; g < SUMS; g++) gates[r].sums[g] = (V)0;
#define OWN_BIAS
#endif
#if CONTINUES
#define ADD_STATE \
  add_products(gates, START(before), n * SETS, state_rows, ITEM_START(recurrent) + row_at(block, units * GATES, 0), units, 1);
#define STATE_BEFORE(image) state_at(ITEM_START(before), block, n, image)
#else
#define ADD_STATE
#define STATE_BEFORE(image) ((State){(V)0, (V)0})
#endif

INLINE State state_at(__global const float *state, const int block, const int n, const int image) {
  State s = {load(state + row_at(block, n * SETS, image * SETS)), (V)0};
  if (SETS == 2) s.c = load(state + row_at(block, n * SETS, image * SETS + 1));
  return s;
}

// The sums of the gates of ROWS images
#define GATES_OF_TILE                                                                                      \
  const int tile = ITEM, block = get_global_id(1);                                                         \
  if (tile * ROWS >= n) return;                                                                            \
  Gates gates[ROWS];                                                                                       \
  int images[ROWS], input_rows[ROWS], state_rows[ROWS];                                                    \
  UNROLL for (int r = 0; r < ROWS; r++) {                                                                  \
    images[r] = tile * ROWS + r < n ? tile * ROWS + r : n - 1;                                             \
    input_rows[r] = images[r] * steps + place;                                                             \
    state_rows[r] = images[r] * SETS;                                                                      \
  }                                                                                                        \
  OWN_BIAS;                                                                                                \
  START_GATES                                                                                              \
  add_products(gates, START(x), n * steps, input_rows, ITEM_START(kernel_) + row_at(block, inputs * GATES, 0), inputs, 0); \
  ADD_STATE

KERNEL cell_forward(CELL_INPUTS, OUTPUT(after), STEP_ARGUMENTS) {
  output after = ITEM_START(after);
  GATES_OF_TILE
  for (int r = 0; r < ROWS && tile * ROWS + r < n; r++) {
    const int image = images[r];
    const State before = STATE_BEFORE(image);
    const Cell s = cell_of(gates[r], before);
    State next = {s.h, s.cell};
#if MASKED
    if (START(mask)[value_at(place, n, image)] == 0.0f) next = before;
#endif
    store(after + row_at(block, n * SETS, image * SETS), next.h);
    if (SETS == 2) store(after + row_at(block, n * SETS, image * SETS + 1), next.c);
  }
}

// Row `place` of each of n images of y, of `rows` each, from row `set` of a state
KERNEL copy_state(INPUT(state), OUTPUT(y), const int n, const int rows, const int place, const int set) {
  const int image = ITEM, block = get_global_id(1);
  if (image >= n) return;
  store(ITEM_START(y) + row_at(block, n * rows, image * rows + place),
        load(ITEM_START(state) + row_at(block, n * SETS, image * SETS + set)));
}

// gradients[(slot * n + image) * 4 + gate], and the h before, which they multiply, in states[slot * n + image]. The
// gradient of the state before is written without what passes through the gates. `later`: gradient of the state after,
// rows image * later_rows + later_first on; dy: row image * output_rows + output_place.
KERNEL cell_backward(CELL_INPUTS INPUT_IF(READS_OUTPUT, dy) INPUT_IF(READS_LATER, later), OUTPUT(gradients),
                     OUTPUT(states) OUTPUT_IF(CONTINUES, earlier), STEP_ARGUMENTS, const int slot, const int slots,
                     const int output_rows, const int output_place, const int later_rows, const int later_first) {
  output gradients = ITEM_START(gradients), states = ITEM_START(states);
  GATES_OF_TILE
  for (int r = 0; r < ROWS && tile * ROWS + r < n; r++) {
    const int image = images[r];
    const State before = STATE_BEFORE(image);
    const Cell s = cell_of(gates[r], before);
    State d = {(V)0, (V)0}, through = {(V)0, (V)0};
#if READS_LATER
    const size_t place_of_h = row_at(block, n * later_rows, image * later_rows + later_first);
    d.h = load(ITEM_START(later) + place_of_h);
    if (SETS == 2) d.c = load(ITEM_START(later) + place_of_h + BLOCK);
#endif
#if READS_OUTPUT
    d.h += load(ITEM_START(dy) + row_at(block, n * output_rows, image * output_rows + output_place));
#endif
    V g[SUMS];
#if CELL == LSTM
    const V dc = d.c + d.h * s.d * ((V)1 - s.squashed * s.squashed);
    g[0] = dc * s.c * s.a * ((V)1 - s.a);
    g[1] = dc * before.c * s.b * ((V)1 - s.b);
    g[2] = dc * s.a * ((V)1 - s.c * s.c);
    g[3] = d.h * s.squashed * s.d * ((V)1 - s.d);
    through.c = dc * s.b;
#else
    g[0] = d.h * (before.h - s.c) * s.a * ((V)1 - s.a);
    g[2] = d.h * ((V)1 - s.a) * ((V)1 - s.c * s.c);
    g[1] = g[2] * s.d * s.b * ((V)1 - s.b);
    g[3] = g[2] * s.b;
    through.h = d.h * s.a;
#endif
#if MASKED
    if (START(mask)[value_at(place, n, image)] == 0.0f) {
      UNROLL for (int i = 0; i < SUMS; i++) g[i] = (V)0;
      through = d;
    }
#endif
    const int row = slot * n + image;
    UNROLL for (int i = 0; i < SUMS; i++) store(gradients + row_at(block, slots * n * SUMS, row * SUMS + i), g[i]);
    store(states + row_at(block, slots * n, row), before.h);
#if CONTINUES
    output earlier = ITEM_START(earlier);
    store(earlier + row_at(block, n * SETS, image * SETS), through.h);
    if (SETS == 2) store(earlier + row_at(block, n * SETS, image * SETS + 1), through.c);
#endif
  }
}

// A kernel (inputs * GATES rows, units) as (units * GATES rows, inputs)
KERNEL turn_kernel(INPUT(weights), OUTPUT(turned), const int inputs, const int units) {
  const int row = ITEM, block = get_global_id(1), unit = row / GATES, gate = row % GATES;
  if (unit >= units) return;
  V v = (V)0;
  for (int i = 0; i < VECTOR_WIDTH; i++) {
    const int k = block * BLOCK + FIRST_CHANNEL + i;
    if (k < inputs) ELEMENT(v, i) = START(weights)[value_at(unit, (size_t)inputs * GATES, (size_t)k * GATES + gate)];
  }
  store(ITEM_START(turned) + row_at(block, units * GATES, row), v);
}

// The products of gates' gradients, from row `first` of them on, with a turned kernel's block
INLINE void through_gates(V *sums, __global const float *gradients, const int m, const int *rows,
                          __global const float *turned, const int units, const int to_state) {
  UNROLL for (int r = 0; r < ROWS; r++) sums[r] = (V)0;
  for (int unit = 0; unit < units; unit++) {
    __global const float *column = gradients + value_at(unit, (size_t)m * SUMS, 0);
    UNROLL for (int g = 0; g < GATES; g++) {
      const V w = load(turned + (size_t)(unit * GATES + g) * BLOCK);
      UNROLL for (int r = 0; r < ROWS; r++)
        sums[r] += column[((size_t)rows[r] * SUMS + (to_state ? STATE_GATE(g) : g)) * BLOCK] * w;
    }
  }
}

// earlier.h += what passes through the gates of a slot
KERNEL cell_backward_state(INPUT(gradients), INPUT(turned), OUTPUT(earlier), const int n, const int units,
                           const int slot, const int slots) {
  const int tile = ITEM, block = get_global_id(1);
  if (tile * ROWS >= n) return;
  output earlier = ITEM_START(earlier);
  V sums[ROWS];
  int rows[ROWS];
  UNROLL for (int r = 0; r < ROWS; r++) rows[r] = slot * n + (tile * ROWS + r < n ? tile * ROWS + r : n - 1);
  through_gates(sums, START(gradients), slots * n, rows, ITEM_START(turned) + row_at(block, units * GATES, 0), units, 1);
  UNROLL for (int r = 0; r < ROWS; r++) {
    if (tile * ROWS + r >= n) continue;
    const size_t at = row_at(block, n * SETS, (tile * ROWS + r) * SETS);
    store(earlier + at, load(earlier + at) + sums[r]);
  }
}

// The gradients of the inputs of `used` steps: slot s is that of row first + s * step of each image.
KERNEL cell_backward_input(INPUT(gradients), INPUT(turned), const int n, const int units, const int slots,
                           const int used, const int steps, const int first, const int step, GRADIENT_ARGUMENTS) {
  const int tile = ITEM, block = get_global_id(1), total = used * n;
  if (tile * ROWS >= total) return;
  const Gradient dx = GRADIENT;
  V sums[ROWS];
  int rows[ROWS];
  UNROLL for (int r = 0; r < ROWS; r++) rows[r] = tile * ROWS + r < total ? tile * ROWS + r : total - 1;
  through_gates(sums, START(gradients), slots * n, rows, ITEM_START(turned) + row_at(block, units * GATES, 0), units, 0);
  UNROLL for (int r = 0; r < ROWS; r++) {
    const int row = tile * ROWS + r;
    if (row >= total) continue;
    write_gradient(dx, row_at(block, n * steps, row % n * steps + first + row / n * step), sums[r]);
  }
}

// The gradient of a kernel over `used` slots: values[k] times the gradients of the gates. The row of a slot and image is
// slot * slot_stride + image * image_stride + first.
KERNEL cell_weights(INPUT(values), INPUT(gradients), OUTPUT(total), const int n, const int inputs, const int units,
                    const int slots, const int used, const int m, const int slot_stride, const int image_stride,
                    const int first, const int from_state, const int add) {
  const int k = ITEM * DEPTH, block = get_global_id(1);
  if (k >= inputs) return;
  input values = START(values), gradients = ITEM_START(gradients) + row_at(block, slots * n * SUMS, 0);
  output total = ITEM_START(total) + row_at(block, inputs * GATES, 0);
  V sums[DEPTH][GATES];
  UNROLL for (int d = 0; d < DEPTH; d++) UNROLL for (int g = 0; g < GATES; g++) sums[d][g] = (V)0;
  for (int slot = 0; slot < used; slot++)
    for (int image = 0; image < n; image++) {
      V g[GATES];
      UNROLL for (int i = 0; i < GATES; i++)
        g[i] = load(gradients + (size_t)((slot * n + image) * SUMS + (from_state ? STATE_GATE(i) : i)) * BLOCK);
      const int row = slot * slot_stride + image * image_stride + first;
      UNROLL for (int d = 0; d < DEPTH; d++) {
        const float v = values[value_at(k + d < inputs ? k + d : inputs - 1, m, row)];
        UNROLL for (int i = 0; i < GATES; i++) sums[d][i] += v * g[i];
      }
    }
  for (int d = 0; d < DEPTH && k + d < inputs; d++)
    UNROLL for (int i = 0; i < GATES; i++) {
      const size_t at = (size_t)((k + d) * GATES + i) * BLOCK;
      store(total + at, add ? load(total + at) + sums[d][i] : sums[d][i]);
    }
}

// The gradient of the bias over `used` slots: a row for each gate, of a GRU first those of the input
KERNEL cell_bias(INPUT(gradients), OUTPUT(total), const int n, const int slots, const int used, const int add) {
  const int rows = CELL == GRU ? 2 * GATES : GATES, row = ITEM, block = get_global_id(1);
  if (row >= rows) return;
  const int gate = row < GATES ? row : STATE_GATE(row - GATES);
  input gradients = ITEM_START(gradients) + row_at(block, slots * n * SUMS, 0);
  output total = ITEM_START(total) + row_at(block, rows, row);
  V sum = (V)0;
  for (int i = 0; i < used * n; i++) sum += load(gradients + (size_t)(i * SUMS + gate) * BLOCK);
  store(total, add ? load(total) + sum : sum);
}
