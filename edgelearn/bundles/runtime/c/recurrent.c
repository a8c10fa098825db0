/* The kernels of target c for stretches of steps of an LSTM or a GRU, forward and backward. See kernels.h.

   A state has rows for each image: h, and of an LSTM c. Kernels have a row for each input and gate, input * gates + gate. Slot s
   of a stretch is its step s; sums and gradients of gates are in rows (slot * n + image) * 4 + gate. Gradients of gates have
   four rows in both cells: of a GRU the last two are those of the candidate's part from the input and from the state, which the
   reset gate multiplies. */
#include "blocks.h"

enum { LSTM, GRU };
enum { SUMS = 4 };

static int gates_of(int cell) { return cell == GRU ? 3 : 4; }
static int rows_of_state(int cell) { return cell == GRU ? 1 : 2; }

/* Which of the four sums the state's part of a gate belongs to */
static int state_gate(int cell, int gate) { return cell == GRU && gate == 2 ? 3 : gate; }

/* A stretch of `used` steps, the first of which reads row `place`, and the states before each: that before the first one is 0
   if it isn't there, others are in `states` */
typedef struct {
  const float *before, *states, *mask;
  int n, units, place, direction, used, cell, blocks;
} Stretch;

static Stretch stretch_of(const float *before, const float *states, const float *mask, const el_value *v) {
  const Stretch s = {before, states, mask, v[0].i, v[1].i, v[2].i, v[3].i, v[4].i, v[5].i, (v[1].i + B - 1) / B};
  return s;
}

enum { STRETCH_VALUES = 6 }; /* images, units, place, direction, used, cell */

/* 16 units of an image: the state before and after, gates in the order of their sums, tanh(c) */
typedef struct {
  float h_before[B], c_before[B], gates[SUMS][B], h[B], c[B], squashed[B];
} Cell;

/* `row`: number of a state of a tensor with `m` of them */
static float *state_at(float *states, int sets, int m, int block, int row) {
  return states + row_at(block, m * sets, row * sets);
}

static void read_state(const float *state, int sets, float *h, float *c) {
  memcpy(h, state, B * sizeof *h);
  if (sets == 2) memcpy(c, state + B, B * sizeof *c);
}

static void write_state(float *state, int sets, const float *h, const float *c) {
  memcpy(state, h, B * sizeof *h);
  if (sets == 2) memcpy(state + B, c, B * sizeof *c);
}

/* sums += the products of a row of values with a block of a kernel */
static void add_products(float sums[SUMS][B], int cell, const float *values, int m, int row, const float *w, int inputs,
                         int from_state) {
  const int gates = gates_of(cell);
  int k, g, c;
  for (k = 0; k < inputs; k++) {
    const float value = values[value_at(k, m, row)];
    for (g = 0; g < gates; g++, w += B) {
      float *sum = sums[from_state ? state_gate(cell, g) : g];
      EACH(c) sum[c] += value * w[c];
    }
  }
}

static int has_before(const Stretch *s, int slot) { return slot > 0 || s->before != NULL; }

/* Where the gates of a slot and image are, of a stretch */
static size_t gates_at(const Stretch *s, int slot, int block, int image) {
  return row_at(block, s->used * s->n * SUMS, (slot * s->n + image) * SUMS);
}

/* The number of rows of the states that the one before a slot is among, and its own */
static int states_before(const Stretch *s, int slot) { return (slot ? s->used - 1 : 1) * s->n; }
static int state_before(const Stretch *s, int slot, int image) { return (slot ? (slot - 1) * s->n : 0) + image; }

/* Turn what a slot's gates get from the sequence into the gates */
static void compute_gates(const Stretch *s, const float *recurrent, int slot, int block, int image, float sums[SUMS][B]) {
  static const Function sigmoid = {EL_SIGMOID, 0, 0}, squash = {EL_TANH, 0, 0};
  const int sets = rows_of_state(s->cell);
  const float *before = slot ? s->states : s->before;
  int c;
  if (before)
    add_products(sums, s->cell, before, states_before(s, slot) * sets, state_before(s, slot, image) * sets,
                 recurrent + row_at(block, s->units * gates_of(s->cell), 0), s->units, 1);
  el_apply(sigmoid, sums[0]);
  el_apply(sigmoid, sums[1]);
  if (s->cell == GRU) EACH(c) sums[2][c] += sums[1][c] * sums[3][c];
  else el_apply(sigmoid, sums[3]);
  el_apply(squash, sums[2]);
}

