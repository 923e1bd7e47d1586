/* The runtime's last error. */
#define _GNU_SOURCE
#include "hc.h"

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
