/* The kernels of target c for layers that apply a function to each value, of functions that no other kernel applies. See
   kernels.h. */
#include <math.h>

#include "blocks.h"

static float sigmoid(float v) { return 1.0f / (1.0f + expf(-v)); }
static float softplus(float v) { return (v < 0 ? 0 : v) + log1pf(expf(v < 0 ? v : -v)); }
static float clipped(float v, float limit) { return v > limit ? limit : v < -limit ? -limit : v; }

/* The integral of the normal distribution up to v */
static float normal_integral(float v) { return 0.5f * erfcf(v * -0.70710678f); }

static float value(int function, float v, float a, float b) {
  switch (function) {
    case EL_SOFTPLUS: return softplus(v);
    case EL_EXP: return expf(v);
    case EL_SQRT: return sqrtf(v);
    case EL_RSQRT: return 1.0f / sqrtf(v);
    case EL_RECIPROCAL: return 1.0f / v;
    case EL_LOG: return logf(v);
    case EL_SQUARE: return v * v;
    case EL_ABS: return fabsf(v);
    case EL_GELU: return v * normal_integral(v);
    case EL_GELU_TANH: return v * sigmoid(v * (v * v * 0.0713548163f + 1.59576912f));
    case EL_MISH: return v * tanhf(softplus(v));
    default: return v * a + b;
  }
}

/* The derivative, from the function's output z or its input x, as the layer has it */
static float slope(int function, float z, float a) {
  const float x = z;
  switch (function) {
    case EL_SOFTPLUS: return -expm1f(-z);
    case EL_EXP: return z;
    case EL_SQRT: return 0.5f / z;
    case EL_RSQRT: return -0.5f * (z * z * z);
    case EL_RECIPROCAL: return -(z * z);
    case EL_LOG: return 1.0f / x;
    case EL_SQUARE: return x * 2;
    case EL_ABS: return x < 0 ? -1.0f : x > 0 ? 1.0f : 0.0f;
    case EL_GELU: return normal_integral(x) + x * expf(x * x * -0.5f) * 0.39894228f;
    case EL_GELU_TANH: {
      const float near = clipped(x, 20), square = near * near, s = sigmoid(near * (square * 0.0713548163f + 1.59576912f));
      return s + s * (1.0f - s) * near * (square * 0.214064449f + 1.59576912f);
    }
    case EL_MISH: {
      const float t = tanhf(softplus(x));
      return t + x * (1.0f - t * t) * sigmoid(x);
    }
    default: return a;
  }
}

/* x, y, m, blocks, channels to fill or 0, function, a, b */
void el_function_forward(const el_value *v) {
  const int m = v[2].i, channels = v[4].i;
  int block, row, c;
  for (block = 0; block < v[3].i; block++)
    for (row = 0; row < m; row++) {
      const size_t at = row_at(block, m, row);
      EACH(c)
        v[1].p[at + c] = channels && block * B + c >= channels ? 0.0f : value(v[5].i, v[0].p[at + c], v[6].f, v[7].f);
    }
}

/* output or input, dy, m, blocks, channels to fill or 0, function, a, b, gradient */
void el_function_backward(const el_value *v) {
  const int m = v[2].i, channels = v[4].i;
  const Gradient g = gradient_of(v + 8);
  int block, row, c;
  for (block = 0; block < v[3].i; block++)
    for (row = 0; row < m; row++) {
      const size_t at = row_at(block, m, row);
      float dx[B];
      EACH(c)
        dx[c] = channels && block * B + c >= channels ? 0.0f : v[1].p[at + c] * slope(v[5].i, v[0].p[at + c], v[6].f);
      write_gradient(g, at, dx);
    }
}