/* The cell of a slot, whose gates are known */
static void compute_cell(const Stretch *s, int slot, int block, int image, Cell *cell) {
  static const Function squash = {EL_TANH, 0, 0};
  const int sets = rows_of_state(s->cell);
  const float *before = slot ? s->states : s->before;
  float(*gates)[B] = cell->gates;
  int c;
  memset(cell->h_before, 0, sizeof cell->h_before);
  memset(cell->c_before, 0, sizeof cell->c_before);
  if (before)
    read_state(before + row_at(block, states_before(s, slot) * sets, state_before(s, slot, image) * sets), sets,
               cell->h_before, cell->c_before);
  if (s->cell == GRU) {
    EACH(c) cell->h[c] = gates[0][c] * cell->h_before[c] + (1.0f - gates[0][c]) * gates[2][c];
  } else {
    EACH(c) cell->squashed[c] = cell->c[c] = gates[1][c] * cell->c_before[c] + gates[0][c] * gates[2][c];
    el_apply(squash, cell->squashed);
    EACH(c) cell->h[c] = gates[3][c] * cell->squashed[c];
  }
}

static int is_left_out(const Stretch *s, int slot, int image) {
  return s->mask && s->mask[value_at(s->place + slot * s->direction, s->n, image)] == 0.0f;
}

/* x, kernel, [bias], sums, images, steps, inputs, place, direction, used, cell, blocks: what gates get from the sequence */
void el_cell_sums(const el_value *v) {
  const int n = v[4].i, steps = v[5].i, inputs = v[6].i, total = v[9].i * n, cell = v[10].i, gates = gates_of(cell);
  const int biases = cell == GRU ? 2 * gates : gates;
  int block, row, g, c;
  for (block = 0; block < v[11].i; block++)
    for (row = 0; row < total; row++) {
      float sums[SUMS][B];
      memset(sums, 0, sizeof sums);
      for (g = 0; v[2].p && g < biases; g++)
        EACH(c) sums[g < gates ? g : state_gate(cell, g - gates)][c] += v[2].p[row_at(block, biases, g) + c];
      add_products(sums, cell, v[0].p, n * steps, row % n * steps + v[7].i + row / n * v[8].i,
                   v[1].p + row_at(block, inputs * gates, 0), inputs, 0);
      memcpy(v[3].p + row_at(block, total * SUMS, row * SUMS), sums, sizeof sums);
    }
}

/* sums, recurrent kernel, [state before], [mask], [states], state after, [gates], stretch */
void el_cell_forward(const el_value *v) {
  const Stretch s = stretch_of(v[2].p, v[4].p, v[3].p, v + 7);
  const int sets = rows_of_state(s.cell);
  int slot, block, image;
  Cell cell;
  for (slot = 0; slot < s.used; slot++)
    for (block = 0; block < s.blocks; block++)
      for (image = 0; image < s.n; image++) {
        const int stays = is_left_out(&s, slot, image);
        float *to = slot == s.used - 1 ? state_at(v[5].p, sets, s.n, block, image)
                                       : state_at(v[4].p, sets, (s.used - 1) * s.n, block, slot * s.n + image);
        memcpy(cell.gates, v[0].p + gates_at(&s, slot, block, image), sizeof cell.gates);
        compute_gates(&s, v[1].p, slot, block, image, cell.gates);
        if (v[6].p) memcpy(v[6].p + gates_at(&s, slot, block, image), cell.gates, sizeof cell.gates);
        compute_cell(&s, slot, block, image, &cell);
        write_state(to, sets, stays ? cell.h_before : cell.h, stays ? cell.c_before : cell.c);
      }
}

/* state after, [states], y, images, rows of y, place, row of a state, used, cell, blocks */
void el_copy_states(const el_value *v) {
  const int n = v[3].i, used = v[7].i, sets = rows_of_state(v[8].i);
  int block, row;
  for (block = 0; block < v[9].i; block++)
    for (row = 0; row < used * n; row++) {
      const float *from = row >= (used - 1) * n ? state_at(v[0].p, sets, n, block, row % n)
                                                : state_at(v[1].p, sets, (used - 1) * n, block, row);
      memcpy(v[2].p + row_at(block, n * v[4].i, row % n * v[4].i + v[5].i + row / n), from + v[6].i * B, B * sizeof *from);
    }
}

