// A stretch of steps of an LSTM or GRU, forward and backward: a work-group takes ROWS images through all of its steps, so
// that a launch is enough. A state has SETS rows for each image: h, and of an LSTM c. Kernels are packed with a row for
// each input and gate, row input * GATES + gate, so that gates of a unit lie below each other. Slot s of a stretch is its
// step s; sums and gradients of gates are in rows (slot * n + image) * 4 + gate.
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
#define DEPTH 4  // rows of a kernel of a work-item, a divisor of BLOCK
#endif
#ifndef TOGETHER
#define TOGETHER GATES  // gates whose sums are in registers at a time; a divisor of GATES
#endif
#ifndef BIAS
#define BIAS 0
#endif
#ifndef MASKED
#define MASKED 0
#endif
#ifndef CONTINUES
#define CONTINUES 0  // there is a state before the stretch; else it is 0
#endif
#ifndef INNER
#define INNER 0  // the stretch has more than one step
#endif
#ifndef KEEPS
#define KEEPS 0  // the backward pass needs the gates
#endif
#ifndef READS_OUTPUT
#define READS_OUTPUT 0  // the output has h of steps of this stretch
#endif
#ifndef SEQUENCES
#define SEQUENCES 0  // of each of them; else of the last step of all
#endif
#ifndef READS_LATER
#define READS_LATER 0  // later steps, or the caller, have a gradient of the state after this stretch
#endif

typedef struct { V sums[SUMS]; } Gates;

// row[r] += the products of `inputs` values of each of ROWS rows, (inputs / 16, m, 16), with a kernel's block. Here and below
// pointers move from value to value: computing each address from its number takes a tenth of a launch's time.
INLINE void add_products(Gates *gates, __global const float *values, const int m, const int *rows,
                         __global const float *weights, const int inputs, const int from_state) {
  UNROLL for (int first = 0; first < GATES; first += TOGETHER) {
    V sums[ROWS][TOGETHER];
    UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int g = 0; g < TOGETHER; g++)
      sums[r][g] = gates[r].sums[from_state ? STATE_GATE(first + g) : first + g];
    __global const float *own = weights + first * BLOCK;
    for (int begin = 0; begin < inputs; begin += BLOCK) {
      __global const float *column = values + row_at(begin / BLOCK, m, 0);
      const int count = inputs - begin < BLOCK ? inputs - begin : BLOCK;
      for (int k = 0; k < count; k++, column++, own += GATES * BLOCK) {
        V w[TOGETHER];
        UNROLL for (int g = 0; g < TOGETHER; g++) w[g] = load(own + g * BLOCK);
        UNROLL for (int r = 0; r < ROWS; r++) {
          const float v = column[(size_t)rows[r] * BLOCK];
          UNROLL for (int g = 0; g < TOGETHER; g++) sums[r][g] += v * w[g];
        }
      }
    }
    UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int g = 0; g < TOGETHER; g++)
      gates[r].sums[from_state ? STATE_GATE(first + g) : first + g] = sums[r][g];
  }
}

typedef struct { V h, c; } State;
typedef struct { V a, b, c, d, h, cell, squashed; } Cell;  // gates in the order of their sums; the state after them

INLINE V squash(const V v) { return tanh_forward(v, 0, 0); }

// The gates after their functions; of a GRU the last one is the candidate's part from the state, as it is
INLINE Gates activated(const Gates gates) {
  Gates s;
#if CELL == LSTM
  s.sums[0] = sigmoid(gates.sums[0]);
  s.sums[1] = sigmoid(gates.sums[1]);
  s.sums[2] = squash(gates.sums[2]);
  s.sums[3] = sigmoid(gates.sums[3]);
#else
  s.sums[0] = sigmoid(gates.sums[0]);
  s.sums[1] = sigmoid(gates.sums[1]);
  s.sums[2] = squash(gates.sums[2] + s.sums[1] * gates.sums[3]);
  s.sums[3] = gates.sums[3];
#endif
  return s;
}

