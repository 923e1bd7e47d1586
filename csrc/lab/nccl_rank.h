/* The rank program of `psmkit lab nccl`: one process of a job, which drives the NCCL library that it is given. It is
 * compiled without NCCL's headers: what is declared here is NCCL's public API, which only grows. */
#ifndef PSM_LAB_NCCL_RANK_H
#define PSM_LAB_NCCL_RANK_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bootstrap.h"
#include "outcome.h"
#include "task.h"
#include "types.h"
#include "types_graph.h"
#include "types_memory.h"
#include "types_stream.h"

/* ---- NCCL's public API ---- */

typedef struct ncclComm *ncclComm_t;
typedef int ncclResult_t, ncclDataType_t, ncclRedOp_t; /* enums */
typedef struct {
    char internal[128];
} ncclUniqueId;
enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7 };
/* Of 2.27, the first with a policy. Later releases read as much of it as `size` and `version` tell, and earlier ones as
 * much as they know. */
struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cluster, fewest, most;
    const char *net;
    int split_share, traffic_class;
    const char *name;
    int collnet, policy, shrink_share, nvls;
};
enum { NCCL_UNDEFINED = INT_MIN };
#define NCCL_CONFIG_MAGIC 0xcafebeefu
typedef struct ncclWindow_vidmem *ncclWindow_t;
enum { NCCL_WINDOW_SYMMETRIC = 1 };
typedef struct {
    int count, peer, index, context;
} ncclWaitSignalDesc_t;

/* X(name, result, must be there, parameters...) */
#define NCCL_FUNCTIONS(X)                                                                                              \
    X(ncclGetVersion, ncclResult_t, true, int *)                                                                       \
    X(ncclGetUniqueId, ncclResult_t, true, ncclUniqueId *)                                                             \
    X(ncclCommInitRank, ncclResult_t, true, ncclComm_t *, int, ncclUniqueId, int)                                      \
    X(ncclCommInitRankConfig, ncclResult_t, false, ncclComm_t *, int, ncclUniqueId, int, struct nccl_config *)         \
    X(ncclCommFinalize, ncclResult_t, false, ncclComm_t)                                                               \
    X(ncclCommDestroy, ncclResult_t, true, ncclComm_t)                                                                 \
    X(ncclCommAbort, ncclResult_t, true, ncclComm_t)                                                                   \
    X(ncclCommGetAsyncError, ncclResult_t, true, ncclComm_t, ncclResult_t *)                                           \
    X(ncclGetErrorString, const char *, true, ncclResult_t)                                                            \
    X(ncclGetLastError, const char *, false, ncclComm_t)                                                               \
    X(ncclGroupStart, ncclResult_t, true, void)                                                                        \
    X(ncclGroupEnd, ncclResult_t, true, void)                                                                          \
    X(ncclSend, ncclResult_t, true, const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t)               \
    X(ncclRecv, ncclResult_t, true, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t)                     \
    X(ncclAllReduce, ncclResult_t, true, const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,        \
      cudaStream_t)                                                                                                    \
    X(ncclAllGather, ncclResult_t, true, const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t)       \
    X(ncclReduceScatter, ncclResult_t, true, const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,    \
      cudaStream_t)                                                                                                    \
    X(ncclBroadcast, ncclResult_t, true, const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t)  \
    X(ncclReduce, ncclResult_t, true, const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t,      \
      cudaStream_t)                                                                                                    \
    X(ncclMemAlloc, ncclResult_t, false, void **, size_t)                                                              \
    X(ncclMemFree, ncclResult_t, false, void *)                                                                        \
    X(ncclCommRegister, ncclResult_t, false, ncclComm_t, void *, size_t, void **)                                      \
    X(ncclCommDeregister, ncclResult_t, false, ncclComm_t, void *)                                                     \
    X(ncclCommWindowRegister, ncclResult_t, false, ncclComm_t, void *, size_t, ncclWindow_t *, int)                    \
    X(ncclCommWindowDeregister, ncclResult_t, false, ncclComm_t, ncclWindow_t)                                         \
    X(ncclAlltoAll, ncclResult_t, false, const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t)       \
    X(ncclGather, ncclResult_t, false, const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t)    \
    X(ncclScatter, ncclResult_t, false, const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t)   \
    X(ncclPutSignal, ncclResult_t, false, const void *, size_t, ncclDataType_t, int, ncclWindow_t, size_t, int, int,   \
      unsigned, ncclComm_t, cudaStream_t)                                                                              \
    X(ncclSignal, ncclResult_t, false, int, int, int, unsigned, ncclComm_t, cudaStream_t)                              \
    X(ncclWaitSignal, ncclResult_t, false, int, ncclWaitSignalDesc_t *, ncclComm_t, cudaStream_t)