/* The gradients of the gates' sums, and of the state before without what passes through the gates, from those of the state
   after, h and c */
static void backward(const Cell *s, int cell, const float *dh, const float *dc, float g[SUMS][B], float *h, float *c_before) {
  const float *a = s->gates[0], *b = s->gates[1], *candidate = s->gates[2], *d = s->gates[3];
  int c;
  if (cell == GRU)
    EACH(c) {
      g[0][c] = dh[c] * (s->h_before[c] - candidate[c]) * a[c] * (1.0f - a[c]);
      g[2][c] = dh[c] * (1.0f - a[c]) * (1.0f - candidate[c] * candidate[c]);
      g[1][c] = g[2][c] * d[c] * b[c] * (1.0f - b[c]);
      g[3][c] = g[2][c] * b[c];
      h[c] = dh[c] * a[c];
      c_before[c] = 0;
    }
  else
    EACH(c) {
      const float own = dc[c] + dh[c] * d[c] * (1.0f - s->squashed[c] * s->squashed[c]);
      g[0][c] = own * candidate[c] * a[c] * (1.0f - a[c]);
      g[1][c] = own * s->c_before[c] * b[c] * (1.0f - b[c]);
      g[2][c] = own * a[c] * (1.0f - candidate[c] * candidate[c]);
      g[3][c] = dh[c] * s->squashed[c] * d[c] * (1.0f - d[c]);
      h[c] = 0;
      c_before[c] = own * b[c];
    }
}

/* kernel, turned kernel, inputs, units, cell, blocks: units * gates rows of the inputs */
void el_turn_kernel(const el_value *v) {
  const int inputs = v[2].i, units = v[3].i, gates = gates_of(v[4].i);
  int block, row, c;
  for (block = 0; block < v[5].i; block++)
    for (row = 0; row < units * gates; row++)
      EACH(c) {
        const int k = block * B + c;
        v[1].p[row_at(block, units * gates, row) + c] =
            k < inputs ? v[0].p[value_at(row / gates, inputs * gates, k * gates + row % gates)] : 0.0f;
      }
}

/* sum = the products of a row of gates' gradients with a block of a turned kernel */
static void through_gates(float *sum, int cell, const float *gradients, int m, int row, const float *turned, int units,
                          int to_state) {
  const int gates = gates_of(cell);
  int unit, g, c;
  EACH(c) sum[c] = 0;
  for (unit = 0; unit < units; unit++)
    for (g = 0; g < gates; g++, turned += B) {
      const float value = gradients[value_at(unit, m * SUMS, row * SUMS + (to_state ? state_gate(cell, g) : g))];
      EACH(c) sum[c] += value * turned[c];
    }
}

/* gates, turned kernel, [state before], [states], [mask], [dy], [gradient of the state after], gradients of gates, gradient
   of the state before, stretch, number of its first step, steps, truncate, rows of dy, rows of the gradient of the state after,
   its first row, dy has all steps */
