// Local response normalization: y = x * s^-beta with s = bias + alpha * the sum of squares over neighbouring channels,
// those from `before` before a channel to `after` after it.
#include "elementwise.h"

#define RESPONSE_ARGUMENTS const int channels, const int before, const int after, const float bias, const float alpha, \
                           const float beta

// The sum over the channels from c - before to c + after of a row's values, or of their squares
INLINE float window_sum(input x, const int m, const int row, const int channels, const int c, const int before,
                        const int after, const int squares) {
  const int first = c < before ? 0 : c - before, last = c + after < channels ? c + after : channels - 1;
  float sum = 0.0f;
  for (int i = first; i <= last; i++) {
    const float v = x[value_at(i, m, row)];
    sum += squares ? v * v : v;
  }
  return sum;
}

// s of the channels of a work-item, 1 in the padding
INLINE V response(input x, const int m, const int row, const int block, const int channels, const int before,
                  const int after, const float bias, const float alpha) {
  V s = (V)1;
  for (int i = 0; i < VECTOR_WIDTH; i++) {
    const int c = block * BLOCK + FIRST_CHANNEL + i;
    if (c < channels) ELEMENT(s, i) = bias + alpha * window_sum(x, m, row, channels, c, before, after, 1);
  }
  return s;
}

// s^-beta; that of AlexNet, 0.75, by square roots, which vectors have
INLINE V power(V s, const float beta) {
  if (beta == 0.75f) return (V)1 / sqrt(s * sqrt(s));
  for (int i = 0; i < VECTOR_WIDTH; i++) ELEMENT(s, i) = pow(ELEMENT(s, i), -beta);
  return s;
}

KERNEL local_response_forward(INPUT(x), OUTPUT(y), ROWS_ARGUMENTS, RESPONSE_ARGUMENTS) {
  input x = START(x);
  output y = ITEM_START(y);
  const Band band = band_of(m, count);
  for (int row = band.start; row < band.stop; row += band.step) {
    const size_t at = row_at(band.block, m, row);
    const V s = response(x, m, row, band.block, channels, before, after, bias, alpha);
    store(y + at, load(x + at + FIRST_CHANNEL) * power(s, beta));
  }
}

// terms = dy * x * s^(-beta - 1)
KERNEL local_response_terms(INPUT(x), INPUT(dy), OUTPUT(terms), ROWS_ARGUMENTS, RESPONSE_ARGUMENTS) {
  input x = START(x), dy = ITEM_START(dy);
  output terms = ITEM_START(terms);
  const Band band = band_of(m, count);
  for (int row = band.start; row < band.stop; row += band.step) {
    const size_t at = row_at(band.block, m, row);
    const V s = response(x, m, row, band.block, channels, before, after, bias, alpha);
    store(terms + at, load(dy + at) * load(x + at + FIRST_CHANNEL) * power(s, beta) / s);
  }
}

// dx = dy * s^-beta - 2 alpha beta x * the sum of the terms of the channels whose windows hold this one
KERNEL local_response_backward(INPUT(x), INPUT(dy), INPUT(terms), ROWS_ARGUMENTS, RESPONSE_ARGUMENTS,
                               GRADIENT_ARGUMENTS) {
  input x = START(x), dy = ITEM_START(dy), terms = START(terms);
  const Gradient dx = GRADIENT;
  const Band band = band_of(m, count);
  for (int row = band.start; row < band.stop; row += band.step) {
    const size_t at = row_at(band.block, m, row);
    const V s = response(x, m, row, band.block, channels, before, after, bias, alpha);
    V sum = (V)0;
    for (int i = 0; i < VECTOR_WIDTH; i++) {
      const int c = band.block * BLOCK + FIRST_CHANNEL + i;
      if (c < channels) ELEMENT(sum, i) = window_sum(terms, m, row, channels, c, after, before, 0);
    }
    const V own = load(x + at + FIRST_CHANNEL) * sum * (2.0f * alpha * beta);
    write_gradient(dx, at, load(dy + at) * power(s, beta) - own);
  }
}
