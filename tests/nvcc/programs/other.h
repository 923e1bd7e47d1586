#include <cuda_runtime.h>

extern __device__ int counter;
__global__ void other(int);
void from_other(cudaStream_t stream);
