#include "other.h"

static __global__ void alone() { counter++; }
__global__ void other(int a) { counter += a; }

void from_other(cudaStream_t stream)
{
    alone<<<3, 3, 0, stream>>>();
}
