/* Names and texts of errors, and the runtime's last error. The names are CUDA's, the texts are our own. */
#define _GNU_SOURCE
#include "core/hc.h"

struct error {
    int code;
    const char *runtime, *driver, *text;
};

/* By code. */
static const struct error errors[] = {
#define ERROR(code, runtime, driver, text) {code, runtime, driver, text},
#include "errors.def"
#undef ERROR
};

static const struct error *find(int code)
{
    size_t low = 0, high = sizeof errors / sizeof *errors;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (errors[middle].code < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < sizeof errors / sizeof *errors && errors[low].code == code ? &errors[low] : NULL;
}

static const char unrecognized[] = "unrecognized error code";

const char *hc_cudaGetErrorName(cudaError_t error)
{
    const struct error *known = find(error);
    return known && known->runtime ? known->runtime : unrecognized;
}

const char *hc_cudaGetErrorString(cudaError_t error)
{
    const struct error *known = find(error);
    return known && known->runtime ? known->text : unrecognized;
}

CUresult hc_cuGetErrorName(CUresult error, const char **pStr)
{
    const struct error *known = find(error);
    if (!pStr) return PSM_CUDA_INVALID_VALUE;
    *pStr = known ? known->driver : NULL;
    return *pStr ? 0 : PSM_CUDA_INVALID_VALUE;
}

CUresult hc_cuGetErrorString(CUresult error, const char **pStr)
{
    const struct error *known = find(error);
    if (!pStr) return PSM_CUDA_INVALID_VALUE;
    *pStr = known && known->driver ? known->text : NULL;
    return *pStr ? 0 : PSM_CUDA_INVALID_VALUE;
}

cudaError_t hc_cudaGetLastError(void)
{
    int error = *hc_last_error();
    *hc_last_error() = 0;
    return error;
}

cudaError_t hc_cudaPeekAtLastError(void)
{
    return *hc_last_error();
}
