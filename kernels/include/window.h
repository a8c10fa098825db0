// The geometry of a sliding window, known at compile time: KERNEL_H x KERNEL_W taps, strides, dilations, and the
// padding above and to the left (that below and to the right follows from the sizes). Tap (ky, kx) of output pixel (y,
// x) reads input pixel (INPUT_Y(y, ky), INPUT_X(x, kx)).

#define TAPS (KERNEL_H * KERNEL_W)
#define INPUT_Y(y, ky) ((y) * STRIDE_Y - PAD_TOP + (ky) * DILATION_Y)
#define INPUT_X(x, kx) ((x) * STRIDE_X - PAD_LEFT + (kx) * DILATION_X)

// Backward: input row iy meets tap ky at output row REACH_Y(iy, ky) / STRIDE_Y where that division has no remainder.
#define REACH_Y(iy, ky) ((iy) + PAD_TOP - (ky) * DILATION_Y)
#define REACH_X(ix, kx) ((ix) + PAD_LEFT - (kx) * DILATION_X)

// Input columns that TILE neighbouring outputs read
#define SPAN ((TILE - 1) * STRIDE_X + (KERNEL_W - 1) * DILATION_X + 1)

INLINE int is_in(const int at, const int size) { return (uint)at < (uint)size; }

// Sizes of the images of input and output
typedef struct { int images, height, width, out_height, out_width; } Sizes;
#define SIZES ((Sizes){images, height, width, out_height, out_width})
