// The kernels of a layer that applies a function to each value: OWN, with parameters OWN_A and OWN_B, of activation.h,
// functions.h or the file that includes this one. (ACTIVATION and MASK are those of the layer before.)
#include "elementwise.h"

#ifndef OWN_A
#define OWN_A 0.0f
#endif
#ifndef OWN_B
#define OWN_B 0.0f
#endif

// y = f(x)
KERNEL activation_forward(INPUT_VALUES(x), OUTPUT_VALUES(y), ROWS_ARGUMENTS PADDING_ARGUMENTS) {
  input_values x = ITEM_START(x);
  output_values y = ITEM_START(y);
  const Band band = band_of(m, count);
  SEVERAL for (int row = band.start; row < band.stop; row += band.step) {
    const size_t at = row_at(band.block, m, row);
    const V v = JOIN(OWN, forward)(load(x + at), OWN_A, OWN_B);
    store(y + at, UNPADDED(v, band.block));
  }
}

// dx = dy times the derivative, which follows from `own`: the function's output or its input
KERNEL activation_backward(INPUT_VALUES(own), INPUT_VALUES(dy), ROWS_ARGUMENTS PADDING_ARGUMENTS, GRADIENT_ARGUMENTS) {
  input_values own = ITEM_START(own), dy = ITEM_START(dy);
  const Gradient dx = GRADIENT;
  const Band band = band_of(m, count);
  SEVERAL for (int row = band.start; row < band.stop; row += band.step) {
    const size_t at = row_at(band.block, m, row);
    const V g = JOIN(OWN, backward)(load(own + at), load(dy + at), OWN_A, OWN_B);
    write_gradient(dx, at, UNPADDED(g, band.block));
  }
}
