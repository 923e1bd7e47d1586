/* CUDA types of one area (stream); see types.h for the rules. */
#ifndef PSM_CUDA_TYPES_STREAM_H
#define PSM_CUDA_TYPES_STREAM_H
#include "types.h"
#include "types_device_launch.h"

typedef void (*cudaHostFn_t)(void *userData);
typedef void (*cudaStreamCallback_t)(cudaStream_t stream, cudaError_t status, void *userData);
typedef void (*CUhostFn)(void *userData);
typedef void (*CUstreamCallback)(CUstream hStream, CUresult status, void *userData);

#define cudaStreamDefault       0
#define cudaStreamNonBlocking   1
#define cudaEventDefault        0
#define cudaEventBlockingSync   1
#define cudaEventDisableTiming  2
#define cudaEventInterprocess   4
#define cudaEventRecordDefault  0
#define cudaEventRecordExternal 1
#define cudaEventWaitDefault    0
#define cudaEventWaitExternal   1

/* Attributes of streams are those of launches; the runtime and the driver have the same numbers and layouts. */
typedef cudaLaunchAttributeID CUstreamAttrID;
typedef cudaLaunchAttributeValue CUstreamAttrValue;

/* Stream memory operations. */
#define CU_STREAM_WAIT_VALUE_GEQ                0
#define CU_STREAM_WAIT_VALUE_EQ                 1
#define CU_STREAM_WAIT_VALUE_AND                2
#define CU_STREAM_WAIT_VALUE_NOR                3
#define CU_STREAM_WAIT_VALUE_FLUSH              0x40000000
#define CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER 1
#define CU_STREAM_MEM_OP_WAIT_VALUE_32          1
#define CU_STREAM_MEM_OP_WRITE_VALUE_32         2
#define CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES    3
#define CU_STREAM_MEM_OP_WAIT_VALUE_64          4
#define CU_STREAM_MEM_OP_WRITE_VALUE_64         5
#define CU_STREAM_MEM_OP_BARRIER                6
#define CU_STREAM_MEM_OP_ATOMIC_REDUCTION       8
#define CU_ATOMIC_OPERATION_INTEGER_ADD         0
#define CU_ATOMIC_OPERATION_AND                 5
#define CU_ATOMIC_OPERATION_OR                  6
#define CU_STREAM_ATOMIC_REDUCTION_UNSIGNED_32  14
#define CU_STREAM_ATOMIC_REDUCTION_UNSIGNED_64  22

typedef int CUstreamBatchMemOpType;
typedef union CUstreamBatchMemOpParams_union {
    CUstreamBatchMemOpType operation;
    struct {
        CUstreamBatchMemOpType operation;
        CUdeviceptr address;
        union {
            cuuint32_t value;
            cuuint64_t value64;
        };
        unsigned int flags;
        CUdeviceptr alias;
    } waitValue, writeValue;
    struct {
        CUstreamBatchMemOpType operation;
        unsigned int flags;
    } flushRemoteWrites, memoryBarrier;
    struct {
        CUstreamBatchMemOpType operation;
        unsigned int flags;
        int reductionOp, dataType;
        CUdeviceptr address;
        cuuint64_t value;
        CUdeviceptr alias;
    } atomicReduction;
    cuuint64_t pad[6];
} CUstreamBatchMemOpParams;
#endif
