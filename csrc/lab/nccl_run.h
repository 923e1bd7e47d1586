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
    /* of the pattern `tasks`: further communicators and streams; the call that data is of, and the rank in its
     * communicator that it comes from */
    ncclComm_t *comms;
    cudaStream_t *streams;
    const struct nccl_call *call;
    int source;
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

/* nccl_work.c: writes what rank `to` is sent, and looks at what came from `from`; what follows up to `all` is
 * untouched.
 */
bool nccl_write_out(struct nccl_work *run, uint8_t *to_memory, uint64_t bytes, int to, uint64_t data);
bool nccl_compare(struct nccl_work *run, const uint8_t *memory, uint64_t bytes, uint64_t all, int from, uint64_t data);

/* nccl_tasks.c: the pattern `tasks`. _begin, _streams: its further communicators and streams; _write, _compare: the
 * data of all calls of an iteration; _fill, _meant: that of run->call. */
bool nccl_tasks_begin(struct nccl_work *run);
bool nccl_tasks_streams(struct nccl_work *run, unsigned flags);
ncclComm_t nccl_tasks_comm(const struct nccl_work *run, size_t i);
bool nccl_tasks_launch(struct nccl_work *run, uint64_t iter);
bool nccl_tasks_write(struct nccl_work *run, uint64_t data);
bool nccl_tasks_compare(struct nccl_work *run, uint64_t data);
void nccl_tasks_fill(struct nccl_work *run, uint8_t *out, uint64_t n, uint64_t at, uint64_t data);
void nccl_tasks_meant(struct nccl_work *run, uint64_t n, uint64_t at, uint64_t data);

#endif
