// What a forward kernel does with its accumulators as it writes them: y = activation(accumulator * scale + shift).
// SCALE and SHIFT say which of the two per-channel vectors there are: a bias is a shift alone, kept BatchNorm is both.

#ifndef SCALE
#define SCALE 0
#endif
#ifndef SHIFT
#define SHIFT 0
#endif

#if SCALE && SHIFT
#define EPILOGUE_ARGUMENTS , INPUT(scale), INPUT(shift)
#define EPILOGUE_POINTERS FROM(scale) FROM(shift)
#elif SHIFT
#define EPILOGUE_ARGUMENTS , INPUT(shift)
#define EPILOGUE_POINTERS FROM(shift)
#else
#define EPILOGUE_ARGUMENTS
#define EPILOGUE_POINTERS
#endif

#if SCALE
#define LOAD_SCALE(name, channel) const V name = LOAD(scale + (channel));
#define APPLY_SCALE(v, s) v *= s;
#else
#define LOAD_SCALE(name, channel)
#define APPLY_SCALE(v, s)
#endif

#if SHIFT
#define LOAD_SHIFT(name, channel) const V name = LOAD(shift + (channel));
#define APPLY_SHIFT(v, s) v += s;
#else
#define LOAD_SHIFT(name, channel)
#define APPLY_SHIFT(v, s)
#endif
