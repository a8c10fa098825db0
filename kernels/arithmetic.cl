// Functions of two operands, either of which may be repeated along images, height, width and channels, as in NumPy. In
// pairs with the names of edgelearn/ops/arithmetic.py: NAME_forward(a, b), and NAME_first(a, b, g) and
// NAME_second(a, b, g), which are g times the derivatives. FUNCTION is NAME_.
#include "elementwise.h"
#include "group_sum.h"

INLINE V add_forward(const V a, const V b) { return a + b; }
INLINE V add_first(const V a, const V b, const V g) { return g; }
INLINE V add_second(const V a, const V b, const V g) { return g; }

INLINE V subtract_forward(const V a, const V b) { return a - b; }
INLINE V subtract_first(const V a, const V b, const V g) { return g; }
INLINE V subtract_second(const V a, const V b, const V g) { return -g; }

INLINE V multiply_forward(const V a, const V b) { return a * b; }
INLINE V multiply_first(const V a, const V b, const V g) { return g * b; }
INLINE V multiply_second(const V a, const V b, const V g) { return g * a; }

INLINE V divide_forward(const V a, const V b) { return a / b; }
INLINE V divide_first(const V a, const V b, const V g) { return g / b; }
INLINE V divide_second(const V a, const V b, const V g) { return -g * (a / b) / b; }

// The first of equal operands has the gradient, as in TensorFlow. A NaN is passed on.
INLINE V maximum_forward(const V a, const V b) { return ((a < b) | (b != b)) ? b : a; }
INLINE V maximum_first(const V a, const V b, const V g) { return a >= b ? g : (V)0; }
INLINE V maximum_second(const V a, const V b, const V g) { return a >= b ? (V)0 : g; }

INLINE V minimum_forward(const V a, const V b) { return ((a > b) | (b != b)) ? b : a; }
INLINE V minimum_first(const V a, const V b, const V g) { return a <= b ? g : (V)0; }
INLINE V minimum_second(const V a, const V b, const V g) { return a <= b ? (V)0 : g; }

INLINE V prelu_forward(const V a, const V b) { return a < (V)0 ? a * b : a; }
INLINE V prelu_first(const V a, const V b, const V g) { return a > (V)0 ? g : g * b; }
INLINE V prelu_second(const V a, const V b, const V g) { return a > (V)0 ? (V)0 : g * a; }

// Comparisons are 1 where they hold, else 0, and have no gradient.
INLINE V greater_forward(const V a, const V b) { return a > b ? (V)1 : (V)0; }
INLINE V greater_first(const V a, const V b, const V g) { return (V)0; }
INLINE V greater_second(const V a, const V b, const V g) { return (V)0; }

INLINE V less_forward(const V a, const V b) { return greater_forward(b, a); }
INLINE V less_first(const V a, const V b, const V g) { return (V)0; }
INLINE V less_second(const V a, const V b, const V g) { return (V)0; }

// The first operand, repeated
INLINE V same_forward(const V a, const V b) { return a; }
INLINE V same_first(const V a, const V b, const V g) { return g; }
INLINE V same_second(const V a, const V b, const V g) { return (V)0; }

// b where the condition a isn't 0, and where it is: their sum is `choose`
INLINE V where_forward(const V a, const V b) { return a != (V)0 ? b : (V)0; }
INLINE V where_first(const V a, const V b, const V g) { return (V)0; }
INLINE V where_second(const V a, const V b, const V g) { return a != (V)0 ? g : (V)0; }

INLINE V otherwise_forward(const V a, const V b) { return a != (V)0 ? (V)0 : b; }
INLINE V otherwise_first(const V a, const V b, const V g) { return (V)0; }
INLINE V otherwise_second(const V a, const V b, const V g) { return a != (V)0 ? (V)0 : g; }

// By the FIRST operand or the second
#if FIRST
#define DERIVATIVE JOIN(FUNCTION, first)
#else
#define DERIVATIVE JOIN(FUNCTION, second)
#endif

// An operand: a step of an image, down or right moves it by so many of its m rows, 0 where it is repeated. KIND_x is
// WHOLE if it has the size of the result, SINGLE if it has one channel and the result more.
#include "operand_kinds.h"
#ifndef KIND_C
#define KIND_C WHOLE
#endif
typedef struct { input_values start; int image, down, right, m, kind; } Operand;
#define OPERAND(x) INPUT_VALUES(x), const int x##_image, const int x##_down, const int x##_right, const int x##_m
#define OPERAND_OF(x, kind) ((Operand){START(x), x##_image, x##_down, x##_right, x##_m, kind})

// Its channels of a block, at a row of the result and the pixel there
INLINE V value_at_pixel(const Operand o, const int block, const int row, const Position p) {
  if (o.kind == WHOLE) return load(o.start + row_at(block, o.m, row) + FIRST_CHANNEL);
  const int own = p.image * o.image + p.y * o.down + p.x * o.right;
  if (o.kind == SINGLE) return (V)float_of(o.start[(size_t)own * BLOCK]);
  return load(o.start + row_at(block, o.m, own) + FIRST_CHANNEL);
}

