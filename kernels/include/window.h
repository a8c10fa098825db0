// The geometry of a sliding window, known when a kernel is compiled: KERNEL_H x KERNEL_W taps, strides, dilations and
// the padding above and to the left (what lies below and to the right follows from the sizes).
// A tap (ky, kx) of output pixel (y, x) reads input pixel (INPUT_Y(y, ky), INPUT_X(x, kx)).

#define TAPS (KERNEL_H * KERNEL_W)
#define INPUT_Y(y, ky) ((y) * STRIDE_Y - PAD_TOP + (ky) * DILATION_Y)
#define INPUT_X(x, kx) ((x) * STRIDE_X - PAD_LEFT + (kx) * DILATION_X)

// The way back: input pixel i met tap k at output pixel (i + pad - k * dilation) / stride, where that divides.
#define REACH_Y(iy, ky) ((iy) + PAD_TOP - (ky) * DILATION_Y)
#define REACH_X(ix, kx) ((ix) + PAD_LEFT - (kx) * DILATION_X)

// Input columns that TILE neighbouring outputs read.
#define SPAN ((TILE - 1) * STRIDE_X + (KERNEL_W - 1) * DILATION_X + 1)
