/* The handle sanitizer: knows who owns each CUDA object, and reports misuse at the offending call.
 *
 * Two users: the exported wrappers of hostcuda, and the shim over any CUDA. csrc/cuda/gen_san.py generates both from
 * the roles in api.def. They run as
 *
 *     int rc = 0;
 *     const bool san = psm_san_on();
 *     struct psm_san_call san_call;
 *     if (san) {
 *         psm_san_enter(&san_call, "cudaEventQuery");
 *         psm_san_use(&san_call, PSM_SAN_EVENT, (uint64_t)(uintptr_t)event, PSM_SAN_QUERY);
 *         rc = psm_san_refuse(&san_call);
 *     }
 *     if (rc == 0) rc = ...;
 *     if (san) psm_san_leave(&san_call, rc);
 *
 * Objects that a call ends are claimed before the call and removed after it: a second thread that ends the same object
 * is reported, and an object that is born meanwhile with the same number stays alive. */
#ifndef PSM_SAN_H
#define PSM_SAN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PSM_SAN_API __attribute__((visibility("default")))

enum psm_san_mode { PSM_SAN_OFF, PSM_SAN_WARN, PSM_SAN_ERROR };

enum psm_san_kind {
    PSM_SAN_NONE,
    PSM_SAN_STREAM,
    PSM_SAN_EVENT,
    PSM_SAN_MEM, /* from cuMemCreate and imports */
    PSM_SAN_POOL,
    PSM_SAN_GRAPH,
    PSM_SAN_EXEC,
    PSM_SAN_RANGE,      /* reserved addresses */
    PSM_SAN_REGISTERED, /* cudaHostRegister */
    PSM_SAN_ALLOC,      /* device memory */
    PSM_SAN_HOST,       /* pinned memory */
    PSM_SAN_MAP,        /* a memory handle mapped at an address */
    PSM_SAN_IPC,        /* memory of another process, opened by cudaIpcOpenMemHandle */
    PSM_SAN_EXPORT,     /* an export; the value is a hash of the exported handle */
    PSM_SAN_KINDS
};

/* How an event is used. */
enum psm_san_how { PSM_SAN_PLAIN, PSM_SAN_RECORD, PSM_SAN_QUERY };

/* Where an address must be: KNOWN from the call, or anywhere. */
enum psm_san_side { PSM_SAN_ANY, PSM_SAN_DEVICE_SIDE, PSM_SAN_HOST_SIDE };

enum { PSM_SAN_ENDS = 2, PSM_SAN_STRANGERS = 3 };

struct san_shard;
struct san_object;

/* One call, on the caller's stack. */
struct psm_san_call {
    const char *name;
    int refuse; /* the error to return instead of making the call (mode error) */
    uint32_t ends, strangers;
    struct psm_san_end {
        struct san_shard *shard;
        struct san_object *object;
        uint32_t generation;
    } end[PSM_SAN_ENDS];
    /* Unknown handles, if births may have gone unseen: reported if the call fails. */
    struct psm_san_stranger {
        enum psm_san_kind kind;
        uint64_t value;
    } stranger[PSM_SAN_STRANGERS];
    uint64_t recorded; /* event */
    struct psm_san_unmapped {
        uint64_t from, to;
        uint32_t generation; /* later ones are other mappings */
    } unmapped;
};

/* How the sanitizer queries the CUDA under it. Any may be NULL. */
struct psm_san_hooks {
    int (*device)(void);     /* current device; called in checked calls only */
    int (*log_device)(void); /* the same, as far as known without calling CUDA: at any time */
    /* Whether CUDA knows this address in this process; if so, its allocation, if it can be determined (else *size 0).
     */
    bool (*place)(uint64_t address, uint64_t *base, uint64_t *size);
    bool every_birth; /* every birth is seen: an unknown handle was never created */
};

/* Once, before any other call. where: "hostcuda" or "shim". */
void psm_san_start(enum psm_san_mode mode, const char *where, const struct psm_san_hooks *hooks);