void el_cell_backward(const el_value *v) {
  const Stretch s = stretch_of(v[2].p, v[3].p, v[4].p, v + 9);
  const el_value *w = v + 9 + STRETCH_VALUES;
  const int sets = rows_of_state(s.cell), first = w[0].i, truncate = w[2].i, rows = w[3].i;
  int slot, block, image, c;
  Cell cell;
  for (slot = s.used - 1; slot >= 0; slot--) {
    const int cut = first + slot && truncate && (first + slot) % truncate == 0;
    for (block = 0; block < s.blocks; block++)
      for (image = 0; image < s.n; image++) {
        float dh[B] = {0}, dc[B] = {0}, h[B], c_before[B], gates[SUMS][B], *earlier = state_at(v[8].p, sets, s.n, block, image);
        memcpy(cell.gates, v[0].p + gates_at(&s, slot, block, image), sizeof cell.gates);
        compute_cell(&s, slot, block, image, &cell);
        if (slot < s.used - 1) read_state(earlier, sets, dh, dc);
        else if (v[6].p) read_state(v[6].p + row_at(block, s.n * w[4].i, image * w[4].i + w[5].i), sets, dh, dc);
        if (v[5].p && (w[6].i || first + slot == w[1].i - 1)) {
          const float *dy = v[5].p + row_at(block, s.n * rows, image * rows + (w[6].i ? first + slot : 0));
          EACH(c) dh[c] += dy[c];
        }
        backward(&cell, s.cell, dh, dc, gates, h, c_before);
        if (is_left_out(&s, slot, image)) {
          memset(gates, 0, sizeof gates);
          memcpy(h, dh, sizeof h);
          memcpy(c_before, dc, sizeof c_before);
        }
        memcpy(v[7].p + gates_at(&s, slot, block, image), gates, sizeof gates);
        write_state(earlier, sets, h, c_before);
      }
    for (block = 0; (cut || has_before(&s, slot)) && block < s.blocks; block++)
      for (image = 0; image < s.n; image++) {
        float *earlier = state_at(v[8].p, sets, s.n, block, image), sum[B];
        if (cut) memset(earlier, 0, (size_t)sets * B * sizeof *earlier);
        else {
          through_gates(sum, s.cell, v[7].p, s.used * s.n, slot * s.n + image,
                        v[1].p + row_at(block, s.units * gates_of(s.cell), 0), s.units, 1);
          EACH(c) earlier[c] += sum[c];
        }
      }
  }
}

/* gradients of gates, turned kernel, images, units, used slots, steps, first row, rows from slot to slot, cell, blocks,
   gradient */
void el_cell_backward_input(const el_value *v) {
  const int n = v[2].i, units = v[3].i, total = v[4].i * n, steps = v[5].i, cell = v[8].i;
  const Gradient g = gradient_of(v + 10);
  int block, row;
  for (block = 0; block < v[9].i; block++)
    for (row = 0; row < total; row++) {
      float sum[B];
      through_gates(sum, cell, v[0].p, total, row, v[1].p + row_at(block, units * gates_of(cell), 0), units, 0);
      write_gradient(g, row_at(block, n * steps, row % n * steps + v[6].i + row / n * v[7].i), sum);
    }
}

/* values, gradients of gates, gradient of the kernel, images, inputs, used slots, first slot, one behind the last, m, rows of
   values from slot to slot, from image to image, first row, from the state, add, cell, blocks */
void el_cell_weights(const el_value *v) {
  const int n = v[3].i, inputs = v[4].i, cell = v[14].i, gates = gates_of(cell);
  int block, k, slot, image, g, c;
  for (block = 0; block < v[15].i; block++) {
    const float *gradients = v[1].p + row_at(block, v[5].i * n * SUMS, 0);
    for (k = 0; k < inputs; k++) {
      float *total = v[2].p + row_at(block, inputs * gates, k * gates), sums[SUMS][B];
      memset(sums, 0, sizeof sums);
      for (slot = v[6].i; slot < v[7].i; slot++)
        for (image = 0; image < n; image++) {
          const float value = v[0].p[value_at(k, v[8].i, slot * v[9].i + image * v[10].i + v[11].i)];
          for (g = 0; g < gates; g++) {
            const float *own = gradients + ((size_t)(slot * n + image) * SUMS + (v[12].i ? state_gate(cell, g) : g)) * B;
            EACH(c) sums[g][c] += value * own[c];
          }
        }
      for (g = 0; g < gates; g++) EACH(c) total[g * B + c] = v[13].i ? total[g * B + c] + sums[g][c] : sums[g][c];
    }
  }
}

/* gradients of gates, gradient of the bias, images, used slots, add, cell, blocks: a row for each gate, of a GRU first
   those of the input */
void el_cell_bias(const el_value *v) {
  const int n = v[2].i, cell = v[5].i, gates = gates_of(cell), rows = cell == GRU ? 2 * gates : gates;
  int block, row, i, c;
  for (block = 0; block < v[6].i; block++)
    for (row = 0; row < rows; row++) {
      const int gate = row < gates ? row : state_gate(cell, row - gates);
      float *total = v[1].p + row_at(block, rows, row), sum[B] = {0};
      for (i = 0; i < v[3].i * n; i++) {
        const float *own = v[0].p + row_at(block, v[3].i * n * SUMS, i * SUMS + gate);
        EACH(c) sum[c] += own[c];
      }
      EACH(c) total[c] = v[4].i ? total[c] + sum[c] : sum[c];
    }
}
