/* CUDA types of one area (stream); see types.h for the rules. */
#ifndef PSM_CUDA_TYPES_STREAM_H
#define PSM_CUDA_TYPES_STREAM_H
#include "types.h"
#include "types_device.h"

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
#endif
