/* The kernels of target c for layers that most small networks don't have: dropout, arithmetic with broadcasting,
   concatenation, zero padding. See kernels.h. */
#include "blocks.h"

/* x, scalars, counters, m, blocks, images, pixels that are drawn for, layer, rate, scale, gradient. The same bits as the
   OpenCL kernel: they depend on the example, not on the micro-batch. */
void el_dropout(const el_value *v) {
  const int m = v[3].i, blocks = v[4].i, pixels = m / v[5].i, drawn = v[6].i, before = (int)v[2].p[SEEN];
  const uint32_t *scalars = (const uint32_t *)(const void *)v[1].p;
  const Gradient g = gradient_of(v + 10);
  int block, row, c;
  for (block = 0; block < blocks; block++)
    for (row = 0; row < m; row++) {
      const size_t at = row_at(block, m, row);
      float dx[B];
      for (c = 0; c < B; c += 4) {
        uint32_t words[4] = {(uint32_t)(row % drawn * blocks + block) * (B / 4) + (uint32_t)c / 4,
                             (uint32_t)(before + row / pixels), (uint32_t)v[7].i, scalars[STEP]};
        int i;
        el_philox(words, scalars[SEED], scalars[SEED_HIGH], 10);
        for (i = 0; i < 4; i++)
          dx[c + i] = v[0].p[at + c + i] * ((float)(words[i] >> 8) * (1.0f / 16777216) >= v[8].f ? v[9].f : 0.0f);
      }
      write_gradient(g, at, dx);
    }
}

/* -- functions of two operands, either of which may be repeated along images, height, width and channels -- */

static float combined(int function, float a, float b) {
  switch (function) {
    case EL_SUBTRACT: return a - b;
    case EL_MULTIPLY: return a * b;
    case EL_DIVIDE: return a / b;
    case EL_MAXIMUM: return a < b || b != b ? b : a;
    case EL_MINIMUM: return a > b || b != b ? b : a;
    case EL_PRELU: return a < 0 ? a * b : a;
    case EL_GREATER: return a > b ? 1.0f : 0.0f;
    case EL_LESS: return a < b ? 1.0f : 0.0f;
    case EL_SAME: return a;
    case EL_WHERE: return a != 0 ? b : 0.0f;
    case EL_OTHERWISE: return a != 0 ? 0.0f : b;
    default: return a + b;
  }
}

/* g times the derivative by the first operand or by the second */
static float derivative(int function, int first, float a, float b, float g) {
  switch (function) {
    case EL_SUBTRACT: return first ? g : -g;
    case EL_MULTIPLY: return g * (first ? b : a);
    case EL_DIVIDE: return first ? g / b : -g * (a / b) / b;
    case EL_MAXIMUM: return (a >= b) == first ? g : 0;
    case EL_MINIMUM: return (a <= b) == first ? g : 0;
    case EL_PRELU: return first ? (a > 0 ? g : g * b) : a > 0 ? 0 : g * a;
    case EL_GREATER:
    case EL_LESS: return 0;
    case EL_SAME: return first ? g : 0;
    case EL_WHERE: return !first && a != 0 ? g : 0;
    case EL_OTHERWISE: return first || a != 0 ? 0 : g;
    default: return g;
  }
}

/* An operand. A step of an image, down or right moves it by so many of its m rows, 0 where it is repeated. Arguments,
   6: values, image, down, right, m, kind (0: it has the size of the result; 2: it has one channel and the result more) */
typedef struct {
  const float *values;
  int image, down, right, m, kind;
} Operand;

static Operand operand_of(const el_value *v) {
  const Operand o = {v[0].p, v[1].i, v[2].i, v[3].i, v[4].i, v[5].i};
  return o;
}

/* A channel at a row of the result, which is a pixel of an image */
static float value_of(const Operand *o, int block, int c, int row, int image, int y, int x) {
  const int own = o->kind == 0 ? row : image * o->image + y * o->down + x * o->right;
  return o->kind == 2 ? o->values[(size_t)own * B] : o->values[row_at(block, o->m, own) + c];
}

