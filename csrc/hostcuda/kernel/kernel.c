/* Launches: rejected with one line per kernel, or run by a registered interpreter (psm_hostcuda.h). */
#define _GNU_SOURCE
#include "include/psm_hostcuda.h"
#include "kernel/hc_kernel.h"
#include "psm_messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INVALID_FUNCTION = 98, INVALID_CONFIGURATION = 9, TOO_LARGE = 720, ALIGNMENT = 16 };
/* Names in the `extra` list of a driver launch. */
enum { EXTRA_END = 0, EXTRA_BUFFER = 1, EXTRA_SIZE = 2 };

/* One launch, as held by the queue and, if it was captured, by the graph; `end` frees it. */
struct job {
    struct psm_kernel_launch launch;
    psm_kernel_fn fn;
    void *context;
    char *name;
    const void *arguments[HC_MAX_PARAMETERS];
    char data[];
};

/* ---- a launch ---- */

struct shape {
    unsigned grid[3], block[3];
    size_t shared;
    bool cooperative, runtime; /* runtime: returns the runtime's errors */
};

static int check_shape(struct hc_function *f, const struct shape *s, int device)
{
    static const unsigned most_grid[3] = {0x7fffffff, 65535, 65535}, most_block[3] = {1024, 1024, 64};
    int wrong = s->runtime ? INVALID_CONFIGURATION : PSM_CUDA_INVALID_VALUE;
    uint64_t threads = 1, blocks = 1;
    for (int i = 0; i < 3; i++) {
        if (!s->grid[i] || !s->block[i] || s->grid[i] > most_grid[i] || s->block[i] > most_block[i]) return wrong;
        threads *= s->block[i];
        blocks *= s->grid[i];
    }
    if (threads > (uint64_t)atomic_load(&f->attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK])) return wrong;
    if (s->shared > (size_t)atomic_load(&f->attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES]))
        return PSM_CUDA_INVALID_VALUE;
    uint64_t room = (uint64_t)hc_attribute(device, cudaDevAttrMultiProcessorCount) *
                    ((uint64_t)hc_attribute(device, cudaDevAttrMaxThreadsPerMultiProcessor) / threads);
    return s->cooperative && blocks > room ? TOO_LARGE : 0;
}

/* kernelParams or extra, as cuLaunchKernel takes them. */
static int find_buffer(void **extra, const void **buffer, size_t *size)
{
    *buffer = NULL;
    *size = 0;
    for (int i = 0; extra && extra[i] != (void *)EXTRA_END; i += 2) {
        if (extra[i] == (void *)EXTRA_BUFFER)
            *buffer = extra[i + 1];
        else if (extra[i] == (void *)EXTRA_SIZE && extra[i + 1])
            *size = *(const size_t *)extra[i + 1];
        else
            return PSM_CUDA_INVALID_VALUE;
    }
    return extra && (!*buffer || *size > 1 << 20) ? PSM_CUDA_INVALID_VALUE : 0;
}

