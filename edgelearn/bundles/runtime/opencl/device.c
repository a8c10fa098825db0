/* The device of plan.h as an OpenCL device: buffers, kernels whose arguments are set once, an in-order queue. */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE /* madvise */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "edgelearn.h"
#include "plan.h"
#include "launches.h"
#include "opencl.h"

#define POCL "Portable Computing Language" /* it keeps compiled kernels itself */

static struct {
  void *library;
#define MEMBER(result, name, arguments) result(*name) arguments;
  OPENCL_FUNCTIONS(MEMBER)
#undef MEMBER
  cl_device_id device;
  cl_context context;
  cl_command_queue queue;
  cl_mem *memories;
  void **hosts;       /* where these lie if the device is the host's processor */
  cl_program *programs;
  cl_kernel *kernels; /* one for each launch */
  char *page;         /* what passes between host and device, */
  size_t used;        /* and bytes of it that may be on their way */
  int keeps_programs, divides, on_host;
  const char *cache;
  char name[512]; /* platform, device and driver */
} cl;

/* -- the library -- */

static int load_library(const char *path) {
  static const char *const usual[] = {"libOpenCL.so.1", "libOpenCL.so", "/vendor/lib64/libOpenCL.so",
                                      "/system/vendor/lib64/libOpenCL.so", "/vendor/lib/libOpenCL.so"};
  void *found;
  size_t i;
  if (path != NULL) cl.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  for (i = 0; path == NULL && cl.library == NULL && i < sizeof usual / sizeof *usual; i++)
    cl.library = dlopen(usual[i], RTLD_NOW | RTLD_LOCAL);
  if (cl.library == NULL) return el_fail(EDGELEARN_LIBRARY, "no library: ", path ? path : usual[0]);
#define FIND(result, function, arguments)                                                        \
  if ((found = dlsym(cl.library, #function)) == NULL)                                            \
    return el_fail(EDGELEARN_LIBRARY, "the library lacks ", #function);                          \
  memcpy(&cl.function, &found, sizeof found); /* C has no cast from an object's pointer to a function's */
  OPENCL_FUNCTIONS(FIND)
#undef FIND
  return EDGELEARN_OK;
}

static int failed(cl_int code, const char *what) {
  char text[80];
  if (cl.queue != NULL) cl.clFinish(cl.queue); /* it may be reading the caller's examples */
  snprintf(text, sizeof text, "OpenCL error %d in ", (int)code);
  if (code == CL_OUT_OF_HOST_MEMORY || code == CL_MEM_OBJECT_ALLOCATION_FAILURE)
    return el_fail(EDGELEARN_MEMORY, text, what);
  return el_fail(EDGELEARN_DRIVER, text, what);
}

/* -- the device -- */

enum { MOST = 16 }; /* platforms, and devices of each, that are looked at */

static cl_ulong number(cl_device_id device, cl_uint what, size_t size) {
  cl_ulong value = 0;
  size_t small = 0;
  if (size == sizeof small) {
    cl.clGetDeviceInfo(device, what, sizeof small, &small, NULL);
    return small;
  }
  cl.clGetDeviceInfo(device, what, sizeof value, &value, NULL);
  return value;
}

static void describe(cl_platform_id platform, cl_device_id device, char *text, size_t size) {
  char parts[2][200] = {"", ""};
  cl.clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof parts[0], parts[0], NULL);
  cl.clGetDeviceInfo(device, CL_DEVICE_NAME, sizeof parts[1], parts[1], NULL);
  snprintf(text, size, "%s / %s", parts[0], parts[1]);
}

/* The device of this name; else the first of the kind that the kernels are tuned for, else the first of all. */
static int choose_device(const char *wanted) {
  cl_platform_id platforms[MOST];
  cl_device_id devices[MOST];
  cl_uint i, j, platform_count = 0, device_count;
  char name[sizeof cl.name], driver[80] = "";
  int suits = 0;
  if (cl.clGetPlatformIDs(MOST, platforms, &platform_count) != CL_SUCCESS) platform_count = 0;
  for (i = 0; i < platform_count && i < MOST; i++) {
    device_count = 0;
    if (cl.clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_ALL, MOST, devices, &device_count) != CL_SUCCESS) continue;
    for (j = 0; j < device_count && j < MOST && !suits; j++) {
      const int is_gpu = (number(devices[j], CL_DEVICE_TYPE, sizeof(cl_ulong)) & CL_DEVICE_TYPE_GPU) != 0;
      describe(platforms[i], devices[j], name, sizeof name);
      if (wanted != NULL && strstr(name, wanted) == NULL) continue;
      suits = wanted != NULL || is_gpu == el_for_gpu;
      if (cl.device != NULL && !suits) continue;
      cl.device = devices[j];
      memcpy(cl.name, name, sizeof name);
      cl.keeps_programs = strncmp(name, POCL, strlen(POCL)) == 0;
      cl.on_host = (number(devices[j], CL_DEVICE_TYPE, sizeof(cl_ulong)) & CL_DEVICE_TYPE_CPU) != 0;
      cl.divides = is_gpu && (number(devices[j], CL_DEVICE_SINGLE_FP_CONFIG, sizeof(cl_ulong)) &
                              CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT);
    }
  }
  if (cl.device == NULL) return el_fail(EDGELEARN_DEVICE, "no device: ", wanted ? wanted : "OpenCL reports none");
  if (number(cl.device, CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof(size_t)) < el_largest_group)
    return el_fail(EDGELEARN_DEVICE, "work-groups are too small on ", cl.name);
  for (i = 0; i < el_plan.memories; i++)
    if (number(cl.device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof(cl_ulong)) < el_memory_bytes[i])
      return el_fail(EDGELEARN_DEVICE, "buffers are too small on ", cl.name);
  cl.clGetDeviceInfo(cl.device, CL_DRIVER_VERSION, sizeof driver, driver, NULL);
  strncat(cl.name, driver, sizeof cl.name - strlen(cl.name) - 1);
  return EDGELEARN_OK;
}

/* -- kernels, and their binaries in the cache folder -- */

static uint64_t hash(uint64_t seed, const void *bytes, size_t size) { /* FNV-1a */
  const unsigned char *p = bytes;
  for (; size > 0; size--) seed = (seed ^ *p++) * 0x100000001b3u;
  return seed;
}

enum { START_OF_HASH = 0x1505 };

static void name_binary(const el_source *source, const char *options, const char **texts, char *path, size_t size) {
  uint64_t key = hash(START_OF_HASH, cl.name, strlen(cl.name));
  uint32_t i;
  key = hash(key, options, strlen(options));
  for (i = 0; i < source->count; i++) key = hash(key, texts[i], strlen(texts[i]));
  snprintf(path, size, "%s/%08x%08x.bin", cl.cache, (unsigned)(key >> 32), (unsigned)key);
}

/* The content of a file that keep_binary wrote, or null if it is missing or damaged: drivers may crash on those. */
static unsigned char *read_binary(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  unsigned char *bytes = NULL;
  uint64_t check;
  long end;
  if (file == NULL) return NULL;
  if (fseek(file, 0, SEEK_END) == 0 && (end = ftell(file)) > (long)sizeof check && fseek(file, 0, SEEK_SET) == 0 &&
      fread(&check, sizeof check, 1, file) == 1 && (bytes = malloc(*size = (size_t)end - sizeof check)) != NULL &&
      (fread(bytes, *size, 1, file) != 1 || hash(START_OF_HASH, bytes, *size) != check)) {
    free(bytes);
    bytes = NULL;
  }
  fclose(file);
  return bytes;
}

static void keep_binary(cl_program program, const char *path) {
  char temporary[1040];
  uint64_t check;
  size_t size = 0;
  unsigned char *bytes;
  FILE *file;
  int written;
  if (cl.clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, NULL) != CL_SUCCESS || size == 0)
    return;
  if ((bytes = malloc(size)) == NULL) return;
  snprintf(temporary, sizeof temporary, "%s.new", path);
  if (cl.clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof bytes, &bytes, NULL) == CL_SUCCESS &&
      (file = fopen(temporary, "wb")) != NULL) {
    check = hash(START_OF_HASH, bytes, size);
    written = fwrite(&check, sizeof check, 1, file) == 1 && fwrite(bytes, size, 1, file) == 1;
    if (fclose(file) != 0 || !written || rename(temporary, path) != 0) remove(temporary);
  }
  free(bytes);
}