extern PSM_SAN_API _Atomic int psm_san_mode_now;
extern PSM_SAN_API _Thread_local int psm_san_depth __attribute__((tls_model("initial-exec")));

/* Whether the call is checked: not if the sanitizer is off, and not inside another checked call. */
static inline bool psm_san_on(void)
{
    return __builtin_expect(atomic_load_explicit(&psm_san_mode_now, memory_order_relaxed) != PSM_SAN_OFF, 0) &&
           psm_san_depth == 0;
}

/* Small calls take as long as a few calls between libraries: the wrapper does inline what most of them need. */
static inline void psm_san_enter(struct psm_san_call *call, const char *name)
{
    psm_san_depth++;
    call->name = name;
    call->refuse = 0;
    call->ends = call->strangers = 0;
    call->recorded = 0;
    call->unmapped.to = 0;
}

static inline int psm_san_refuse(const struct psm_san_call *call)
{
    return call->refuse;
}

PSM_SAN_API void psm_san_settle(struct psm_san_call *call, int rc);

static inline void psm_san_leave(struct psm_san_call *call, int rc)
{
    if (rc != 0 || call->ends || call->recorded || call->unmapped.to) psm_san_settle(call, rc);
    psm_san_depth--;
}

/* Before the call. */
PSM_SAN_API void psm_san_use(struct psm_san_call *call, enum psm_san_kind kind, uint64_t value, enum psm_san_how how);
PSM_SAN_API void psm_san_end(struct psm_san_call *call, enum psm_san_kind kind, uint64_t value);
PSM_SAN_API void psm_san_unmap(struct psm_san_call *call, uint64_t address, uint64_t size);
PSM_SAN_API void psm_san_span(struct psm_san_call *call, uint64_t address, uint64_t n, enum psm_san_side side,
                              bool write);
PSM_SAN_API void psm_san_spans(struct psm_san_call *call, const void *addresses, const size_t *sizes, size_t count,
                               bool write);

/* After a successful call, before leave. */
PSM_SAN_API void psm_san_new(struct psm_san_call *call, enum psm_san_kind kind, uint64_t value, uint64_t size);
PSM_SAN_API void psm_san_map(struct psm_san_call *call, uint64_t address, uint64_t size, uint64_t handle);
PSM_SAN_API void psm_san_get(struct psm_san_call *call, enum psm_san_kind kind, uint64_t value);
PSM_SAN_API void psm_san_export(struct psm_san_call *call, const void *bytes, size_t n);
PSM_SAN_API void psm_san_import(struct psm_san_call *call, enum psm_san_kind kind, uint64_t value, const void *bytes,
                                size_t n);
PSM_SAN_API void psm_san_export_fd(struct psm_san_call *call, const void *fd, int handle_type);
PSM_SAN_API void psm_san_import_fd(struct psm_san_call *call, uint64_t value, const void *fd, int handle_type);
/* A capture started or ended successfully: memory allocated and freed in it belongs to the graph. */
PSM_SAN_API void psm_san_capture(struct psm_san_call *call, bool begins);
/* After cudaDeviceReset and the like: everything on this device is gone. */
PSM_SAN_API void psm_san_reset(struct psm_san_call *call);

/* Bytes from the first to the last of a pitched area. */
static inline uint64_t psm_san_2d(uint64_t pitch, uint64_t width, uint64_t height)
{
    return width && height ? (height - 1) * pitch + width : 0;
}

/* Sides of the source and of the destination, from cudaMemcpyKind. */
static inline enum psm_san_side psm_san_source(int kind)
{
    return kind == 0 || kind == 1 ? PSM_SAN_HOST_SIDE : kind == 2 || kind == 3 ? PSM_SAN_DEVICE_SIDE : PSM_SAN_ANY;
}

static inline enum psm_san_side psm_san_target(int kind)
{
    return kind == 0 || kind == 2 ? PSM_SAN_HOST_SIDE : kind == 1 || kind == 3 ? PSM_SAN_DEVICE_SIDE : PSM_SAN_ANY;
}

#endif