static struct job *make_job(const char *name, const struct shape *s, void **arguments, const void *buffer, size_t size)
{
    struct hc_parameters *p = arguments ? hc_parameters_of(name) : NULL;
    size_t room = size;
    for (unsigned i = 0; p && i < p->n; i++) room += (p->sizes[i] + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    struct job *job = calloc(1, sizeof *job + room + ALIGNMENT);
    if (!job || !(job->name = strdup(name))) {
        free(job);
        return NULL;
    }
    char *at = (char *)(((uintptr_t)job->data + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    struct psm_kernel_launch *l = &job->launch;
    l->size = sizeof *l;
    l->name = job->name;
    memcpy(l->grid, s->grid, sizeof l->grid);
    memcpy(l->block, s->block, sizeof l->block);
    l->shared_memory = s->shared;
    l->arguments = job->arguments;
    l->parameters = p ? p->n : 0;
    for (unsigned i = 0; p && i < p->n; i++) {
        job->arguments[i] = memcpy(at, arguments[i], p->sizes[i]);
        at += (p->sizes[i] + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    if (buffer) {
        l->buffer = memcpy(at, buffer, size);
        l->buffer_size = size;
    }
    return job;
}

static int run_job(void *argument, int device)
{
    const struct job *job = *(struct job **)argument;
    struct psm_kernel_launch launch = job->launch; /* a graph may run it on several threads at a time */
    launch.device = device;
    return job->fn(&launch, job->context);
}

static void end_job(void *argument)
{
    struct job *job = *(struct job **)argument;
    free(job->name);
    free(job);
}

static int launch_on(struct hc_stream *stream, struct hc_function *f, const struct shape *s, void **arguments,
                     void **extra)
{
    const void *buffer;
    size_t size;
    if (arguments && extra) return PSM_CUDA_INVALID_VALUE;
    int rc = check_shape(f, s, hc_stream_device(stream));
    if (!rc) rc = find_buffer(extra, &buffer, &size);
    if (rc) return rc;
    struct hc_interpreter *interpreter = hc_interpreter_of(f->name);
    if (!interpreter) {
        if (!atomic_exchange(&f->refused, true)) psm_msg_hostcuda_kernel_refused(f->name);
        return PSM_CUDA_NOT_SUPPORTED;
    }
    struct job *job = make_job(f->name, s, arguments, buffer, size);
    if (!job) return PSM_CUDA_OUT_OF_MEMORY;
    job->fn = interpreter->fn;
    job->context = interpreter->context;
    CUDA_KERNEL_NODE_PARAMS node = {.func = (CUfunction)(uintptr_t)f->handle,
                                    .gridDimX = s->grid[0],
                                    .gridDimY = s->grid[1],
                                    .gridDimZ = s->grid[2],
                                    .blockDimX = s->block[0],
                                    .blockDimY = s->block[1],
                                    .blockDimZ = s->block[2],
                                    .sharedMemBytes = (unsigned)s->shared,
                                    .kern = (CUkernel)(uintptr_t)f->handle};
    struct hc_work work = {.run = run_job,
                           .end = end_job,
                           .size = sizeof job,
                           .argument = &job,
                           .flags = HC_WORK_BLOCKS,
                           .node_type = 0,
                           .node_parameters = &node,
                           .node_parameters_size = sizeof node};
    rc = hc_submit(stream, &work, NULL);
    if (rc) end_job(&job); /* nobody holds it */
    return rc;
}

static int launch(struct hc_function *f, const struct shape *s, cudaStream_t handle, void **arguments, void **extra)
{
    struct hc_stream *stream;
    int rc = hc_stream_get(handle, &stream);
    if (rc) return rc;
    rc = launch_on(stream, f, s, arguments, extra);
    hc_stream_put(stream);
    return rc;
}

/* A kernel by the address of its host stub, or by the handle of cudaGetKernel. */
static int runtime_launch(const void *func, struct dim3 grid, struct dim3 block, void **arguments, size_t shared,
                          cudaStream_t stream, bool cooperative)
{
    struct hc_function *f = hc_function_of(func);
    if (!f) f = hc_function_get(func);
    if (!f) return INVALID_FUNCTION;
    struct shape s = {
        {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared, .cooperative = cooperative, .runtime = true};
    return launch(f, &s, stream, arguments, NULL);
}

cudaError_t hc_cudaLaunchKernel(const void *func, dim3 gridDim, dim3 blockDim, void **args, size_t sharedMem,
                                cudaStream_t stream)
{
    return runtime_launch(func, gridDim, blockDim, args, sharedMem, stream, false);
}

cudaError_t hc_cudaLaunchCooperativeKernel(const void *func, dim3 gridDim, dim3 blockDim, void **args, size_t sharedMem,
                                           cudaStream_t stream)
{
    return runtime_launch(func, gridDim, blockDim, args, sharedMem, stream, true);
}

/* Attributes tune how a kernel runs, which is up to the interpreter, except for these. */
static int check_attributes(const cudaLaunchAttribute *attributes, unsigned n, bool *cooperative)
{
    *cooperative = false;
    if (n && !attributes) return PSM_CUDA_INVALID_VALUE;
    for (unsigned i = 0; i < n; i++) {
        if ((unsigned)attributes[i].id > cudaLaunchAttributeSharedMemoryMode) return PSM_CUDA_INVALID_VALUE;
        if (attributes[i].id == cudaLaunchAttributeCooperative) *cooperative = attributes[i].val.cooperative != 0;
    }
    return 0;
}

/* Events that a kernel records when its blocks have started, or are done: both are recorded after it. */
static int record_events(const cudaLaunchAttribute *attributes, unsigned n, cudaStream_t stream)
{
    int rc = 0;
    for (unsigned i = 0; i < n && !rc; i++) {
        if (attributes[i].id == cudaLaunchAttributeLaunchCompletionEvent)
            rc = hc_cudaEventRecord(attributes[i].val.launchCompletionEvent.event, stream);
        else if (attributes[i].id == cudaLaunchAttributeProgrammaticEvent)
            rc = hc_cudaEventRecord(attributes[i].val.programmaticEvent.event, stream);
    }
    return rc;
}

cudaError_t hc_cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *func, void **args)
{
    bool cooperative;
    if (!config) return PSM_CUDA_INVALID_VALUE;
    int rc = check_attributes(config->attrs, config->numAttrs, &cooperative);
    if (!rc)
        rc = runtime_launch(func, config->gridDim, config->blockDim, args, config->dynamicSmemBytes, config->stream,
                            cooperative);
    return rc ? rc : record_events(config->attrs, config->numAttrs, config->stream);
}

static int driver_launch(CUfunction handle, const struct shape *s, CUstream stream, void **parameters, void **extra)
{
    int rc = hc_context_require();
    if (rc) return rc;
    struct hc_function *f = hc_function_get(handle);
    return f ? launch(f, s, stream, parameters, extra) : PSM_CUDA_INVALID_HANDLE;
}

CUresult hc_cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
                           unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
                           unsigned int sharedMemBytes, CUstream hStream, void **kernelParams, void **extra)
{
    struct shape s = {{gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes, false, false};
    return driver_launch(f, &s, hStream, kernelParams, extra);
}

CUresult hc_cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
                                      unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
                                      unsigned int sharedMemBytes, CUstream hStream, void **kernelParams)
{
    struct shape s = {{gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes, true, false};
    return driver_launch(f, &s, hStream, kernelParams, NULL);
}

CUresult hc_cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra)
{
    bool cooperative;
    if (!config) return PSM_CUDA_INVALID_VALUE;
    int rc = check_attributes(config->attrs, config->numAttrs, &cooperative);
    struct shape s = {{config->gridDimX, config->gridDimY, config->gridDimZ},
                      {config->blockDimX, config->blockDimY, config->blockDimZ},
                      config->sharedMemBytes,
                      cooperative,
                      false};
    if (!rc) rc = driver_launch(f, &s, config->hStream, kernelParams, extra);
    return rc ? rc : record_events(config->attrs, config->numAttrs, config->hStream);
}