#define CUDA_FUNCTIONS(X)                                                                                              \
    X(cudaGetDeviceCount, cudaError_t, true, int *)                                                                    \
    X(cudaSetDevice, cudaError_t, true, int)                                                                           \
    X(cudaMalloc, cudaError_t, true, void **, size_t)                                                                  \
    X(cudaFree, cudaError_t, true, void *)                                                                             \
    X(cudaMemcpy, cudaError_t, true, void *, const void *, size_t, enum cudaMemcpyKind)                                \
    X(cudaMemset, cudaError_t, true, void *, int, size_t)                                                              \
    X(cudaStreamCreateWithFlags, cudaError_t, true, cudaStream_t *, unsigned)                                          \
    X(cudaStreamDestroy, cudaError_t, true, cudaStream_t)                                                              \
    X(cudaStreamQuery, cudaError_t, true, cudaStream_t)                                                                \
    X(cudaStreamSynchronize, cudaError_t, true, cudaStream_t)                                                          \
    X(cudaStreamBeginCapture, cudaError_t, false, cudaStream_t, enum cudaStreamCaptureMode)                            \
    X(cudaStreamEndCapture, cudaError_t, false, cudaStream_t, cudaGraph_t *)                                           \
    X(cudaGraphInstantiateWithFlags, cudaError_t, false, cudaGraphExec_t *, cudaGraph_t, unsigned long long)           \
    X(cudaGraphLaunch, cudaError_t, false, cudaGraphExec_t, cudaStream_t)                                              \
    X(cudaGraphExecDestroy, cudaError_t, false, cudaGraphExec_t)                                                       \
    X(cudaGraphDestroy, cudaError_t, false, cudaGraph_t)                                                               \
    X(cudaGetErrorName, const char *, true, cudaError_t)

struct nccl_api {
#define MEMBER(name, result, must, ...) result (*name)(__VA_ARGS__);
    NCCL_FUNCTIONS(MEMBER)
    CUDA_FUNCTIONS(MEMBER)
#undef MEMBER
    int version; /* 22662 for 2.26.62 */
};
/* Loads the library and the CUDA runtime that it is linked to; where it brings its own, libcudart.so.12 of the library
 * path. false: *text says what is wrong. */
bool nccl_load(struct nccl_api *api, const char *library, char *text, size_t size);

/* ---- one line of the list of cases ---- */

enum nccl_op { OP_SUM, OP_PROD, OP_MAX, OP_MIN, OP_AVG };
enum nccl_memory { MEMORY_CUDA, MEMORY_NCCL };
enum nccl_policy { POLICY_DEFAULT, POLICY_EFFICIENCY, POLICY_ZERO }; /* the library's numbers */

/* A call of a group, for the pattern `tasks`. */
enum nccl_func {
    CALL_SEND,
    CALL_RECV,
    CALL_ALLREDUCE,
    CALL_ALLGATHER,
    CALL_REDUCESCATTER,
    CALL_BROADCAST,
    CALL_REDUCE
};
struct nccl_call {
    bool ends, waits; /* no call: the end of its group; wait for all groups before, and look at their data */
    enum nccl_func func;
    unsigned comm, stream, type; /* comm 0: that of all ranks */
    enum nccl_op op;
    int peer;        /* or root */
    uint32_t number; /* of a message among those of its two ranks and direction, of a collective in its communicator */
    uint64_t bytes;  /* of a message, of a rank's part */
    uint64_t at[2];  /* in the buffer of what it gets, of what it gives */
};
/* A communicator of some ranks of the job. me: this rank in it, size: it is no member. */
struct nccl_member {
    int me, size, owner;
};
struct nccl_tasks {
    uint64_t lines, iterations;
    struct nccl_call *calls;
    size_t n, room;
    struct nccl_member *members;
    size_t n_members, members_room;
    unsigned streams;  /* beside the first */
    uint64_t bytes[2]; /* of the buffer of what calls get, of that of what they give */
};

struct nccl_case {
    struct lab_task task;
    enum nccl_op op;
    enum nccl_memory memory; /* where buffers are from */
    unsigned type;           /* ncclDataType_t */
    uint64_t root;
    int ranks;     /* of the job */
    bool blocking; /* communicator */
    bool keep;     /* the communicator stays for the next case, which has to be of the same device and policy */
    bool windows;  /* both buffers are symmetric windows */
    enum nccl_policy policy;
    uint64_t graph; /* each iteration is captured, and launched so many times; 0: it is not captured */
    struct nccl_tasks tasks;
};
/* 1: a case; 0: the list has ended; -1: text says what is wrong. */
int nccl_case_read(struct nccl_case *c, int ranks, char *text, size_t size);
/* The lines behind a case whose pattern is `tasks`. false: text says what is wrong. */
bool nccl_tasks_read(struct nccl_case *c, char *text, size_t size);
void nccl_tasks_free(struct nccl_case *c);

/* ---- data ---- */

size_t nccl_type_size(unsigned type);
/* Bytes that `from` sends to `to`: whole elements. */
uint64_t nccl_message(const struct nccl_case *c, int from, int to, uint64_t iter);
/* Bytes [at, at + n) of a rank's contribution to a reduction: elements whose results are exact in any order. */
void nccl_fill_part(uint8_t *out, uint64_t n, uint64_t at, const struct nccl_case *c, int rank, int ranks,
                    uint64_t iter);
/* What the reduction of all contributions is. */
void nccl_fill_result(uint8_t *out, uint64_t n, uint64_t at, const struct nccl_case *c, int ranks, uint64_t iter);

/* ---- one case ---- */

struct nccl_outcome {
    struct lab_outcome o;
    char status[48]; /* "PSM_OK", or what failed: ncclSystemError, cudaErrorInvalidValue, wrong data, ... */
    char text[600];
    bool stuck; /* it failed, and its stream did not come to an end */
};
void nccl_run(const struct nccl_api *api, const struct nccl_case *c, int rank, int ranks, struct nccl_outcome *outcome);
void nccl_report(const struct nccl_outcome *outcome);
void nccl_trouble(const struct nccl_outcome *outcome); /* the first failure, as soon as it is known */

#endif