/* Build a text. `short_header`: with el_builtins instead of PoCL's header, which takes most of the time. */
static cl_int build_text(const char **texts, uint32_t count, const char *options, int short_header, cl_program *program) {
  char all[2048];
  cl_int code;
  snprintf(all, sizeof all, "%s%s", options, short_header ? el_no_builtins : "");
  if (!short_header) texts++;
  *program = cl.clCreateProgramWithSource(cl.context, count + (cl_uint)short_header, texts, NULL, &code);
  if (code == CL_SUCCESS) code = cl.clBuildProgram(*program, 1, &cl.device, all, NULL, NULL);
  return code;
}

static int build(const el_source *source, cl_program *program) {
  const char *texts[EL_MOST_PARAGRAPHS + 1]; /* the first one is el_builtins */
  char options[2000], path[1024], log[400] = "";
  const int keep = cl.cache != NULL && !cl.keeps_programs;
  unsigned char *binary;
  cl_int code;
  size_t size;
  uint32_t i;
  texts[0] = el_builtins;
  for (i = 0; i < source->count; i++) texts[i + 1] = el_paragraphs[el_paragraph_lists[source->first + i]];
  snprintf(options, sizeof options, "%s -w%s", source->options,
           cl.divides ? " -cl-fp32-correctly-rounded-divide-sqrt" : "");
  if (keep) {
    name_binary(source, options, texts + 1, path, sizeof path);
    if ((binary = read_binary(path, &size)) != NULL) {
      const unsigned char *given = binary;
      *program = cl.clCreateProgramWithBinary(cl.context, 1, &cl.device, &size, &given, NULL, &code);
      if (code == CL_SUCCESS) code = cl.clBuildProgram(*program, 1, &cl.device, "", NULL, NULL);
      free(binary);
      if (code == CL_SUCCESS) return EDGELEARN_OK;
      if (*program != NULL) cl.clReleaseProgram(*program); /* the driver has changed, but not its name */
    }
  }
  if (cl.keeps_programs && build_text(texts, source->count, options, 1, program) == CL_SUCCESS) return EDGELEARN_OK;
  if (*program != NULL) cl.clReleaseProgram(*program);
  if (build_text(texts, source->count, options, 0, program) != CL_SUCCESS) {
    if (*program != NULL)
      cl.clGetProgramBuildInfo(*program, cl.device, CL_PROGRAM_BUILD_LOG, sizeof log - 1, log, NULL);
    return el_fail(EDGELEARN_COMPILE, source->kernel, log[0] ? log : ": the driver says nothing");
  }
  if (keep) keep_binary(*program, path);
  return EDGELEARN_OK;
}

