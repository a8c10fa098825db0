// The gradients of a softmax inside a network, and of its logarithm; for one at its end see softmax_cross_entropy.cl.
#include "elementwise.h"
#include "exponential.h"
#include "group_total.h"

// dx = p * (dy - sum p * dy) over the channels of a row, which a work-group shares
KERNEL softmax_backward(INPUT(p), INPUT(dy), const int m, const int blocks, GRADIENT_ARGUMENTS) {
  __local float shares[GROUP];
  input p = ITEM_START(p), dy = ITEM_START(dy);
  const Gradient dx = GRADIENT;
  const int row = get_group_id(0), first = get_local_id(0) / VECTORS, members = GROUP / VECTORS;
  V products = (V)0;
  for (int block = first; block < blocks; block += members) {
    const size_t at = row_at(block, m, row);
    products += load(p + at) * load(dy + at);
  }
  const float sum = group_total(element_sum(products), shares);
  for (int block = first; block < blocks; block += members) {
    const size_t at = row_at(block, m, row);
    write_gradient(dx, at, load(p + at) * (load(dy + at) - sum));
  }
}

// dx = dy - exp(y) * sum dy, where y = log softmax(x)
KERNEL log_softmax_backward(INPUT(y), INPUT(dy), const int m, const int blocks PADDING_ARGUMENTS, GRADIENT_ARGUMENTS) {
  __local float shares[GROUP];
  input y = ITEM_START(y), dy = ITEM_START(dy);
  const Gradient dx = GRADIENT;
  const int row = get_group_id(0), first = get_local_id(0) / VECTORS, members = GROUP / VECTORS;
  V total = (V)0;
  for (int block = first; block < blocks; block += members) total += load(dy + row_at(block, m, row));
  const float sum = group_total(element_sum(total), shares);
  for (int block = first; block < blocks; block += members) {
    const size_t at = row_at(block, m, row);
    write_gradient(dx, at, UNPADDED(load(dy + at) - exponential(load(y + at)) * sum, block));
  }
}