/* Two operands, y, m, blocks, channels to fill or 0, height, width, function */
void el_combine(const el_value *v) {
  const Operand a = operand_of(v), b = operand_of(v + 6);
  const int m = v[13].i, channels = v[15].i, height = v[16].i, width = v[17].i;
  int block, row, c;
  for (block = 0; block < v[14].i; block++)
    for (row = 0; row < m; row++) {
      const int image = row / (height * width), y = row / width % height, x = row % width;
      float *to = v[12].p + row_at(block, m, row);
      EACH(c) {
        to[c] = combined(v[18].i, value_of(&a, block, c, row, image, y, x), value_of(&b, block, c, row, image, y, x));
        if (channels && block * B + c >= channels) to[c] = 0;
      }
    }
}

/* A condition (as an operand), two operands, y, m, blocks, channels to fill or 0, height, width */
void el_choose(const el_value *v) {
  const Operand condition = operand_of(v), a = operand_of(v + 6), b = operand_of(v + 12);
  const int m = v[19].i, channels = v[21].i, height = v[22].i, width = v[23].i;
  int block, row, c;
  for (block = 0; block < v[20].i; block++)
    for (row = 0; row < m; row++) {
      const int image = row / (height * width), y = row / width % height, x = row % width;
      float *to = v[18].p + row_at(block, m, row);
      EACH(c) {
        to[c] = value_of(value_of(&condition, block, c, row, image, y, x) != 0 ? &a : &b, block, c, row, image, y, x);
        if (channels && block * B + c >= channels) to[c] = 0;
      }
    }
}

/* Two operands, dy, m, blocks, channels to fill or 0, height, width, function, by the first, gradient */
void el_combine_gradient(const el_value *v) {
  const Operand a = operand_of(v), b = operand_of(v + 6);
  const Gradient g = gradient_of(v + 20);
  const int m = v[13].i, channels = v[15].i, height = v[16].i, width = v[17].i;
  int block, row, c;
  for (block = 0; block < v[14].i; block++)
    for (row = 0; row < m; row++) {
      const int image = row / (height * width), y = row / width % height, x = row % width;
      const size_t at = row_at(block, m, row);
      float dx[B];
      EACH(c) {
        const float first = value_of(&a, block, c, row, image, y, x), second = value_of(&b, block, c, row, image, y, x);
        dx[c] = derivative(v[18].i, v[19].i, first, second, v[12].p[at + c]);
        if (channels && block * B + c >= channels) dx[c] = 0;
      }
      write_gradient(g, at, dx);
    }
}

enum { CHUNK = 256 }; /* values that are summed by themselves */

/* The same of an operand that is repeated: the sum over `images` images of down x right pixels, and of one that has one
   channel over the channels. Two operands, dy, m of dx, m of dy, blocks of dx, channels of dy, the last of them are filled, one
   channel, height, width, own height, own width, images, down, right, groups, pixels a group, function, by the first,
   gradient */
void el_combine_gradient_sum(const el_value *v) {
  const Operand a = operand_of(v), b = operand_of(v + 6);
  const Gradient target = gradient_of(v + 30);
  const int m = v[13].i, full = v[14].i, blocks = v[15].i, channels = v[16].i, one = v[18].i;
  const int filled = v[17].i || one ? channels : blocks * B;
  const int height = v[19].i, width = v[20].i, own_height = v[21].i, own_width = v[22].i, down = v[24].i, right = v[25].i;
  const int groups = v[26].i, count = v[27].i, total = v[23].i * down * right;
  int group, block, row, start, k, channel;
  for (group = 0; group < groups; group++)
    for (block = 0; block < blocks; block++)
      for (row = 0; row < m; row++) {
        const int stop = smaller((group + 1) * count, total), first = block * B;
        float sum[B] = {0};
        for (start = group * count; start < stop; start += CHUNK) {
          float part[B] = {0};
          for (k = start; k < smaller(start + CHUNK, stop); k++) {
            const int image = row / (own_height * own_width) + k / (down * right);
            const int y = row / own_width % own_height + k / right % down, x = row % own_width + k % right;
            const int at = (image * height + y) * width + x;
            for (channel = first; channel < (one ? filled : smaller(first + B, filled)); channel++) {
              const int own_block = channel / B, c = channel % B;
              const float g = v[12].p[value_at(channel, full, at)];
              const float a_value = value_of(&a, own_block, c, at, image, y, x);
              const float b_value = value_of(&b, own_block, c, at, image, y, x);
              part[one ? 0 : c] += derivative(v[28].i, v[29].i, a_value, b_value, g);
            }
          }
          for (channel = 0; channel < B; channel++) sum[channel] += part[channel];
        }
        write_gradient(target, row_at(group * blocks + block, m, row), sum);
      }
}

