/* What the files of a case share: what one case has, and how its calls end. */
#ifndef PSM_LAB_NCCL_RUN_H
#define PSM_LAB_NCCL_RUN_H

#include "nccl_rank.h"

struct nccl_work {
    const struct nccl_api *api;
    const struct nccl_case *c;
    struct nccl_outcome *result;
    int rank, ranks;
    bool failed;
    ncclComm_t comm;
    cudaStream_t stream;
    uint8_t *out, *in;            /* device memory */
    uint64_t out_bytes, in_bytes; /* without the guard behind them */
    uint64_t stride;              /* of a peer's messages in both */
    void *out_handle, *in_handle; /* of registration */
    ncclWindow_t out_window, in_window;
    uint8_t *piece, *meant; /* host memory, PIECE bytes each */
    uint64_t message;       /* of several between two ranks: which one data is of */
};

/* Notes and sends the first failure. Always false. */
bool nccl_fail(struct nccl_work *run, const char *by, const char *status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Waits while a communicator that does not block says so; false if the call `what` failed. */
bool nccl_settle(struct nccl_work *run, ncclResult_t code, const char *what);
bool nccl_cuda_ok(struct nccl_work *run, cudaError_t code, const char *call);
#define NCCL(function, ...) nccl_settle(run, run->api->function(__VA_ARGS__), #function)
#define CUDA(function, ...) nccl_cuda_ok(run, run->api->function(__VA_ARGS__), #function)

/* nccl_calls.c: the calls of an iteration, and a graph of them; what this rank leaves out of it, and of a message. */
enum lab_skip nccl_skipped(const struct nccl_work *run, uint64_t iter);
uint64_t nccl_shortened(const struct nccl_case *c, uint64_t bytes);
bool nccl_launch(struct nccl_work *run, uint64_t iter);
bool nccl_capture(struct nccl_work *run, uint64_t iter, cudaGraphExec_t *graph);

/* nccl_tasks.c: the pattern `tasks`. _each: all sends, or all recvs, of the group that has this data, until one fails.
 */
typedef bool nccl_message_fn(struct nccl_work *run, const struct nccl_call *call, uint64_t data);
bool nccl_tasks_launch(struct nccl_work *run, uint64_t iter);
bool nccl_tasks_each(struct nccl_work *run, uint64_t data, bool send, nccl_message_fn *each);

#endif
