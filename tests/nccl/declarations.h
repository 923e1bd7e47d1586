/* What csrc/nccl takes from NCCL's headers, declared by us: names, signatures and numbers are facts of the releases
 * (facts/), bodies are the least that compiles. It is compiled, never linked to an NCCL. */
#ifndef PSM_TEST_NCCL_DECLARATIONS_H
#define PSM_TEST_NCCL_DECLARATIONS_H

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sys/types.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "numbers.h"

#define NCCL_VERSION(major, minor, patch) ((major) * 10000 + (minor) * 100 + (patch))
#define NCCL_VERSION_CODE                 NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH)

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7
} ncclResult_t;
enum ncclProxyOpState { ncclProxyOpNone, ncclProxyOpReady, ncclProxyOpProgress };
enum ncclIpcRegType { NCCL_IPC_SENDRECV = 0, NCCL_IPC_COLLECTIVE = 1 };
enum { NCCL_PROTO_LL, NCCL_PROTO_LL128, NCCL_PROTO_SIMPLE, NCCL_NUM_PROTOCOLS };
enum { MAXCHANNELS = 64, NCCL_STEPS = 8, NCCL_P2P_WRITE = 1, NCCL_REG = 0x2000 };
#define NTRANSPORTS 4
enum ncclProxyMsgType { ncclProxyMsgSetup = 3, ncclProxyMsgConnect = 4 };
#if NCCL_TREE_HOOKED
#define TRANSPORT_PSM_P2P 5
enum { PSM_P2P_REG_COMPLETE = 0x2000 };
#endif

struct ncclComm;
struct ncclTopoGraph;
struct ncclTopoSystem;
typedef struct ncclComm *ncclComm_t;

template <typename T, T *T::*next> struct ncclIntruQueue {
    T *head, *tail;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 31, 2)
    int nElems;
#endif
};
template <typename T, T *T::*next> T *ncclIntruQueueHead(ncclIntruQueue<T, next> *me)
{
    return me->head;
}
template <typename T, T *T::*next> void ncclIntruQueueEnqueue(ncclIntruQueue<T, next> *me, T *x);

#include "layouts.h"

#define NCCLCHECK(call)                                                                                                \
    do {                                                                                                               \
        ncclResult_t result_ = (call);                                                                                 \
        if (result_ != ncclSuccess) return result_;                                                                    \
    } while (0)
#define CUDACHECK(call)                                                                                                \
    do {                                                                                                               \
        if ((call) != cudaSuccess) return ncclUnhandledCudaError;                                                      \
    } while (0)
#define WARN(...)                  fprintf(stderr, __VA_ARGS__)
#define INFO(flags, ...)           ((void)(flags), fprintf(stderr, __VA_ARGS__))
#define CUPFN(name)                pfn_##name
#define NCCL_PARAM(name, env, def) int64_t ncclParam##name();
extern CUresult (*pfn_cuMemGetAddressRange)(CUdeviceptr *, size_t *, CUdeviceptr);

template <typename T> ncclResult_t ncclCalloc(T **out, size_t count)
{
    *out = static_cast<T *>(calloc(count, sizeof(T)));
    return *out ? ncclSuccess : ncclSystemError;
}
const char *ncclGetErrorString(ncclResult_t result);
int ncclCuMemEnable();
ncclResult_t int64ToBusId(int64_t id, char *text);
ncclResult_t busIdToInt64(const char *text, int64_t *id);
void ncclP2pPartBounds(int parts, int part, size_t bytes, size_t *begin, size_t *end);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 31, 2)
ncclResult_t ncclTopoCheckP2p(ncclComm *, ncclTopoSystem *, int, int, int *p2p, int *read, int *between, int *cudaP2p,
                              int *crossClique = nullptr);
#elif NCCL_MINOR >= 28
ncclResult_t ncclTopoCheckP2p(ncclComm *, ncclTopoSystem *, int, int, int *p2p, int *read, int *between, int *cudaP2p);
#else
ncclResult_t ncclTopoCheckP2p(ncclComm *, ncclTopoSystem *, int, int, int *p2p, int *read, int *between);
#endif
ncclResult_t ncclTopoCheckNet(ncclTopoSystem *, int, int, int *net);
ncclResult_t ncclProxyConnect(ncclComm *, int transport, int send, int rank, ncclProxyConnector *);
ncclResult_t ncclProxyCallAsync(ncclComm *, ncclProxyConnector *, int type, void *, int, int, void *id);
ncclResult_t ncclPollProxyResponse(ncclComm *, ncclProxyConnector *, void *, void *id);
ncclResult_t ncclRegFind(ncclComm *, const void *, size_t, ncclReg **);
ncclResult_t ncclRegLocalIsValid(ncclReg *, bool *);
typedef enum {
    ncclProfilerProxyOpSendTransmitted = 2,
    ncclProfilerProxyOpSendDone = 3,
    ncclProfilerProxyOpRecvTransmitted = 6,
    ncclProfilerProxyOpRecvDone = 7,
    ncclProfilerProxyStepSendWait = 9,
    ncclProfilerProxyStepRecvWait = 10,
    ncclProfilerProxyStepRecvGPUWait = 12
} ncclProfilerEventState_t;
#if NCCL_MINOR >= 27
ncclResult_t ncclProfilerRecordProxyOpEventState(int sub, ncclProxyArgs *, ncclProfilerEventState_t);
#else
ncclResult_t ncclProfilerStartSendProxyOpEvent(int sub, ncclProxyArgs *);
ncclResult_t ncclProfilerStartRecvProxyOpEvent(int sub, ncclProxyArgs *);
ncclResult_t ncclProfilerRecordProxyOpEventState(int sub, ncclProxyArgs *, int steps, size_t bytes,
                                                 ncclProfilerEventState_t);
#endif
ncclResult_t ncclProfilerStopProxyOpEvent(int sub, ncclProxyArgs *);
ncclResult_t ncclProfilerStartSendProxyStepEvent(int sub, ncclProxyArgs *, int step);
ncclResult_t ncclProfilerStartRecvProxyStepEvent(int sub, ncclProxyArgs *, int step);
ncclResult_t ncclProfilerRecordProxyStepEventState(int sub, ncclProxyArgs *, int step, ncclProfilerEventState_t);
ncclResult_t ncclProfilerStopProxyStepEvent(int sub, ncclProxyArgs *, int step);
extern struct ncclTransport p2pTransport, psmP2pTransport;
#if NCCL_TREE_HOOKED
ncclResult_t psmIpcLocalRegisterBuffer(ncclComm *, const void *, size_t, int *, int, ncclIpcRegType, int *, uintptr_t *,
                                       uintptr_t **);
ncclResult_t psmIpcDeregBuffer(ncclComm *, ncclIpcRegInfo *);
#endif

#endif
