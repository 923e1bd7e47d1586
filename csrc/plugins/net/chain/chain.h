/* Another net plugin, of any version, behind this one. */
#ifndef PSM_NET_CHAIN_H
#define PSM_NET_CHAIN_H

#include "net.h"

/* The slots of the newest table in the other library, each with the version that introduced its current signature.
 * Missing slots are NULL. */
struct chain_table {
    int version; /* 0: no library is loaded */
    const char *name;
    void *library;
    const void *table;
    ncclResult_t (*init_v4)(ncclDebugLogger_t);
    ncclResult_t (*init_v10)(ncclDebugLogger_t, ncclProfilerCallback_t);
    ncclResult_t (*init_v11)(void **, uint64_t, ncclNetCommConfig_v11_t *, ncclDebugLogger_t, ncclProfilerCallback_t);
    ncclResult_t (*finalize)(void *);
    ncclResult_t (*devices)(int *);
    ncclResult_t (*listen_v4)(int, void *, void **);
    ncclResult_t (*listen_v11)(void *, int, void *, void **);
    ncclResult_t (*connect_v4)(int, void *, void **);
    ncclResult_t (*connect_v7)(int, void *, void **, ncclNetDeviceHandle_v7_t **);
    ncclResult_t (*connect_v10)(int, ncclNetCommConfig_v10_t *, void *, void **, ncclNetDeviceHandle_v7_t **);
    ncclResult_t (*connect_v11)(void *, int, void *, void **, ncclNetDeviceHandle_v7_t **);
    ncclResult_t (*accept_v4)(void *, void **);
    ncclResult_t (*accept_v7)(void *, void **, ncclNetDeviceHandle_v7_t **);
    ncclResult_t (*reg_v4)(void *, void *, int, int, void **);
    ncclResult_t (*reg_v8)(void *, void *, size_t, int, void **);
    ncclResult_t (*reg_dmabuf)(void *, void *, size_t, int, uint64_t, int, void **);
    ncclResult_t (*dereg)(void *, void *);
    ncclResult_t (*isend_v4)(void *, void *, int, void *, void **);
    ncclResult_t (*isend_v5)(void *, void *, int, int, void *, void **);
    ncclResult_t (*isend_v9)(void *, void *, size_t, int, void *, void **);
    ncclResult_t (*isend_v10)(void *, void *, size_t, int, void *, void *, void **);
    ncclResult_t (*irecv_v4)(void *, void *, int, void *, void **);
    ncclResult_t (*irecv_v5)(void *, int, void **, int *, int *, void **, void **);
    ncclResult_t (*irecv_v9)(void *, int, void **, size_t *, int *, void **, void **);
    ncclResult_t (*irecv_v10)(void *, int, void **, size_t *, int *, void **, void **, void **);
    ncclResult_t (*iflush_v4)(void *, void *, int, void *, void **);
    ncclResult_t (*iflush_v5)(void *, int, void **, int *, void **, void **);
    ncclResult_t (*test)(void *, int *, int *);
    ncclResult_t (*close_send)(void *);
    ncclResult_t (*close_recv)(void *);
    ncclResult_t (*close_listen)(void *);
    ncclResult_t (*device_memory)(void *, void *, void **);
    ncclResult_t (*consumed)(void *, int, void *);
    ncclResult_t (*make_device_v9)(int *, ncclNetVDeviceProps_v9_t *);
    ncclResult_t (*make_device_v12)(int *, ncclNetVDeviceProps_v12_t *);
    ncclResult_t (*attributes)(void *, ncclNetAttr_v11_t *);
};
extern struct chain_table chain;

/* Loads the newest table of the library at path. The log says what is wrong. */
ncclResult_t chain_load(const char *path);
void chain_unload(void);
/* Members that the version lacks are filled in as by NCCL's adapters. */
ncclResult_t chain_properties(int dev, ncclNetProperties_v12_t *props);
/* Logs that a call of the other plugin failed; returns the result. */
ncclResult_t chain_failed(const char *call, ncclResult_t result);

#endif
