/* A host that knows nothing, for a target that is a transport: all its ranks are alive and are rank 0, and CUDA is a
 * table whose every call fails until the target sets its own. */
#ifndef PSM_FUZZ_HOST_H
#define PSM_FUZZ_HOST_H

#include "core/internal.h"
#include "fuzz.h"
#include "psm/psm_host_ops.h"
#include "psm_cuda.h"

enum { FUZZ_CUDA_REFUSED = 801 };

static struct psm_cuda fuzz_cuda;
static struct psm_settings fuzz_settings = {.size = sizeof fuzz_settings};

static int fuzz_refuse(void)
{
    return FUZZ_CUDA_REFUSED;
}
static cudaError_t fuzz_set_device(int device)
{
    (void)device;
    return 0;
}
static const char *fuzz_cuda_name(cudaError_t code)
{
    (void)code;
    return "refused";
}

static int fuzz_no(void *host)
{
    (void)host;
    return 0;
}
static int fuzz_alive(void *host, int rank)
{
    (void)host, (void)rank;
    return 1;
}
static void fuzz_async_error(void *host, psm_status status, const char *text)
{
    (void)host, (void)status, (void)text;
}
static const struct psm_settings *fuzz_settings_of(void *host)
{
    (void)host;
    return &fuzz_settings;
}
static const struct psm_cuda *fuzz_cuda_of(void *host)
{
    (void)host;
    return &fuzz_cuda;
}
/* Members of a struct psm_host_ops; what the target has behind them replaces or adds some. */
#define FUZZ_HOST_OPS                                                                                                  \
    .size = sizeof(struct psm_host_ops), .peer_alive = fuzz_alive, .async_error = fuzz_async_error, .rank = fuzz_no,   \
    .device = fuzz_no, .settings = fuzz_settings_of, .cuda = fuzz_cuda_of

/* False: it was called before. */
static bool fuzz_begin(uint32_t steps, uint64_t buffer)
{
    if (fuzz_settings.steps) return false;
    setenv("PSM_LOG_FILE", "/dev/null", 0);
    fuzz_need(psm_settings_read(&fuzz_settings) == PSM_OK, "no settings");
    fuzz_settings.steps = steps;
    fuzz_settings.buffer_size = buffer;
    /* All members behind the path are pointers to functions. */
    void (*refused)(void) = (void (*)(void))fuzz_refuse;
    for (size_t at = offsetof(struct psm_cuda, cudaRuntimeGetVersion); at < sizeof fuzz_cuda; at += sizeof refused)
        memcpy((char *)&fuzz_cuda + at, &refused, sizeof refused);
    fuzz_cuda.cudaGetErrorName = fuzz_cuda.cudaGetErrorString = fuzz_cuda_name;
    fuzz_cuda.cudaSetDevice = fuzz_set_device;
    return true;
}

static void fuzz_reasoned(psm_status status)
{
    fuzz_need(status >= 0 || psm_last_error()->text[0] != 0, "refused without a reason");
}

#ifndef PSMKIT_LIBFUZZER
/* Appends the size of a part as 16 bits, and the part: `more` bytes longer than `from`. */
static size_t fuzz_put(uint8_t *out, size_t n, const void *from, size_t size, size_t more)
{
    out[n++] = (uint8_t)(size + more);
    out[n++] = (uint8_t)((size + more) >> 8);
    memcpy(out + n, from, size);
    memset(out + n + size, 9, more);
    return n + size + more;
}
#endif
#endif
