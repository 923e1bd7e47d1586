/* Internals of hostcuda: the interfaces between its parts. Errors are the runtime's numbers (csrc/cuda/types.h), which
 * the driver shares. */
#ifndef HC_H
#define HC_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hc_table.h" /* made from api.def: enum hc_fn */
#include "types.h"
#include "types_copy.h"
#include "types_device.h"
#include "types_device_launch.h"
#include "types_graph.h"
#include "types_memory.h"
#include "types_nvml.h"
#include "types_stream.h"

/* ---- calls (process.c)
 * ----------------------------------------------------------------------------------------------- */

enum hc_api { HC_API_CUDART12, HC_API_CUDART13, HC_API_CUDA, HC_API_NVML };
enum { HC_LIB_RT, HC_LIB_DRV, HC_LIB_NVML };

/* One exported call; on the caller's stack while it runs. */
struct hc_call {
    int fn;                 /* enum hc_fn */
    int api;                /* enum hc_api: through which library */
    int per_thread_default; /* called as NAME_ptsz or NAME_ptds: stream 0 is the per-thread default stream */
    struct hc_call *outer;  /* filled by hc_enter */
};

struct hc_fn_info {
    const char *name, *base, *variant;
    int library;
    int sonames; /* bit 0: libcudart.so.12, bit 1: .13 */
    int since;   /* driver: CUDA version, 11030 = 11.3 */
    int provided;
};
extern const struct hc_fn_info hc_functions[HC_FN_COUNT];

/* Every exported function runs between these two. hc_enter counts, starts the library, rejects calls after fork and
 * inside host functions (cudaErrorNotPermitted), and returns sticky errors and faults; if it does not return 0 the call
 * is not made. hc_leave applies late faults and stores the runtime's last error. */
int hc_enter(struct hc_call *call);
int hc_leave(struct hc_call *call, int rc);
int hc_unsupported(int fn, int api, int code);
enum { HC_DROPPED = -1 }; /* of hc_enter: the call is not made and succeeds, which a fault asks for */
/* Whether a fault asks for this action (enum psm_fault_action) of the call that runs; true once a call. */
bool hc_fault_asks(int action, int64_t *value);
void hc_count(int fn);
int *hc_last_error(void);                        /* the runtime's last error of this thread */
const struct hc_call *hc_current_call(void);     /* of this thread, or NULL */
extern _Thread_local struct hc_call *hc_running; /* the same; hc_enter and hc_leave set it */

/* Errors that CUDA reports at a later call: asynchronous failures stick to the device until cudaDeviceReset. */
bool hc_device_fail(int device, int code); /* true: the first of the device */
int hc_device_sticky(int device);

/* Options, read once from the environment: PSM_HOSTCUDA_STRICT (1), PSM_HOSTCUDA_INLINE (1),
   PSM_HOSTCUDA_HOST_FUNCTIONS (concurrent|serial), PSM_HOSTCUDA (force), PSM_HOSTCUDA_SANITIZE (off|warn|error),
   PSM_TOPOLOGY, PSM_NODE. */
struct hc_options {
    bool strict;      /* device addresses are PROT_NONE for the host */
    bool inline_work; /* small work on an idle stream may run in the calling thread */
    bool serial_host_functions;
    bool force;
    int sanitize; /* 0 off, 1 warn, 2 error */
};
extern struct hc_options hc_options;

/* ---- handles (handle.c)
 * ---------------------------------------------------------------------------------------------- */

enum hc_kind {
    HC_NONE,
    HC_STREAM,
    HC_EVENT,
    HC_MEM,
    HC_POOL,
    HC_GRAPH,
    HC_NODE,
    HC_EXEC,
    HC_USER_OBJECT,
    HC_CONTEXT,
    HC_MODULE,
    HC_FUNCTION,
    HC_LIBRARY,
    HC_KINDS
};

/* A handle is a number that is unique on this machine: 16 random bits of the process, a generation, an index. It is not
 * an address (dereferencing it faults), so it is never valid by chance in another process. Objects are type-stable:
 * their memory is reused only for objects of the same kind, so a thread that races with a destroy sees a dead object,
 * not foreign memory. */
uint64_t hc_handle_new(enum hc_kind kind, void *object); /* 0: out of handles */
void *hc_handle_get(enum hc_kind kind, uint64_t value);  /* NULL: not alive here, or of another kind */
void *hc_handle_end(enum hc_kind kind, uint64_t value);  /* removes it from the table; NULL as above */
void hc_handle_each(enum hc_kind kind, void (*visit)(uint64_t value, void *object, void *context), void *context);
uint32_t hc_process_tag(void); /* the 16 bits */

/* ---- devices and contexts (device.c, context.c, topology.c)
 * ------------------------------------------------------------ */

