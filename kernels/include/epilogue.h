// The end of a forward kernel: y = activation(sum * scale + shift). SCALE and SHIFT say which of the two per-channel
// vectors there are: a bias is a shift alone, BatchNorm with moving statistics is both. With MOMENTS the kernel leaves records of
// what it writes.
#include "activation.h"
#include "moments.h"

#ifndef SCALE
#define SCALE 0
#endif
#ifndef SHIFT
#define SHIFT 0
#endif

typedef struct { input scale, shift; output moments; } Epilogue;
typedef struct { V scale, shift; } Affine;  // of the channels that a work-item handles

#define EPILOGUE_ARGUMENTS INPUT_IF(SCALE, scale) INPUT_IF(SHIFT, shift) OUTPUT_IF(MOMENTS, moments)
#define EPILOGUE ((Epilogue){POINTER_IF(SCALE, scale), POINTER_IF(SHIFT, shift), POINTER_IF(MOMENTS, moments)})

INLINE Affine affine_of(const Epilogue epilogue, const int channel) {
  Affine affine = {(V)1, (V)0};
#if SCALE
  affine.scale = load(epilogue.scale + channel);
#endif
#if SHIFT
  affine.shift = load(epilogue.shift + channel);
#endif
  return affine;
}

INLINE V scaled(const Affine affine, V v) {
#if SCALE
  v *= affine.scale;
#endif
#if SHIFT
  v += affine.shift;
#endif
  return v;
}
INLINE V apply(const Affine affine, const V v) { return activate(scaled(affine, v)); }

// Leaves the record of a group of rows of one of `blocks` blocks of channels.
INLINE void leave_moments(const Epilogue epilogue, const Moments m, const int group, const int block, const int blocks) {
#if MOMENTS
  store_sums(epilogue.moments, group, block, blocks, m.mean, m.squares);
#endif
}
