/* The kernels of target c for steps of an LSTM or a GRU, forward and backward. See kernels.h.

   A state has rows for each image: h, and of an LSTM c. Kernels have a row for each input and gate, input * gates + gate.
   Gradients of gates have four rows in both cells: of a GRU the last two are those of the candidate's part from the input
   and from the state, which the reset gate multiplies. */
#include "blocks.h"

enum { LSTM, GRU };
enum { SUMS = 4 };

static int gates_of(int cell) { return cell == GRU ? 3 : 4; }
static int rows_of_state(int cell) { return cell == GRU ? 1 : 2; }

/* Which of the four sums the state's part of a gate belongs to */
static int state_gate(int cell, int gate) { return cell == GRU && gate == 2 ? 3 : gate; }

/* A step. Arguments in this order, twelve: x, kernel, recurrent kernel, [bias], [state before], [mask], images, steps, row of
   this step, inputs, units, cell */
typedef struct {
  const float *x, *kernel, *recurrent, *bias, *before, *mask;
  int n, steps, place, inputs, units, cell, blocks;
} CellStep;

enum { STEP_VALUES = 12 };

static CellStep step_of(const el_value *v) {
  const CellStep s = {v[0].p, v[1].p, v[2].p, v[3].p, v[4].p, v[5].p, v[6].i, v[7].i, v[8].i, v[9].i, v[10].i, v[11].i,
                      (v[10].i + B - 1) / B};
  return s;
}

/* 16 units of an image: the state before and after, gates in the order of their sums, tanh(c) */
typedef struct {
  float h_before[B], c_before[B], gates[SUMS][B], h[B], c[B], squashed[B];
} Cell;

static void read_state(const float *state, int sets, int n, int block, int image, float *h, float *c) {
  memcpy(h, state + row_at(block, n * sets, image * sets), B * sizeof *h);
  if (sets == 2) memcpy(c, state + row_at(block, n * sets, image * sets + 1), B * sizeof *c);
}

