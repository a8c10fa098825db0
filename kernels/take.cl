// Rows of a table by computed numbers: take and Embedding, forward and backward. Numbers are [count / 16][images][16].
#include "elementwise.h"
#include "named_row.h"

// dx[image, i, ...] = x[image, numbers[image, i], ...], NaN where there is no such row; `size` rows of `inner` in an
// image of x, of which all images share one if `shared`
KERNEL take(INPUT(x), INPUT(numbers), ROWS_ARGUMENTS PADDING_ARGUMENTS, const int images, const int taken,
            const int size, const int inner, const int shared, GRADIENT_ARGUMENTS) {
  input x = ITEM_START(x), numbers = START(numbers);
  const Gradient dx = GRADIENT;
  const Band band = band_of(m, count);
  for (int row = band.start; row < band.stop; row += band.step) {
    const int image = row / inner / taken, i = row / inner % taken;
    const int place = named_row(numbers[value_at(i, images, image)], size);
    V v = (V)NAN;
    if (place >= 0) {
      const int from = ((shared ? 0 : image) * size + place) * inner + row % inner;
      v = load(x + row_at(band.block, (shared ? 1 : images) * size * inner, from));
    }
    write_gradient(dx, row_at(band.block, m, row), UNPADDED(v, band.block));
  }
}

// dx[image, place, ...] = the sum of dy[image, i, ...] where numbers[image, i] is the place: m rows of dx
KERNEL give_back(INPUT(numbers), INPUT(dy), ROWS_ARGUMENTS, const int images, const int taken, const int size,
                 const int inner, GRADIENT_ARGUMENTS) {
  input numbers = START(numbers), dy = ITEM_START(dy);
  const Gradient dx = GRADIENT;
  const Band band = band_of(m, count);
  for (int row = band.start; row < band.stop; row += band.step) {
    const int image = row / inner / size, place = row / inner % size;
    V sum = (V)0;
    for (int i = 0; i < taken; i++)
      if (named_row(numbers[value_at(i, images, image)], size) == place)
        sum += load(dy + row_at(band.block, images * taken * inner, (image * taken + i) * inner + row % inner));
    write_gradient(dx, row_at(band.block, m, row), sum);
  }
}

// The same of a table of m rows that all images share: the rows of dy in [group * count, (group + 1) * count) are added
// to sums[group][block][place]. A work-item has `span` places, so that numbers are read once for all of these.
KERNEL give_back_shared(INPUT(numbers), INPUT(dy), OUTPUT(sums), const int m, const int count, const int images,
                        const int taken, const int groups, const int ranges, const int span) {
  const int group = ITEM / ranges, first = ITEM % ranges * span, block = get_global_id(1), blocks = get_global_size(1);
  if (group >= groups) return;
  input numbers = START(numbers), dy = ITEM_START(dy);
  output share = ITEM_START(sums) + row_at(group * blocks + block, m, 0);
  const int last = first + span < m ? first + span : m;
#if !ACCUMULATE
  for (int place = first; place < last; place++) store(share + place * BLOCK, (V)0);
#endif
  const int start = group * count, stop = start + count < images * taken ? start + count : images * taken;
  for (int row = start; row < stop; row++) {
    const int place = named_row(numbers[value_at(row % taken, images, row / taken)], m);
    if (place < first || place >= last) continue;
    output total = share + place * BLOCK;
    store(total, load(total) + load(dy + row_at(block, images * taken, row)));
  }
}