// The cell, given its activated gates
INLINE Cell cell_of(const Gates gates, const State before) {
  Cell s = {gates.sums[0], gates.sums[1], gates.sums[2], gates.sums[3], (V)0, (V)0, (V)0};
#if CELL == LSTM
  s.cell = s.b * before.c + s.a * s.c;
  s.squashed = squash(s.cell);
  s.h = s.d * s.squashed;
#else
  s.h = s.a * before.h + ((V)1 - s.a) * s.c;
#endif
  return s;
}

typedef struct { __global const float *at; int m, first; } States;  // of image i: rows (first + i) * SETS on, of m

INLINE State state_at(const States states, const int block, const int image) {
  __global const float *at = states.at + FIRST_CHANNEL + row_at(block, states.m, (states.first + image) * SETS);
  State s = {load(at), (V)0};
  if (SETS == 2) s.c = load(at + BLOCK);
  return s;
}

INLINE void store_state(__global float *states, const int m, const int row, const int block, const V h, const V c) {
  output at = states + FIRST_CHANNEL + row_at(block, m, row * SETS);
  store(at, h);
  if (SETS == 2) store(at + BLOCK, c);
}

// The work-group's images, and the blocks of each work-item of it
#define IMAGES_OF_GROUP                                    \
  const int tile = (int)get_global_id(0) / GROUP;          \
  int images[ROWS];                                        \
  UNROLL for (int r = 0; r < ROWS; r++) images[r] = tile * ROWS + r < n ? tile * ROWS + r : n - 1;
#define EACH_BLOCK                                                                                       \
  for (int block = (int)get_global_id(0) % GROUP / VECTORS; block * BLOCK < units; block += (GROUP + VECTORS - 1) / VECTORS)
#define EACH_IMAGE for (int r = 0; r < ROWS && tile * ROWS + r < n; r++)
#if GROUP > 1
#define WAIT barrier(CLK_GLOBAL_MEM_FENCE)
#else
#define WAIT
#endif

#if CONTINUES
#define BEFORE START(before)
#else
#define BEFORE 0
#endif
#if INNER
#define STATES START(states)
#else
#define STATES 0
#endif
// The state before a slot's step: of the first one `before`, else one of the stretch's `states`
#define STATES_BEFORE(slot) \
  ((slot) ? (States){STATES, (used - 1) * n * SETS, ((slot) - 1) * n} : (States){BEFORE, n * SETS, 0})
#define HAS_BEFORE(slot) (CONTINUES | ((slot) > 0))
#define STATE_BEFORE(slot, image) (HAS_BEFORE(slot) ? state_at(STATES_BEFORE(slot), block, image) : (State){(V)0, (V)0})
#define IS_LEFT_OUT(image) (START(mask)[value_at(place + slot * direction, n, image)] == 0.0f)

// sums = what gates get from the sequence and the biases, of all steps of a stretch: slot s is row place + s * direction of
// each image's `steps`.
KERNEL cell_sums(INPUT(x), INPUT(kernel_) INPUT_IF(BIAS, bias), OUTPUT(sums), const int n, const int steps,
                 const int inputs, const int units, const int place, const int direction, const int used) {
  const int tile = ITEM, block = get_global_id(1), total = used * n;
  if (tile * ROWS >= total) return;
  output sums = ITEM_START(sums) + row_at(block, total * SUMS, 0);
  Gates gates[ROWS];
  int rows[ROWS];
  UNROLL for (int r = 0; r < ROWS; r++) {
    const int row = tile * ROWS + r < total ? tile * ROWS + r : total - 1;
    rows[r] = row % n * steps + place + row / n * direction;
    UNROLL for (int g = 0; g < SUMS; g++) gates[r].sums[g] = (V)0;
#if BIAS
    input own_bias = ITEM_START(bias) + row_at(block, CELL == GRU ? 2 * GATES : GATES, 0);
    UNROLL for (int g = 0; g < GATES; g++) gates[r].sums[g] += load(own_bias + g * BLOCK);
    if (CELL == GRU)
      UNROLL for (int g = 0; g < GATES; g++) gates[r].sums[STATE_GATE(g)] += load(own_bias + (GATES + g) * BLOCK);
#endif
  }
  add_products(gates, START(x), n * steps, rows, ITEM_START(kernel_) + row_at(block, inputs * GATES, 0), inputs, 0);
  for (int r = 0; r < ROWS && tile * ROWS + r < total; r++)
    UNROLL for (int g = 0; g < SUMS; g++) store(sums + (size_t)((tile * ROWS + r) * SUMS + g) * BLOCK, gates[r].sums[g]);
}