#define HC_MAX_DEVICES 64
int hc_device_count(void);
int hc_current_device(void);             /* of this thread; 0 when never set */
int hc_set_current_device(int device);   /* invalid device: an error */
bool hc_peer_possible(int from, int to); /* topology */
bool hc_peer_enabled(int from, int to);  /* cudaDeviceEnablePeerAccess was called */
uint64_t hc_device_total_memory(int device);
CUcontext hc_primary_context(int device);
int hc_context_device(CUcontext context); /* -1: not a context */
CUcontext hc_context_current(void);       /* of this thread, or NULL */
int hc_context_require(void); /* driver calls that need a current context: INVALID_CONTEXT, CONTEXT_IS_DESTROYED or 0 */
void hc_context_bind(
    int fn); /* runtime calls that do more than query: if there is no context, a primary context becomes current */
/* Priorities that streams can have. */
enum { HC_PRIORITY_LEAST = 0, HC_PRIORITY_GREATEST = -5 };
/* Memory of a device in use, for cudaMemGetInfo and cudaErrorMemoryAllocation. Returns 0 or OUT_OF_MEMORY; a negative n
 * releases. */
int hc_device_account(int device, int64_t n);

/* ---- memory (range.c, malloc.c, vmm.c, ipc.c, pool.c, host.c)
 * ---------------------------------------------------------- */

enum hc_space { HC_PAGEABLE, HC_PINNED, HC_DEVICE, HC_MANAGED };
enum hc_origin {
    HC_FROM_MALLOC,
    HC_FROM_POOL,
    HC_FROM_HOST_ALLOC,
    HC_FROM_REGISTER,
    HC_FROM_VMM,
    HC_FROM_IPC,
    HC_FROM_MANAGED
};

/* What is known about an address. */
struct hc_place {
    uintptr_t base; /* of the allocation as the application knows it */
    size_t size;
    enum hc_space space;
    enum hc_origin origin;
    int device;      /* owner; -1 for pageable memory */
    uint64_t id;     /* unique in the process, never reused (CU_POINTER_ATTRIBUTE_BUFFER_ID) */
    unsigned flags;  /* of cudaHostAlloc / cudaHostRegister / cudaIpcOpenMemHandle */
    int memfd;       /* -1 for host memory and what was opened by IPC; stays owned by the allocation */
    uint64_t offset; /* of base in the memfd */
    void *host;      /* where the host can access the given address */
    uintptr_t
        device_address; /* of base as devices see it: same number except for registered memory without UVA (never) */
};
/* False: not ours, i.e. pageable. `freed` (may be NULL): set if the address is in a region of ours that is free now. */
bool hc_place_of(uintptr_t address, struct hc_place *place, bool *freed);

/* One contiguous piece of [address, address + n) as a worker may access it: the alias of device memory, or the address
 * itself for host memory. `pin` keeps the mapping alive until hc_piece_end. Errors: INVALID_VALUE (freed, or beyond the
 * allocation), ILLEGAL_ADDRESS (no access for `device`). For VMM mappings a piece ends where a mapping ends: call again
 * for the rest. */
struct hc_piece {
    void *host;
    size_t n;
    enum hc_space space;
    int device;
    void *pin;
};
int hc_piece_of(uintptr_t address, size_t n, int device, bool write, struct hc_piece *piece);
void hc_piece_end(struct hc_piece *piece);
/* Checks a whole span at the call, without pinning. */
int hc_span_check(uintptr_t address, size_t n, int device, bool write);

/* ---- work (stream.c, queue.c, submit.c, event.c)
 * -------------------------------------------------------------------------------- */

/* A piece of work. `argument` is copied into the queue (at most HC_ARGUMENT bytes). If the work was captured into a
 * graph, run may be called several times, so it must not consume its argument; `end` (may be NULL) is called when the
 * last reference is dropped. run returns 0 or an error that sticks to the device. */
#define HC_ARGUMENT 224
struct hc_work {
    int (*run)(void *argument, int device);
    void (*end)(void *argument);
    size_t size;
    const void *argument;
    unsigned flags;
    int node_type; /* type of the graph node (values of cudaGraphNodeType), e.g. 1 memcpy, 2 memset, 3 host */
    const void *node_parameters; /* for graph nodes whose parameters can be queried (cudaGraphMemcpyNodeGetParams);
                                    NULL: none */
    size_t node_parameters_size;
};
enum {
    HC_WORK_QUICK = 1, /* short and never blocks: may run in the calling thread if the stream is idle */
    HC_WORK_BLOCKS =
        2, /* may block for long (host functions, waits for memory values): other streams need another worker */
    HC_WORK_HOST_FUNCTION = 4,
    HC_WORK_AFTER_ERROR = 8, /* runs even if the device has failed (cudaStreamAddCallback, which receives the error) */
};

struct hc_stream;
/* A submission: a stream and a position in its order. Compare it with the completed position of the stream. */
struct hc_ticket {
    struct hc_stream *stream;
    uint64_t number;
};

/* 0, cudaStreamLegacy, cudaStreamPerThread or a handle -> the stream, held until hc_stream_put. INVALID_HANDLE
 * otherwise. */
int hc_stream_get(cudaStream_t handle, struct hc_stream **stream);
void hc_stream_put(struct hc_stream *stream);
int hc_stream_device(const struct hc_stream *stream);
/* Appends work, following the order of the stream and the rules of the legacy default stream. If the stream is being
 * captured, the work becomes a node instead (struct hc_captures). ticket may be NULL. */
