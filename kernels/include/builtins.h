// The built-in functions that these kernels call. PoCL's own header has 17,000 lines of them, which take Clang 0.1 s a
// program: this one stands in for it (runtime/kernels.py).
#define PURE __attribute__((overloadable, const))
size_t PURE get_global_id(uint);
size_t PURE get_global_size(uint);
size_t PURE get_group_id(uint);
size_t PURE get_local_id(uint);
void __attribute__((overloadable, convergent)) barrier(cl_mem_fence_flags);

float PURE cos(float);
float PURE exp(float);
float PURE log(float);
float PURE log1p(float);
float PURE pow(float, float);
float PURE sin(float);
float PURE sqrt(float);
float4 PURE sqrt(float4);
float16 PURE sqrt(float16);

#define READS __attribute__((overloadable, pure))
float READS vload_half(size_t, const __private half *);
float4 READS vload_half4(size_t, const __global half *);
void __attribute__((overloadable)) vstore_half4_rte(float4, size_t, __global half *);

#define CONVERSIONS_OF(from, width)              \
  char##width PURE convert_char##width(from);     \
  short##width PURE convert_short##width(from);   \
  ushort##width PURE convert_ushort##width(from); \
  int##width PURE convert_int##width(from);       \
  float##width PURE convert_float##width(from);
#define CONVERSIONS(width)            \
  CONVERSIONS_OF(char##width, width)   \
  CONVERSIONS_OF(uchar##width, width)  \
  CONVERSIONS_OF(short##width, width)  \
  CONVERSIONS_OF(ushort##width, width) \
  CONVERSIONS_OF(int##width, width)    \
  CONVERSIONS_OF(uint##width, width)   \
  CONVERSIONS_OF(float##width, width)
CONVERSIONS()
CONVERSIONS(4)
CONVERSIONS(16)