// y = f(a, b)
KERNEL combine(OPERAND(a), OPERAND(b), OUTPUT_VALUES(y), ROWS_ARGUMENTS PADDING_ARGUMENTS, const int height,
               const int width) {
  const Operand a = OPERAND_OF(a, KIND_A), b = OPERAND_OF(b, KIND_B);
  output_values y = ITEM_START(y);
  const Band band = band_of(m, count);
  SEVERAL for (int row = band.start; row < band.stop; row += band.step) {
    const Position p = position_of(row, height, width);
    const V v = JOIN(FUNCTION, forward)(value_at_pixel(a, band.block, row, p), value_at_pixel(b, band.block, row, p));
    store(y + row_at(band.block, m, row), UNPADDED(v, band.block));
  }
}

// y = c != 0 ? a : b
KERNEL choose(OPERAND(c), OPERAND(a), OPERAND(b), OUTPUT_VALUES(y), ROWS_ARGUMENTS PADDING_ARGUMENTS, const int height,
              const int width) {
  const Operand c = OPERAND_OF(c, KIND_C), a = OPERAND_OF(a, KIND_A), b = OPERAND_OF(b, KIND_B);
  output_values y = ITEM_START(y);
  const Band band = band_of(m, count);
  for (int row = band.start; row < band.stop; row += band.step) {
    const Position p = position_of(row, height, width);
    const V v = value_at_pixel(a, band.block, row, p), w = value_at_pixel(b, band.block, row, p);
    const V chosen = value_at_pixel(c, band.block, row, p) != (V)0 ? v : w;
    store(y + row_at(band.block, m, row), UNPADDED(chosen, band.block));
  }
}

// dx = dy times the derivative by an operand (the FIRST or the second) that has the size of the result
KERNEL combine_gradient(OPERAND(a), OPERAND(b), INPUT_VALUES(dy), ROWS_ARGUMENTS PADDING_ARGUMENTS, const int height,
                        const int width, GRADIENT_ARGUMENTS) {
  const Operand a = OPERAND_OF(a, KIND_A), b = OPERAND_OF(b, KIND_B);
  input_values dy = ITEM_START(dy);
  const Gradient dx = GRADIENT;
  const Band band = band_of(m, count);
  SEVERAL for (int row = band.start; row < band.stop; row += band.step) {
    const Position p = position_of(row, height, width);
    const V v = value_at_pixel(a, band.block, row, p), w = value_at_pixel(b, band.block, row, p);
    const size_t at = row_at(band.block, m, row);
    const V g = load(dy + at);
    const V d = DERIVATIVE(v, w, g);
    write_gradient(dx, at, UNPADDED(d, band.block));
  }
}

#define CHUNK 256  // values added one after the other: a float32 sum of a million has an error of 2e-4

// The same of an operand that is repeated, m rows of images of own_height x own_width: the sum over `images` images of
// `down` x `right` pixels, all that have the same value of the operand. A work-group adds up `count` pixels a member,
// and writes one of `groups` sums, [group][block][row].
KERNEL combine_gradient_sum(OPERAND(a), OPERAND(b), INPUT_VALUES(dy), const int m, const int full, const int channels,
                            const int height, const int width, const int own_height, const int own_width,
                            const int images, const int down, const int right, const int groups, const int count,
                            GRADIENT_ARGUMENTS) {
  LOCAL_SHARES(shares);
  const Operand a = OPERAND_OF(a, KIND_A), b = OPERAND_OF(b, KIND_B);
  input_values dy = ITEM_START(dy);
  const Gradient dx = GRADIENT;
  const int row = get_group_id(0) / groups, group = get_group_id(0) % groups, total = images * down * right;
  const int start = group * MEMBERS * count;
  const int stop = start + MEMBERS * count < total ? start + MEMBERS * count : total;
  const Position own = position_of(row, own_height, own_width);
#if ONE_CHANNEL
  const int first_block = 0, last_block = (channels - 1) / BLOCK;
#else
  const int first_block = get_global_id(1), last_block = first_block;
#endif
  V sum = (V)0;
  for (int chunk = start + ITEM % MEMBERS; chunk < stop; chunk += MEMBERS * CHUNK) {
    const int end = chunk + MEMBERS * CHUNK < stop ? chunk + MEMBERS * CHUNK : stop;
    V part = (V)0;
    SEVERAL for (int k = chunk; k < end; k += MEMBERS) {
      const Position p = {own.image + k / (down * right), own.y + k / right % down, own.x + k % right};
#if WHOLE_IMAGES  // repeated down and right, so that their pixels follow one another
      const int at = own.image * height * width + k;
#else
      const int at = (p.image * height + p.y) * width + p.x;
#endif
      for (int block = first_block; block <= last_block; block++) {
        const V v = value_at_pixel(a, block, at, p), w = value_at_pixel(b, block, at, p);
        const V g = load(dy + row_at(block, full, at));
        const V d = DERIVATIVE(v, w, g);
        part += UNPADDED(d, block);
      }
    }
    sum += part;
  }
  sum = group_sum(sum, shares);
#if ONE_CHANNEL
  float all = 0.0f;
  for (int i = 0; i < BLOCK; i++) all += ELEMENT(sum, i);
  sum = (V)0;
  ELEMENT(sum, 0) = all;
#endif
  const int blocks = get_global_size(1);
  if (IS_FIRST_MEMBER) write_gradient(dx, row_at(group * blocks + get_global_id(1), m, row), sum);
}