/* -- images with one row or one column, repeated along it, and summed backward: from_h x from_w pixels become height x
   width -- */

/* x, m, blocks, from_h, from_w, height, width, factor, gradient */
void el_repeat(const el_value *v) {
  const int m = v[1].i, from_h = v[3].i, from_w = v[4].i, height = v[5].i, width = v[6].i;
  const Gradient g = gradient_of(v + 8);
  int block, row, c;
  for (block = 0; block < v[2].i; block++)
    for (row = 0; row < m; row++) {
      const int image = row / (height * width), y = from_h == 1 ? 0 : row / width % height;
      const int from = (image * from_h + y) * from_w + (from_w == 1 ? 0 : row % width);
      const float *x = v[0].p + row_at(block, m / (height * width) * from_h * from_w, from);
      float dx[B];
      EACH(c) dx[c] = x[c] * v[7].f;
      write_gradient(g, row_at(block, m, row), dx);
    }
}

/* x, m, blocks, from_h, from_w, height, width, factor, gradient */
void el_sum_repeated(const el_value *v) {
  const int m = v[1].i, from_h = v[3].i, from_w = v[4].i, height = v[5].i, width = v[6].i;
  const int down = height == 1 ? from_h : 1, right = width == 1 ? from_w : 1;
  const Gradient g = gradient_of(v + 8);
  int block, row, y, i, c;
  for (block = 0; block < v[2].i; block++)
    for (row = 0; row < m; row++) {
      const int from = (row / (height * width) * from_h + row / width % height) * from_w + row % width;
      const float *x = v[0].p + row_at(block, m / (height * width) * from_h * from_w, from);
      float sum[B] = {0};
      for (y = 0; y < down; y++)
        for (i = 0; i < right; i++) EACH(c) sum[c] += x[((size_t)y * from_w + i) * B + c];
      EACH(c) sum[c] *= v[7].f;
      write_gradient(g, row_at(block, m, row), sum);
    }
}

/* -- concatenation and padding -- */

/* x, y, m, blocks of y that x reaches, channels of x, offset: channels `offset` and following of y = x, then zeros */
void el_concatenate_forward(const el_value *v) {
  const int m = v[2].i, channels = v[4].i, offset = v[5].i, last = (offset / B + v[3].i) * B;
  int row, c;
  for (row = 0; row < m; row++)
    for (c = offset; c < last; c++)
      v[1].p[value_at(c, m, row)] = c - offset < channels ? v[0].p[value_at(c - offset, m, row)] : 0.0f;
}

/* dy, m, blocks of dx, channels of dx, offset, gradient */
void el_concatenate_backward(const el_value *v) {
  const int m = v[1].i, channels = v[3].i, offset = v[4].i;
  const Gradient g = gradient_of(v + 5);
  int block, row, c;
  for (block = 0; block < v[2].i; block++)
    for (row = 0; row < m; row++) {
      float dx[B] = {0};
      for (c = 0; c < smaller(B, channels - block * B); c++) dx[c] = v[0].p[value_at(offset + block * B + c, m, row)];
      write_gradient(g, row_at(block, m, row), dx);
    }
}

/* x, m, blocks, from_height, from_width, height, width, down, right, gradient: an image in a frame of another size */
void el_move_image(const el_value *v) {
  const int m = v[1].i, from_height = v[3].i, from_width = v[4].i, height = v[5].i, width = v[6].i;
  const Gradient g = gradient_of(v + 9);
  int block, row;
  for (block = 0; block < v[2].i; block++)
    for (row = 0; row < m; row++) {
      const int y = row / width % height + v[7].i, x = row % width + v[8].i, images = m / (height * width);
      const size_t plane = ((size_t)block * images + row / (height * width)) * from_height * from_width;
      float dx[B] = {0};
      if (y >= 0 && y < from_height && x >= 0 && x < from_width)
        memcpy(dx, v[0].p + (plane + (size_t)y * from_width + x) * B, sizeof dx);
      write_gradient(g, row_at(block, m, row), dx);
    }
}
