/* The part of OpenCL 1.2 that is used, found in the system's library when it runs: a bundle builds without OpenCL's
   headers and library, as Android's NDK has neither. Names and values are those of the specification
   (https://registry.khronos.org/OpenCL/specs/opencl-1.2.pdf). */
#ifndef EDGELEARN_OPENCL_H
#define EDGELEARN_OPENCL_H

#include <stddef.h>
#include <stdint.h>

typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef uint64_t cl_ulong, cl_flags;
typedef struct cl_platform_ *cl_platform_id;
typedef struct cl_device_ *cl_device_id;
typedef struct cl_context_ *cl_context;
typedef struct cl_queue_ *cl_command_queue;
typedef struct cl_mem_ *cl_mem;
typedef struct cl_program_ *cl_program;
typedef struct cl_kernel_ *cl_kernel;

enum {
  CL_SUCCESS = 0,
  CL_OUT_OF_RESOURCES = -5,
  CL_OUT_OF_HOST_MEMORY = -6,
  CL_MEM_OBJECT_ALLOCATION_FAILURE = -4,
  CL_MEM_READ_WRITE = 1,
  CL_MEM_USE_HOST_PTR = 8,
  CL_PLATFORM_NAME = 0x0902,
  CL_DEVICE_TYPE = 0x1000,
  CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004,
  CL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010,
  CL_DEVICE_SINGLE_FP_CONFIG = 0x101B,
  CL_DEVICE_NAME = 0x102B,
  CL_DRIVER_VERSION = 0x102D,
  CL_PROGRAM_BINARY_SIZES = 0x1165,
  CL_PROGRAM_BINARIES = 0x1166,
  CL_PROGRAM_BUILD_LOG = 0x1183
};
#define CL_DEVICE_TYPE_CPU ((cl_flags)1 << 1)
#define CL_DEVICE_TYPE_GPU ((cl_flags)1 << 2)
#define CL_DEVICE_TYPE_ALL ((cl_flags)0xFFFFFFFF)
#define CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT ((cl_flags)1 << 7)

/* FUNCTION(result, name, arguments) */
#define OPENCL_FUNCTIONS(FUNCTION)                                                                                    \
  FUNCTION(cl_int, clGetPlatformIDs, (cl_uint, cl_platform_id *, cl_uint *))                                          \
  FUNCTION(cl_int, clGetPlatformInfo, (cl_platform_id, cl_uint, size_t, void *, size_t *))                            \
  FUNCTION(cl_int, clGetDeviceIDs, (cl_platform_id, cl_flags, cl_uint, cl_device_id *, cl_uint *))                    \
  FUNCTION(cl_int, clGetDeviceInfo, (cl_device_id, cl_uint, size_t, void *, size_t *))                                \
  FUNCTION(cl_context, clCreateContext, (const intptr_t *, cl_uint, const cl_device_id *, void *, void *, cl_int *))  \
  FUNCTION(cl_command_queue, clCreateCommandQueue, (cl_context, cl_device_id, cl_flags, cl_int *))                    \
  FUNCTION(cl_mem, clCreateBuffer, (cl_context, cl_flags, size_t, void *, cl_int *))                                  \
  FUNCTION(cl_program, clCreateProgramWithSource, (cl_context, cl_uint, const char **, const size_t *, cl_int *))     \
  FUNCTION(cl_program, clCreateProgramWithBinary,                                                                     \
           (cl_context, cl_uint, const cl_device_id *, const size_t *, const unsigned char **, cl_int *, cl_int *))   \
  FUNCTION(cl_int, clBuildProgram, (cl_program, cl_uint, const cl_device_id *, const char *, void *, void *))         \
  FUNCTION(cl_int, clGetProgramInfo, (cl_program, cl_uint, size_t, void *, size_t *))                                 \
  FUNCTION(cl_int, clGetProgramBuildInfo, (cl_program, cl_device_id, cl_uint, size_t, void *, size_t *))              \
  FUNCTION(cl_kernel, clCreateKernel, (cl_program, const char *, cl_int *))                                           \
  FUNCTION(cl_int, clSetKernelArg, (cl_kernel, cl_uint, size_t, const void *))                                        \
  FUNCTION(cl_int, clEnqueueNDRangeKernel,                                                                            \
           (cl_command_queue, cl_kernel, cl_uint, const size_t *, const size_t *, const size_t *, cl_uint,            \
            const void *, void *))                                                                                    \
  FUNCTION(cl_int, clEnqueueWriteBuffer,                                                                              \
           (cl_command_queue, cl_mem, cl_uint, size_t, size_t, const void *, cl_uint, const void *, void *))          \
  FUNCTION(cl_int, clEnqueueReadBuffer,                                                                               \
           (cl_command_queue, cl_mem, cl_uint, size_t, size_t, void *, cl_uint, const void *, void *))                \
  FUNCTION(cl_int, clEnqueueFillBuffer,                                                                               \
           (cl_command_queue, cl_mem, const void *, size_t, size_t, size_t, cl_uint, const void *, void *))           \
  FUNCTION(cl_int, clFinish, (cl_command_queue))                                                                      \
  FUNCTION(cl_int, clReleaseKernel, (cl_kernel))                                                                      \
  FUNCTION(cl_int, clReleaseProgram, (cl_program))                                                                    \
  FUNCTION(cl_int, clReleaseMemObject, (cl_mem))                                                                      \
  FUNCTION(cl_int, clReleaseCommandQueue, (cl_command_queue))                                                         \
  FUNCTION(cl_int, clReleaseContext, (cl_context))

#endif