// The gates' sums of a slot and block, given those of the sequence
INLINE void gates_of(Gates *gates, __global const float *sums, const int slot, const int block, const int n,
                     const int used, const int units, const int *images, __global const float *recurrent,
                     const int has_before, const States before) {
  int rows[ROWS];
  UNROLL for (int r = 0; r < ROWS; r++) {
    UNROLL for (int g = 0; g < SUMS; g++)
      gates[r].sums[g] = load(sums + row_at(block, used * n * SUMS, (slot * n + images[r]) * SUMS + g));
    rows[r] = (before.first + images[r]) * SETS;
  }
  if (has_before) add_products(gates, before.at, before.m, rows, recurrent + row_at(block, units * GATES, 0), units, 1);
}

// `states` gets the state after each step of the stretch but the last, `after` that; `gates` the activated gates, in the
// rows of their sums.
KERNEL cell_forward(INPUT(sums), INPUT(recurrent) INPUT_IF(CONTINUES, before) INPUT_IF(MASKED, mask)
                    OUTPUT_IF(INNER, states), OUTPUT(after) OUTPUT_IF(KEEPS, kept), const int n, const int units, const int place,
                    const int direction, const int used) {
  IMAGES_OF_GROUP
  for (int slot = 0; slot < used; slot++) {
    EACH_BLOCK {
      Gates gates[ROWS];
      gates_of(gates, ITEM_START(sums), slot, block, n, used, units, images, ITEM_START(recurrent), HAS_BEFORE(slot),
               STATES_BEFORE(slot));
      EACH_IMAGE {
        const State before = STATE_BEFORE(slot, images[r]);
        const Gates own = activated(gates[r]);
#if KEEPS
        UNROLL for (int i = 0; i < SUMS; i++)
          store(ITEM_START(kept) + row_at(block, used * n * SUMS, (slot * n + images[r]) * SUMS + i), own.sums[i]);
#endif
        const Cell s = cell_of(own, before);
        State next = {s.h, s.cell};
#if MASKED
        if (IS_LEFT_OUT(images[r])) next = before;
#endif
        if (slot == used - 1) store_state(START(after), n * SETS, images[r], block, next.h, next.c);
        else store_state(STATES, (used - 1) * n * SETS, slot * n + images[r], block, next.h, next.c);
      }
    }
    WAIT;
  }
}

// Row `place` + slot of each of n images of y, of `rows` each, from row `set` of the states of a stretch
KERNEL copy_states(INPUT(after) INPUT_IF(INNER, states), OUTPUT(y), const int n, const int rows, const int place,
                   const int set, const int used) {
  const int row = ITEM, block = get_global_id(1), slot = row / n, image = row % n;
  if (slot >= used) return;
  const States from =
      slot == used - 1 ? (States){START(after), n * SETS, 0} : (States){STATES, (used - 1) * n * SETS, slot * n};
  const State s = state_at(from, block, image);
  store(ITEM_START(y) + row_at(block, n * rows, image * rows + place + slot), set ? s.c : s.h);
}