static int bind(const el_launch *launch, cl_kernel *kernel) {
  cl_int code;
  cl_uint at = 0, i;
  *kernel = cl.clCreateKernel(cl.programs[launch->source], el_sources[launch->source].kernel, &code);
  if (code != CL_SUCCESS) return failed(code, "clCreateKernel");
  for (i = 0; i < launch->count; i++) {
    const el_argument *argument = &el_arguments[launch->first + i];
    if (argument->kind == EL_MEMORY)
      code = cl.clSetKernelArg(*kernel, at++, sizeof(cl_mem), &cl.memories[argument->memory]);
    if (code == CL_SUCCESS) code = cl.clSetKernelArg(*kernel, at++, 4, &argument->bits);
    if (code != CL_SUCCESS) return failed(code, "clSetKernelArg");
  }
  return EDGELEARN_OK;
}

/* -- the functions of plan.h -- */

enum { HUGE_PAGE = 1 << 21 };

/* Memory in huge pages: with small ones, misses of the TLB take 3 % of a step. Null where there are none. */
static void *in_huge_pages(size_t bytes) {
#ifdef MADV_HUGEPAGE
  void *memory;
  if (bytes >= HUGE_PAGE && posix_memalign(&memory, HUGE_PAGE, bytes) == 0) {
    madvise(memory, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
    return memory;
  }
#endif
  (void)bytes;
  return NULL;
}

static int open_all(const edgelearn_options *options) {
  cl_int code = CL_SUCCESS;
  uint32_t i;
  int result;
  if ((result = load_library(options->library)) != 0 || (result = choose_device(options->device)) != 0) return result;
  cl.cache = options->cache_folder;
  cl.memories = calloc(el_plan.memories, sizeof *cl.memories);
  cl.hosts = calloc(el_plan.memories, sizeof *cl.hosts);
  cl.programs = calloc(el_source_count, sizeof *cl.programs);
  cl.kernels = calloc(el_launch_count, sizeof *cl.kernels);
  cl.page = malloc(el_page_bytes);
  if (!cl.memories || !cl.hosts || !cl.programs || !cl.kernels || !cl.page) return el_fail(EDGELEARN_MEMORY, "on the host", "");
  cl.context = cl.clCreateContext(NULL, 1, &cl.device, NULL, NULL, &code);
  if (code != CL_SUCCESS) return failed(code, "clCreateContext");
  cl.queue = cl.clCreateCommandQueue(cl.context, cl.device, 0, &code);
  if (code != CL_SUCCESS) return failed(code, "clCreateCommandQueue");
  for (i = 0; i < el_plan.memories; i++) {
    const size_t bytes = (size_t)el_memory_bytes[i];
    if (cl.on_host) cl.hosts[i] = in_huge_pages(bytes);
    cl.memories[i] = cl.clCreateBuffer(cl.context, CL_MEM_READ_WRITE | (cl.hosts[i] ? CL_MEM_USE_HOST_PTR : 0), bytes,
                                       cl.hosts[i], &code);
    if (code != CL_SUCCESS) return failed(code, "clCreateBuffer");
  }
  for (i = 0; i < el_source_count; i++)
    if ((result = build(&el_sources[i], &cl.programs[i])) != 0) return result;
  for (i = 0; i < el_launch_count; i++)
    if ((result = bind(&el_launches[i], &cl.kernels[i])) != 0) return result;
  return EDGELEARN_OK;
}

const int el_device_is_memory = 0;

int el_device_open(const void *options) {
  memset(&cl, 0, sizeof cl);
  return open_all(options);
}

void el_device_close(void) {
  uint32_t i;
  if (cl.queue != NULL) cl.clFinish(cl.queue);
  for (i = 0; cl.kernels && i < el_launch_count; i++)
    if (cl.kernels[i] != NULL) cl.clReleaseKernel(cl.kernels[i]);
  for (i = 0; cl.programs && i < el_source_count; i++)
    if (cl.programs[i] != NULL) cl.clReleaseProgram(cl.programs[i]);
  for (i = 0; cl.memories && i < el_plan.memories; i++)
    if (cl.memories[i] != NULL) cl.clReleaseMemObject(cl.memories[i]);
  if (cl.queue != NULL) cl.clReleaseCommandQueue(cl.queue);
  if (cl.context != NULL) cl.clReleaseContext(cl.context);
  for (i = 0; cl.hosts && i < el_plan.memories; i++) free(cl.hosts[i]);
  free(cl.hosts);
  free(cl.memories);
  free(cl.programs);
  free(cl.kernels);
  free(cl.page);
  memset(&cl, 0, sizeof cl); /* the library stays: drivers have threads of their own */
}

void *el_device_page(uint32_t memory, uint32_t place, size_t bytes) {
  (void)memory, (void)place;
  if (bytes > el_page_bytes) return NULL;
  if (cl.used + bytes > el_page_bytes) {
    cl.clFinish(cl.queue);
    cl.used = 0;
  }
  return cl.page + cl.used;
}

/* The host goes on while a page is copied, so that the device need not wait for what comes next; it waits where no page
   of this size would be left. */
int el_device_put(uint32_t memory, uint32_t place, const void *from, size_t bytes, int stay) {
  const int is_page = from == cl.page + cl.used;
  const size_t start = (size_t)place * 64, used = cl.used + (is_page ? (bytes + 63) / 64 * 64 : 0);
  const cl_uint waits = is_page ? used + bytes > el_page_bytes : !stay;
  const cl_int code = cl.clEnqueueWriteBuffer(cl.queue, cl.memories[memory], waits, start, bytes, from, 0, NULL, NULL);
  cl.used = waits ? 0 : used; /* the queue is in order */
  return code == CL_SUCCESS ? EDGELEARN_OK : failed(code, "clEnqueueWriteBuffer");
}

int el_device_get(uint32_t memory, uint32_t place, size_t bytes, const void **found) {
  const size_t start = (size_t)place * 64;
  const cl_int code = cl.clEnqueueReadBuffer(cl.queue, cl.memories[memory], 1, start, bytes, cl.page, 0, NULL, NULL);
  *found = cl.page;
  cl.used = 0;
  return code == CL_SUCCESS ? EDGELEARN_OK : failed(code, "clEnqueueReadBuffer");
}

int el_device_zero(uint32_t memory, uint32_t place, size_t bytes) {
  const uint32_t zero = 0;
  const cl_int code = cl.clEnqueueFillBuffer(cl.queue, cl.memories[memory], &zero, sizeof zero, (size_t)place * 64,
                                             bytes / 4 * 4, 0, NULL, NULL);
  return code == CL_SUCCESS ? EDGELEARN_OK : failed(code, "clEnqueueFillBuffer");
}

int el_device_run(el_span list) {
  uint32_t i, d;
  for (i = 0; i < list.count; i++) {
    const uint32_t number = el_lists[list.first + i];
    const el_launch *launch = &el_launches[number];
    size_t grid[3], local[3] = {launch->group, 1, 1};
    cl_int code;
    for (d = 0; d < 3; d++) grid[d] = launch->grid[d];
    code = cl.clEnqueueNDRangeKernel(cl.queue, cl.kernels[number], launch->dimensions, NULL, grid, local, 0, NULL, NULL);
    if (code != CL_SUCCESS) return failed(code, el_sources[launch->source].kernel);
  }
  return EDGELEARN_OK;
}
