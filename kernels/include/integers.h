// Kernels that multiply 8-bit integers and add the products up in 32-bit ones. Tensors of integers are blocked like all
// others: the 16 channels of a row are 16 bytes. Padding channels hold the zero point, so they count as zeros.
//
// The result leaves a kernel as floats or, where its range is known (QUANTIZED), as integers. No two operations may be
// contracted to one: results are the same to the bit on every device.
#pragma OPENCL FP_CONTRACT OFF
#include "blocked.h"
#include "result.h"

// A tensor of integers and the record of its range
#define INPUT_QUANTIZED(x) INPUT_OF(char, x), INPUT(x##_range)