// The products of gates' gradients, from row `first` of them on, with a turned kernel's block
INLINE void through_gates(V *sums, __global const float *gradients, const int m, const int *rows,
                          __global const float *turned, const int units, const int to_state) {
  UNROLL for (int r = 0; r < ROWS; r++) sums[r] = (V)0;
  for (int begin = 0; begin < units; begin += BLOCK) {
    __global const float *column = gradients + row_at(begin / BLOCK, m * SUMS, 0);
    const int count = units - begin < BLOCK ? units - begin : BLOCK;
    for (int unit = 0; unit < count; unit++, column++, turned += GATES * BLOCK)
      UNROLL for (int g = 0; g < GATES; g++) {
        const V w = load(turned + g * BLOCK);
        UNROLL for (int r = 0; r < ROWS; r++)
          sums[r] += column[((size_t)rows[r] * SUMS + (to_state ? STATE_GATE(g) : g)) * BLOCK] * w;
      }
  }
}

// Write the gradients of all gates of a stretch, given the activated `gates`, and the gradient of the state before it,
// `earlier`. `first` is the number of the stretch's first step among `steps`.
// `later`: gradient of the state after the stretch, rows image * later_rows + later_first on; dy: row image * output_rows
// + the number of the step, or 0. No gradient passes to before a step whose number `truncate` divides.
KERNEL cell_backward(INPUT(gates), INPUT(turned) INPUT_IF(CONTINUES, before) INPUT_IF(INNER, states)
                     INPUT_IF(MASKED, mask) INPUT_IF(READS_OUTPUT, dy) INPUT_IF(READS_LATER, later),
                     OUTPUT(gradients), OUTPUT(earlier), const int n, const int units, const int place,
                     const int direction, const int used, const int first, const int steps, const int truncate,
                     const int output_rows, const int later_rows, const int later_first) {
  input kept = ITEM_START(gates);
  output gradients = ITEM_START(gradients);
  IMAGES_OF_GROUP
  for (int slot = used - 1; slot >= 0; slot--) {
    EACH_BLOCK {
      EACH_IMAGE {
        const int image = images[r];
        const size_t at = row_at(block, used * n * SUMS, (slot * n + image) * SUMS);
        const State before = STATE_BEFORE(slot, image);
        Gates own;
        UNROLL for (int i = 0; i < SUMS; i++) own.sums[i] = load(kept + at + i * BLOCK);
        const Cell s = cell_of(own, before);
        State d = {(V)0, (V)0}, through = {(V)0, (V)0};
        if (slot < used - 1) d = state_at((States){START(earlier), n * SETS, 0}, block, image);
#if READS_LATER
        else {
          input at = ITEM_START(later) + row_at(block, n * later_rows, image * later_rows + later_first);
          d.h = load(at);
          if (SETS == 2) d.c = load(at + BLOCK);
        }
#endif
#if READS_OUTPUT
        if (SEQUENCES || first + slot == steps - 1)
          d.h += load(ITEM_START(dy) + row_at(block, n * output_rows, image * output_rows + (SEQUENCES ? first + slot : 0)));
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
        if (IS_LEFT_OUT(image)) {
          UNROLL for (int i = 0; i < SUMS; i++) g[i] = (V)0;
          through = d;
        }
#endif
        UNROLL for (int i = 0; i < SUMS; i++) store(gradients + at + i * BLOCK, g[i]);
        store_state(START(earlier), n * SETS, image, block, through.h, through.c);
      }
    }
    WAIT;
    const int cut = first + slot && truncate && (first + slot) % truncate == 0;
    if (!cut && !HAS_BEFORE(slot)) continue;
    int rows[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) rows[r] = slot * n + images[r];
    EACH_BLOCK {
      V sums[ROWS];
      UNROLL for (int r = 0; r < ROWS; r++) sums[r] = (V)0;
      if (!cut)
        through_gates(sums, START(gradients), used * n, rows, ITEM_START(turned) + row_at(block, units * GATES, 0), units, 1);
      EACH_IMAGE {
        const State through = state_at((States){START(earlier), n * SETS, 0}, block, images[r]);
        store_state(START(earlier), n * SETS, images[r], block, cut ? (V)0 : through.h + sums[r], cut ? (V)0 : through.c);
      }
    }
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

// The gradients of the inputs of `used` steps: slot s is that of row first + s * step of each image.
KERNEL cell_backward_input(INPUT(gradients), INPUT(turned), const int n, const int units, const int used,
                           const int steps, const int first, const int step, GRADIENT_ARGUMENTS) {
  const int tile = ITEM, block = get_global_id(1), total = used * n;
  if (tile * ROWS >= total) return;
  const Gradient dx = GRADIENT;
  V sums[ROWS];
  int rows[ROWS];
  UNROLL for (int r = 0; r < ROWS; r++) rows[r] = tile * ROWS + r < total ? tile * ROWS + r : total - 1;
  through_gates(sums, START(gradients), total, rows, ITEM_START(turned) + row_at(block, units * GATES, 0), units, 0);
  UNROLL for (int r = 0; r < ROWS; r++) {
    const int row = tile * ROWS + r;
    if (row >= total) continue;
    write_gradient(dx, row_at(block, n * steps, row % n * steps + first + row / n * step), sums[r]);
  }
}

// The gradient of a kernel over the slots from `begin` to `end` of `used`: values[k] times the gradients of the gates. The
// row of a slot and image is slot * slot_stride + image * image_stride + first.
KERNEL cell_weights(INPUT(values), INPUT(gradients), OUTPUT(total), const int n, const int inputs, const int used,
                    const int begin, const int end, const int m, const int slot_stride, const int image_stride,
                    const int first, const int from_state, const int add) {
  const int k = ITEM * DEPTH, block = get_global_id(1);
  if (k >= inputs) return;
  input values = START(values) + value_at(k, m, 0), gradients = ITEM_START(gradients) + row_at(block, used * n * SUMS, 0);
  output total = ITEM_START(total) + row_at(block, inputs * GATES, 0);
  UNROLL for (int own = 0; own < GATES; own += TOGETHER) {
    V sums[DEPTH][TOGETHER];
    UNROLL for (int d = 0; d < DEPTH; d++) UNROLL for (int i = 0; i < TOGETHER; i++) sums[d][i] = (V)0;
    for (int slot = begin; slot < end; slot++)
      for (int image = 0; image < n; image++) {
        V g[TOGETHER];
        UNROLL for (int i = 0; i < TOGETHER; i++) {
          const int gate = from_state ? STATE_GATE(own + i) : own + i;
          g[i] = load(gradients + (size_t)((slot * n + image) * SUMS + gate) * BLOCK);
        }
        input row = values + (size_t)(slot * slot_stride + image * image_stride + first) * BLOCK;
        UNROLL for (int d = 0; d < DEPTH; d++) {
          const float v = row[d];
          UNROLL for (int i = 0; i < TOGETHER; i++) sums[d][i] += v * g[i];
        }
      }
    for (int d = 0; d < DEPTH && k + d < inputs; d++)
      UNROLL for (int i = 0; i < TOGETHER; i++) {
        const size_t at = (size_t)((k + d) * GATES + own + i) * BLOCK;
        store(total + at, add ? load(total + at) + sums[d][i] : sums[d][i]);
      }
  }
}

// The gradient of the bias over `used` slots: a row for each gate, of a GRU first those of the input
KERNEL cell_bias(INPUT(gradients), OUTPUT(total), const int n, const int used, const int add) {
  const int rows = CELL == GRU ? 2 * GATES : GATES, row = ITEM, block = get_global_id(1);
  if (row >= rows) return;
  const int gate = row < GATES ? row : STATE_GATE(row - GATES);
  input gradients = ITEM_START(gradients) + row_at(block, used * n * SUMS, 0);
  output total = ITEM_START(total) + row_at(block, rows, row);
  V sum = (V)0;
  for (int i = 0; i < used * n; i++) sum += load(gradients + (size_t)(i * SUMS + gate) * BLOCK);
  store(total, add ? load(total) + sum : sum);
}