static void write_state(float *state, int sets, int n, int block, int image, const float *h, const float *c) {
  memcpy(state + row_at(block, n * sets, image * sets), h, B * sizeof *h);
  if (sets == 2) memcpy(state + row_at(block, n * sets, image * sets + 1), c, B * sizeof *c);
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

static void compute_cell(const CellStep *s, int block, int image, Cell *cell) {
  static const Function sigmoid = {EL_SIGMOID, 0, 0}, squash = {EL_TANH, 0, 0};
  const int gates = gates_of(s->cell), sets = rows_of_state(s->cell);
  float(*sums)[B] = cell->gates;
  int g, c;
  memset(cell, 0, sizeof *cell);
  for (g = 0; s->bias && g < (s->cell == GRU ? 2 * gates : gates); g++) {
    const float *bias = s->bias + row_at(block, s->cell == GRU ? 2 * gates : gates, g);
    float *sum = sums[g < gates ? g : state_gate(s->cell, g - gates)];
    EACH(c) sum[c] += bias[c];
  }
  add_products(sums, s->cell, s->x, s->n * s->steps, image * s->steps + s->place, s->kernel + row_at(block, s->inputs * gates, 0),
               s->inputs, 0);
  if (s->before) {
    add_products(sums, s->cell, s->before, s->n * sets, image * sets, s->recurrent + row_at(block, s->units * gates, 0),
                 s->units, 1);
    read_state(s->before, sets, s->n, block, image, cell->h_before, cell->c_before);
  }
  el_apply(sigmoid, sums[0]);
  el_apply(sigmoid, sums[1]);
  if (s->cell == GRU) {
    EACH(c) sums[2][c] += sums[1][c] * sums[3][c];
    el_apply(squash, sums[2]);
    EACH(c) cell->h[c] = sums[0][c] * cell->h_before[c] + (1.0f - sums[0][c]) * sums[2][c];
  } else {
    el_apply(squash, sums[2]);
    el_apply(sigmoid, sums[3]);
    EACH(c) cell->squashed[c] = cell->c[c] = sums[1][c] * cell->c_before[c] + sums[0][c] * sums[2][c];
    el_apply(squash, cell->squashed);
    EACH(c) cell->h[c] = sums[3][c] * cell->squashed[c];
  }
}

static int is_left_out(const CellStep *s, int image) {
  return s->mask && s->mask[value_at(s->place, s->n, image)] == 0.0f;
}

/* step, state after */
void el_cell_forward(const el_value *v) {
  const CellStep s = step_of(v);
  int block, image;
  Cell cell;
  for (block = 0; block < s.blocks; block++)
    for (image = 0; image < s.n; image++) {
      const int stays = is_left_out(&s, image);
      compute_cell(&s, block, image, &cell);
      write_state(v[STEP_VALUES].p, rows_of_state(s.cell), s.n, block, image, stays ? cell.h_before : cell.h,
                  stays ? cell.c_before : cell.c);
    }
}

/* state, y, images, rows of y, row, row of the state, cell, blocks */
void el_copy_state(const el_value *v) {
  const int n = v[2].i, sets = rows_of_state(v[6].i);
  int block, image;
  for (block = 0; block < v[7].i; block++)
    for (image = 0; image < n; image++)
      memcpy(v[1].p + row_at(block, n * v[3].i, image * v[3].i + v[4].i),
             v[0].p + row_at(block, n * sets, image * sets + v[5].i), B * sizeof(float));
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

/* step, [dy], [gradient of the state after], gradients of gates, states before, [gradient of the state before], slot, slots,
   rows of dy, row, rows of the gradient of the state after, first row */
void el_cell_backward(const el_value *v) {
  const CellStep s = step_of(v);
  const el_value *w = v + STEP_VALUES;
  const int sets = rows_of_state(s.cell), slot = w[5].i, slots = w[6].i;
  int block, image, g, c;
  Cell cell;
  for (block = 0; block < s.blocks; block++)
    for (image = 0; image < s.n; image++) {
      float dh[B] = {0}, dc[B] = {0}, h[B], c_before[B], gates[SUMS][B];
      const int row = slot * s.n + image;
      compute_cell(&s, block, image, &cell);
      if (w[1].p) {
        const float *later = w[1].p + row_at(block, s.n * w[9].i, image * w[9].i + w[10].i);
        memcpy(dh, later, sizeof dh);
        if (sets == 2) memcpy(dc, later + B, sizeof dc);
      }
      if (w[0].p) {
        const float *dy = w[0].p + row_at(block, s.n * w[7].i, image * w[7].i + w[8].i);
        EACH(c) dh[c] += dy[c];
      }
      backward(&cell, s.cell, dh, dc, gates, h, c_before);
      if (is_left_out(&s, image)) {
        memset(gates, 0, sizeof gates);
        memcpy(h, dh, sizeof h);
        memcpy(c_before, dc, sizeof c_before);
      }
      for (g = 0; g < SUMS; g++)
        memcpy(w[2].p + row_at(block, slots * s.n * SUMS, row * SUMS + g), gates[g], sizeof gates[g]);
      memcpy(w[3].p + row_at(block, slots * s.n, row), cell.h_before, sizeof cell.h_before);
      if (w[4].p) write_state(w[4].p, sets, s.n, block, image, h, c_before);
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

/* gradients of gates, turned kernel, gradient of the state before, images, units, slot, slots, cell, blocks */
void el_cell_backward_state(const el_value *v) {
  const int n = v[3].i, units = v[4].i, cell = v[7].i, sets = rows_of_state(cell);
  int block, image, c;
  for (block = 0; block < v[8].i; block++)
    for (image = 0; image < n; image++) {
      float *h = v[2].p + row_at(block, n * sets, image * sets), sum[B];
      through_gates(sum, cell, v[0].p, v[6].i * n, v[5].i * n + image,
                    v[1].p + row_at(block, units * gates_of(cell), 0), units, 1);
      EACH(c) h[c] += sum[c];
    }
}

/* gradients of gates, turned kernel, images, units, slots, used slots, steps, first row, rows from slot to slot, cell,
   blocks, gradient */
void el_cell_backward_input(const el_value *v) {
  const int n = v[2].i, units = v[3].i, steps = v[6].i, cell = v[9].i;
  const Gradient g = gradient_of(v + 11);
  int block, row;
  for (block = 0; block < v[10].i; block++)
    for (row = 0; row < v[5].i * n; row++) {
      float sum[B];
      through_gates(sum, cell, v[0].p, v[4].i * n, row, v[1].p + row_at(block, units * gates_of(cell), 0), units, 0);
      write_gradient(g, row_at(block, n * steps, row % n * steps + v[7].i + row / n * v[8].i), sum);
    }
}

/* values, gradients of gates, gradient of the kernel, images, inputs, slots, used slots, m, rows of values from slot to slot,
   from image to image, first row, from the state, add, cell, blocks */
void el_cell_weights(const el_value *v) {
  const int n = v[3].i, inputs = v[4].i, cell = v[13].i, gates = gates_of(cell);
  int block, k, slot, image, g, c;
  for (block = 0; block < v[14].i; block++) {
    const float *gradients = v[1].p + row_at(block, v[5].i * n * SUMS, 0);
    for (k = 0; k < inputs; k++) {
      float *total = v[2].p + row_at(block, inputs * gates, k * gates), sums[SUMS][B];
      memset(sums, 0, sizeof sums);
      for (slot = 0; slot < v[6].i; slot++)
        for (image = 0; image < n; image++) {
          const float value = v[0].p[value_at(k, v[7].i, slot * v[8].i + image * v[9].i + v[10].i)];
          for (g = 0; g < gates; g++) {
            const float *own = gradients + ((size_t)(slot * n + image) * SUMS + (v[11].i ? state_gate(cell, g) : g)) * B;
            EACH(c) sums[g][c] += value * own[c];
          }
        }
      for (g = 0; g < gates; g++) EACH(c) total[g * B + c] = v[12].i ? total[g * B + c] + sums[g][c] : sums[g][c];
    }
  }
}

/* gradients of gates, gradient of the bias, images, slots, used slots, add, cell, blocks: a row for each gate, of a GRU first
   those of the input */
void el_cell_bias(const el_value *v) {
  const int n = v[2].i, cell = v[6].i, gates = gates_of(cell), rows = cell == GRU ? 2 * gates : gates;
  int block, row, i, c;
  for (block = 0; block < v[7].i; block++)
    for (row = 0; row < rows; row++) {
      const int gate = row < gates ? row : state_gate(cell, row - gates);
      float *total = v[1].p + row_at(block, rows, row), sum[B] = {0};
      for (i = 0; i < v[4].i * n; i++) {
        const float *own = v[0].p + row_at(block, v[3].i * n * SUMS, i * SUMS + gate);
        EACH(c) sum[c] += own[c];
      }
      EACH(c) total[c] = v[5].i ? total[c] + sum[c] : sum[c];
    }
}
