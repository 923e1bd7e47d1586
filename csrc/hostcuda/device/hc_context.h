/* Contexts and the current device of a thread. */
#ifndef HC_CONTEXT_H
#define HC_CONTEXT_H

#include "device/hc_device.h"

enum { HC_LIMITS = 7 }; /* values of CUlimit */

struct hc_context {
    CUcontext handle;
    int device;
    bool primary;
    unsigned version;        /* 3020, or that of cuCtxCreate */
    uint64_t id;             /* never reused in the process */
    atomic_int references;   /* primary: cuDevicePrimaryCtxRetain; others: 1, and cuCtxAttach */
    atomic_bool active;      /* primary: in use */
    atomic_bool runtime;     /* primary: the runtime uses it, so releases do not end it */
    _Atomic unsigned flags;  /* of cudaSetDeviceFlags, cuCtxCreate */
    _Atomic int cache, bank; /* cudaFuncCache, cudaSharedMemConfig */
    _Atomic size_t limits[HC_LIMITS];
};

/* The context of a handle; NULL: none. Handle 0 is the current context. */
struct hc_context *hc_context_get(CUcontext handle);
struct hc_context *hc_context_primary(int device);
/* Destroys everything on the device, and clears sticky errors. */
void hc_device_reset(int device);
bool hc_context_flags_valid(unsigned flags);
/* The stack of this thread. */
int hc_context_create(CUcontext *out, unsigned flags, int device); /* and pushes it */
int hc_context_push(CUcontext handle);
int hc_context_pop(CUcontext *out); /* out may be NULL */
void hc_context_replace(CUcontext handle);
void hc_context_forget(CUcontext handle); /* the context has ended */
int hc_context_limit_get(struct hc_context *context, int limit, size_t *value);
int hc_context_limit_set(struct hc_context *context, int limit, size_t value);
int hc_peer_enable(int device, int peer, unsigned flags);
int hc_peer_disable(int device, int peer);

#endif