int hc_submit(struct hc_stream *stream, const struct hc_work *work, struct hc_ticket *ticket);
/* Blocks until it is done; returns the device's sticky error or 0. */
int hc_ticket_wait(const struct hc_ticket *ticket);
int hc_stream_drain(struct hc_stream *stream);
int hc_device_drain(int device); /* cudaDeviceSynchronize, cudaFree */
bool hc_in_host_function(void);  /* on a worker, inside an application's host function */

/* ---- captures
 * ------------------------------------------------------- */
struct hc_graph;
struct hc_capture; /* of a stream that is being captured; the graph code owns it, the stream stores the pointer */
struct hc_capture **hc_stream_capture(struct hc_stream *stream); /* slot in the stream, under its lock */
bool hc_is_captured(struct hc_stream *stream);

/* What captures do with streams and events. The code of graphs sets it when the library is loaded, because streams do
 * not depend on graphs. All functions take the lock of the graphs: call them without the lock of the queues. Flags are
 * those of the call (external: 1). */
#define HC_NOT_CAPTURED (-1)
struct hc_event;
struct hc_captures {
    /* For every piece of work, record and wait if the stream's or the event's slot is not empty. HC_NOT_CAPTURED: the
     * stream takes no part in a capture (and, for a wait, the event was not last recorded in one), so continue as
     * usual. 0: it became a node, nothing more to do. A wait pulls a stream that is not capturing into the capture of
     * the event. */
    int (*work)(struct hc_stream *stream, const struct hc_work *work);
    int (*record)(struct hc_stream *stream, CUevent event, unsigned flags);
    int (*wait)(struct hc_stream *stream, CUevent event, unsigned flags);
    /* Errors of calls that must not be made now. They also invalidate the capture. */
    int (*forbids)(bool legacy_stream);              /* see hc_capture_forbids */
    int (*forbids_stream)(struct hc_stream *stream); /* before a synchronise or query: 900, or 0 */
    int (*forbids_device)(int device);               /* before a synchronise of all: 900, or 0 */
    int (*forbids_event)(CUevent event);             /* before a query, synchronise, elapsed: 907, or 0 */
    /* When a stream is destroyed, or the memory of an event released, whose slot is not empty. */
    void (*stream_ends)(struct hc_stream *stream);
    void (*event_ends)(struct hc_event *event);
};
extern const struct hc_captures *hc_captures;
extern atomic_int hc_captures_running; /* how many */

/* true: whether the legacy stream may be used now (cudaErrorStreamCaptureImplicit). false: whether a call that is
 * unsafe during a capture may be made (cudaErrorStreamCaptureUnsupported): cudaMalloc & co. */
static inline int hc_capture_forbids(bool legacy_stream)
{
    return atomic_load(&hc_captures_running) ? hc_captures->forbids(legacy_stream) : 0;
}
static inline int hc_capture_forbids_device(int device)
{
    return atomic_load(&hc_captures_running) ? hc_captures->forbids_device(device) : 0;
}
bool hc_in_destructor(void); /* of a user object: calls are not permitted there either */

/* ---- copies and fills (copy.c, memset.c); graph nodes are made with these
 * ----------------------------------------------- */

/* A box of bytes to copy. Addresses are those of the application; the worker calls hc_piece_of. Captured work has a
 * struct cudaMemcpy3DParms (struct cudaMemsetParams for a fill) as its node_parameters. */
struct hc_copy {
    uintptr_t dst, src;
    size_t dst_pitch, dst_slice, src_pitch, src_slice;
    size_t width, height, depth;
    int dst_device, src_device; /* device whose access rights apply; -1: that of the stream */
    enum hc_space dst_space, src_space;
    int kind;    /* as given by the application */
    void *stage; /* on the heap: a copy of the source, made at the call */
    int packed;  /* the source follows this struct in the argument instead */
};
/* Fills `copy` with all the checks of the call; `device` is that of the stream. A width, height or depth of 0 is valid
 * and does nothing. */
int hc_copy_line(struct hc_copy *copy, void *dst, const void *src, size_t n, int kind, int device);
int hc_copy_parms(struct hc_copy *copy, const struct cudaMemcpy3DParms *p, int device);
int hc_copy_box(struct hc_copy *copy, const CUDA_MEMCPY3D *p, int device);
int hc_copy_run(void *copy, int device); /* hc_work.run */

struct hc_fill {
    uintptr_t dst;
    size_t pitch, slice, width, height, depth; /* width in elements */
    uint32_t value;
    unsigned element; /* 1, 2 or 4 bytes */
    int dst_device;
};
int hc_fill_parms(struct hc_fill *fill, const struct cudaMemsetParams *p, int device);
int hc_fill_run(void *fill, int device);

/* The device variable that was registered under this host address (__cudaRegisterVar); INVALID_SYMBOL (13) if none. */
int hc_symbol_of(const void *symbol, uintptr_t *address, size_t *size);

#include "hc_impl.h" /* generated from api.def: prototypes of hc_cudaMalloc and all others that are defined */
#endif
