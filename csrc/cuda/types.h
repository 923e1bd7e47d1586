/* CUDA types that cross the ABI, written independently: sizes, offsets and values as in CUDA 12.9 and 13.5. Types of
 * one area are in types_<area>.h. tests/hostcuda/test_api_facts.py compares all of it with the headers of the PyPI
 * packages. cffi reads these files too: they have plain declarations, and no preprocessor lines except `#define NAME
 * number`. */
#ifndef PSM_CUDA_TYPES_H
#define PSM_CUDA_TYPES_H
#include <stddef.h>
#include <stdint.h>

typedef int cudaError_t;  /* enum cudaError */
typedef int CUresult;     /* the same numbers as cudaError_t for errors that both define */
typedef int nvmlReturn_t; /* numbers of its own */

typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUlib_st *CUlibrary;
typedef struct CUkern_st *CUkernel;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUuserObject_st *CUuserObject;
typedef CUstream cudaStream_t;
typedef CUevent cudaEvent_t;
typedef CUgraph cudaGraph_t;
typedef CUgraphNode cudaGraphNode_t;
typedef CUgraphExec cudaGraphExec_t;
typedef CUmemoryPool cudaMemPool_t;
typedef CUuserObject cudaUserObject_t;
typedef CUfunction cudaFunction_t;
typedef CUkernel cudaKernel_t;
typedef CUlibrary cudaLibrary_t;
typedef struct cudaArray *cudaArray_t;
typedef const struct cudaArray *cudaArray_const_t;
typedef struct CUarray_st *CUarray;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef unsigned long long cuuint64_t;
typedef unsigned int cuuint32_t;

typedef struct CUuuid_st {
    char bytes[16];
} CUuuid;
typedef CUuuid cudaUUID_t;

struct dim3 {
    unsigned int x, y, z;
};
typedef struct dim3 dim3;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost = 0,
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4
};

/* Special values of cudaStream_t that are not handles. */
#define PSM_CUDA_STREAM_DEFAULT    0
#define PSM_CUDA_STREAM_LEGACY     1
#define PSM_CUDA_STREAM_PER_THREAD 2

/* Errors, by the runtime's numbers; the driver's are the same. */
#define PSM_CUDA_SUCCESS                        0
#define PSM_CUDA_INVALID_VALUE                  1
#define PSM_CUDA_OUT_OF_MEMORY                  2
#define PSM_CUDA_NOT_INITIALIZED                3
#define PSM_CUDA_DEINITIALIZED                  4
#define PSM_CUDA_INSUFFICIENT_DRIVER            35
#define PSM_CUDA_NO_DEVICE                      100
#define PSM_CUDA_INVALID_DEVICE                 101
#define PSM_CUDA_INVALID_CONTEXT                201
#define PSM_CUDA_MAP_FAILED                     205
#define PSM_CUDA_NO_KERNEL_IMAGE                209
#define PSM_CUDA_PEER_ACCESS_UNSUPPORTED        217
#define PSM_CUDA_OPERATING_SYSTEM               304
#define PSM_CUDA_INVALID_HANDLE                 400
#define PSM_CUDA_ILLEGAL_STATE                  401
#define PSM_CUDA_NOT_FOUND                      500
#define PSM_CUDA_NOT_READY                      600
#define PSM_CUDA_ILLEGAL_ADDRESS                700
#define PSM_CUDA_PEER_ACCESS_ALREADY_ENABLED    704
#define PSM_CUDA_PEER_ACCESS_NOT_ENABLED        705
#define PSM_CUDA_CONTEXT_IS_DESTROYED           709
#define PSM_CUDA_HOST_MEMORY_ALREADY_REGISTERED 712
#define PSM_CUDA_HOST_MEMORY_NOT_REGISTERED     713
#define PSM_CUDA_LAUNCH_FAILURE                 719
#define PSM_CUDA_NOT_PERMITTED                  800
#define PSM_CUDA_NOT_SUPPORTED                  801
#define PSM_CUDA_SYSTEM_DRIVER_MISMATCH         803
#define PSM_CUDA_STREAM_CAPTURE_UNSUPPORTED     900
#define PSM_CUDA_STREAM_CAPTURE_INVALIDATED     901
#define PSM_CUDA_STREAM_CAPTURE_UNMATCHED       903
#define PSM_CUDA_STREAM_CAPTURE_UNJOINED        904
#define PSM_CUDA_STREAM_CAPTURE_ISOLATION       905
#define PSM_CUDA_STREAM_CAPTURE_IMPLICIT        906
#define PSM_CUDA_CAPTURED_EVENT                 907
#define PSM_CUDA_STREAM_CAPTURE_WRONG_THREAD    908
#define PSM_CUDA_UNKNOWN                        999
#endif
