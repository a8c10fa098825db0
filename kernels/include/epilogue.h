// The end of a forward kernel: y = activation(sum * scale + shift). SCALE and SHIFT say which of the two per-channel
// vectors there are: a bias is a shift alone, BatchNorm with moving statistics is both.
#include "activation.h"

#ifndef SCALE
#define SCALE 0
#endif
#ifndef SHIFT
#define SHIFT 0
#endif

typedef struct { input scale, shift; } Epilogue;
typedef struct { V scale, shift; } Affine;  // of the channels that a work-item handles

#if SCALE && SHIFT
#define EPILOGUE_ARGUMENTS , INPUT(scale), INPUT(shift)
#define EPILOGUE ((Epilogue){ITEM_START(scale), ITEM_START(shift)})
#elif SHIFT
#define EPILOGUE_ARGUMENTS , INPUT(shift)
#define EPILOGUE ((Epilogue){0, ITEM_START(shift)})
#else
#define EPILOGUE_ARGUMENTS
#define EPILOGUE ((Epilogue){0, 0})
#endif

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
