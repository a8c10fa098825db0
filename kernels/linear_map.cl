// Images multiplied by a sparse matrix along the height and one along the width: resizing, adaptive pooling, and, with
// the transposed matrices, their gradients.
#include "elementwise.h"

// A matrix is pairs of words: for each output coordinate where its entries start and stop, then the entries, an input
// coordinate and the bits of a factor (edgelearn/ops/resize.py).
#define FROM(matrix, entry) (matrix)[2 * (entry)]
#define FACTOR(matrix, entry) as_float((matrix)[2 * (entry) + 1])

KERNEL map_image(INPUT(x), INPUT_OF(int, rows), INPUT_OF(int, columns), ROWS_ARGUMENTS, const int from_height,
                 const int from_width, const int height, const int width, GRADIENT_ARGUMENTS) {
  input x = ITEM_START(x);
  __global const int *restrict rows = START(rows);
  __global const int *restrict columns = START(columns);
  const Gradient dx = GRADIENT;
  const Band band = band_of(m, count);
  const size_t images = m / (height * width);
  for (int row = band.start; row < band.stop; row += band.step) {
    const int image = row / (height * width), oy = row / width % height, ox = row % width;
    input plane = x + row_at(band.block, images, image) * from_height * from_width;
    V sum = (V)0;
    for (int a = rows[2 * oy]; a < rows[2 * oy + 1]; a++) {
      V of_row = (V)0;
      for (int b = columns[2 * ox]; b < columns[2 * ox + 1]; b++) {
        const int pixel = FROM(rows, a) * from_width + FROM(columns, b);
        of_row += load(plane + (size_t)pixel * BLOCK) * FACTOR(columns, b);
      }
      sum += of_row * FACTOR(rows, a);
    }
    write_gradient(dx, row_at(band.block, m, row), sum);
  }
}
