/* Element-wise functions on blocks; the derivative is taken from the output, that of SILU and HARD_SWISH from the input. */
#include <math.h>

#include "blocks.h"

static float sigmoid(float v) { return 1.0f / (1.0f + expf(-v)); }
static float clipped(float v, float low, float high) { return v < low ? low : v > high ? high : v; }

void el_apply(const Function f, float *y) {
  int c;
  switch (f.name) {
    case EL_RELU: EACH(c) y[c] = y[c] < 0 ? 0 : y[c]; break;
    case EL_RELU6: EACH(c) y[c] = clipped(y[c], 0, 6); break;
    case EL_CLIP: EACH(c) y[c] = clipped(y[c], f.a, f.b); break;
    case EL_LEAKY_RELU: EACH(c) y[c] = y[c] < 0 ? y[c] * f.a : y[c]; break;
    case EL_ELU: EACH(c) y[c] = (y[c] < 0 ? expm1f(y[c]) * f.a : y[c]) * f.b; break;
    case EL_TANH: EACH(c) y[c] = tanhf(y[c]); break;
    case EL_SOFTSIGN: EACH(c) y[c] = y[c] / (1.0f + fabsf(y[c])); break;
    case EL_SIGMOID: EACH(c) y[c] = sigmoid(y[c]); break;
    case EL_HARD_SIGMOID: EACH(c) y[c] = clipped(y[c] * f.a + f.b, 0, 1); break;
    case EL_SILU: EACH(c) y[c] *= sigmoid(y[c]); break;
    case EL_HARD_SWISH: EACH(c) y[c] *= clipped(y[c] * f.a + f.b, 0, 1); break;
    default: break;
  }
}

/* g *= the derivative, given the output z (or the input) */
void el_apply_slope(const Function f, const float *z, float *g) {
  int c;
  switch (f.name) {
    case EL_RELU: EACH(c) g[c] = z[c] > 0 ? g[c] : 0; break;
    case EL_RELU6: EACH(c) g[c] = z[c] > 0 && z[c] < 6 ? g[c] : 0; break;
    case EL_CLIP: EACH(c) g[c] = z[c] > f.a && z[c] < f.b ? g[c] : 0; break;
    case EL_LEAKY_RELU: EACH(c) g[c] = z[c] > 0 ? g[c] : g[c] * f.a; break;
    case EL_ELU: EACH(c) g[c] *= z[c] > 0 ? f.b : z[c] + f.a * f.b; break;
    case EL_TANH: EACH(c) g[c] *= 1.0f - z[c] * z[c]; break;
    case EL_SOFTSIGN: EACH(c) g[c] *= (1.0f - fabsf(z[c])) * (1.0f - fabsf(z[c])); break;
    case EL_SIGMOID: EACH(c) g[c] *= z[c] * (1.0f - z[c]); break;
    case EL_HARD_SIGMOID: EACH(c) g[c] = z[c] > 0 && z[c] < 1 ? g[c] * f.a : 0; break;
    case EL_SILU:
      EACH(c) {
        const float s = sigmoid(z[c]);
        g[c] *= s * (1.0f + z[c] * (1.0f - s));
      }
      break;
    case EL_HARD_SWISH:
      EACH(c) {
        const float s = z[c] * f.a + f.b;
        g[c] *= clipped(s, 0, 1) + (s > 0 && s < 1 ? z[c] * f.a : 0);
      }
      break;
    default: break;
  }
}
