/* GIN plugins, v11 to v14, and RMA plugins, v13 and v14, move data that the GPU requests from the network. See
 * NCCL_GIN_PLUGIN and NCCL_RMA_PLUGIN. For RMA v15 (NCCL 2.31) and v16 (2.32) only the symbol names are known. */
#ifndef PSM_ABI_GIN_H
#define PSM_ABI_GIN_H

#include "net_types.h"
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NCCL_GIN_HANDLE_MAXSIZE 128
#define MAX_GIN_SIZE            (1LL << 30)
#define NCCL_GIN_MAX_PLUGINS    16
#define NCCL_RMA_MAX_PLUGINS    16

/* mrFlags */
#define NCCL_NET_MR_FLAG_FORCE_SO           (1 << 0) /* strong ordering */
#define NCCL_NET_MR_FLAG_SIGNAL_NEVER_RESET (1 << 1) /* 2.30.7 */

/* signalOp */
#define NCCL_NET_SIGNAL_OP_INC 0x1
#define NCCL_NET_SIGNAL_OP_ADD 0x2
#define NCCL_GIN_SIGNAL_OP_INC 0x1
#define NCCL_GIN_SIGNAL_OP_ADD 0x2

/* NCCL 2.28.7 to 2.30.4. Until 2.29.3, NCCL looks for it in the library of the net plugin. */
typedef struct {
    const char *name;
    ncclResult_t (*init)(void **ctx, uint64_t commId, ncclDebugLogger_t logFunction);
    ncclResult_t (*devices)(int *ndev);
    ncclResult_t (*getProperties)(int dev, ncclNetProperties_v11_t *props);
    ncclResult_t (*listen)(void *ctx, int dev, void *handle, void **listenComm);
    ncclResult_t (*connect)(void *ctx, void **handles, int nranks, int rank, void *listenComm, void **collComm);
    ncclResult_t (*createContext)(void *collComm, int nSignals, int nCounters, void **ginCtx,
                                  ncclNetDeviceHandle_v11_t **devHandle);
    ncclResult_t (*regMrSym)(void *collComm, void *data, size_t size, int type, uint64_t mrFlags, void **mhandle,
                             void **ginHandle);
    ncclResult_t (*regMrSymDmaBuf)(void *collComm, void *data, size_t size, int type, uint64_t offset, int fd,
                                   uint64_t mrFlags, void **mhandle, void **ginHandle);
    ncclResult_t (*deregMrSym)(void *collComm, void *mhandle);
    ncclResult_t (*destroyContext)(void *ginCtx);
    ncclResult_t (*closeColl)(void *collComm);
    ncclResult_t (*closeListen)(void *listenComm);
    ncclResult_t (*iput)(void *collComm, uint64_t srcOff, void *srcMhandle, size_t size, uint64_t dstOff,
                         void *dstMhandle, uint32_t rank, void **request);
    ncclResult_t (*iputSignal)(void *collComm, uint64_t srcOff, void *srcMhandle, size_t size, uint64_t dstOff,
                               void *dstMhandle, uint32_t rank, uint64_t signalOff, void *signalMhandle,
                               uint64_t signalValue, uint32_t signalOp, void **request);
    ncclResult_t (*test)(void *collComm, void *request, int *done);
    ncclResult_t (*ginProgress)(void *collComm);
    ncclResult_t (*queryLastError)(void *ginCtx, bool *hasError);
    ncclResult_t (*finalize)(void *ctx);
} ncclGin_v11_t;

/* 2.29.7 to 2.30.4. */
typedef struct {
    const char *name;
    ncclResult_t (*init)(void **ctx, uint64_t commId, ncclDebugLogger_t logFunction);
    ncclResult_t (*devices)(int *ndev);
    ncclResult_t (*getProperties)(int dev, ncclNetProperties_v11_t *props);
    ncclResult_t (*listen)(void *ctx, int dev, void *handle, void **listenComm);
    ncclResult_t (*connect)(void *ctx, void **handles, int nranks, int rank, int nConnections, int queueDepth,
                            void *listenComm, void **collComm);
    ncclResult_t (*createContext)(void *collComm, int nSignals, int nCounters, int nContexts, void **ginCtx,
                                  ncclNetDeviceHandle_v11_t **devHandle);
    ncclResult_t (*regMrSym)(void *collComm, void *data, size_t size, int type, uint64_t mrFlags, void **mhandle,
                             void **ginHandle);
    ncclResult_t (*regMrSymDmaBuf)(void *collComm, void *data, size_t size, int type, uint64_t offset, int fd,
                                   uint64_t mrFlags, void **mhandle, void **ginHandle);
    ncclResult_t (*deregMrSym)(void *collComm, void *mhandle);
    ncclResult_t (*destroyContext)(void *ginCtx);
    ncclResult_t (*closeColl)(void *collComm);
    ncclResult_t (*closeListen)(void *listenComm);
    ncclResult_t (*iput)(void *collComm, uint64_t srcOff, void *srcMhandle, size_t size, uint64_t dstOff,
                         void *dstMhandle, uint32_t rank, int connectionId, void **request);
    ncclResult_t (*iputSignal)(void *collComm, uint64_t srcOff, void *srcMhandle, size_t size, uint64_t dstOff,
                               void *dstMhandle, uint32_t rank, uint64_t signalOff, void *signalMhandle,
                               uint64_t signalValue, uint32_t signalOp, int connectionId, void **request);
    ncclResult_t (*test)(void *collComm, void *request, int *done);
    ncclResult_t (*ginProgress)(void *collComm);
    ncclResult_t (*queryLastError)(void *ginCtx, bool *hasError);
    ncclResult_t (*finalize)(void *ctx);
} ncclGin_v12_t;

typedef struct {
    int nSignals;
    int nCounters;
    int nContexts;
    int queueDepth;
    int trafficClass;
} ncclGinConfig_v13_t;

/* From 2.30.3. A config says what an operation needs; each operation names a context. As RMA v13 it must return
 * NCCL_NET_DEVICE_GIN_PROXY. The device handle is still that of v11. */
typedef struct {
    const char *name;
    ncclResult_t (*init)(void **ctx, uint64_t commId, ncclDebugLogger_t logFunction);
    ncclResult_t (*devices)(int *ndev);
    ncclResult_t (*getProperties)(int dev, ncclNetProperties_v12_t *props);
    ncclResult_t (*listen)(void *ctx, int dev, void *handle, void **listenComm);
    ncclResult_t (*connect)(void *ctx, void **handles, int nranks, int rank, void *listenComm, void **collComm);
    ncclResult_t (*createContext)(void *collComm, ncclGinConfig_v13_t *config, void **ginCtx,
                                  ncclNetDeviceHandle_v11_t **devHandle);
    ncclResult_t (*regMrSym)(void *collComm, void *data, size_t size, int type, uint64_t mrFlags, void **mhandle,
                             void **ginHandle);
    ncclResult_t (*regMrSymDmaBuf)(void *collComm, void *data, size_t size, int type, uint64_t offset, int fd,
                                   uint64_t mrFlags, void **mhandle, void **ginHandle);
    ncclResult_t (*deregMrSym)(void *collComm, void *mhandle);
    ncclResult_t (*destroyContext)(void *ginCtx);
    ncclResult_t (*closeColl)(void *collComm);
    ncclResult_t (*closeListen)(void *listenComm);
    ncclResult_t (*iput)(void *ginCtx, int context, uint64_t srcOff, void *srcMhandle, size_t size, uint64_t dstOff,
                         void *dstMhandle, uint32_t rank, void **request);
    ncclResult_t (*iputSignal)(void *ginCtx, int context, uint64_t srcOff, void *srcMhandle, size_t size,
                               uint64_t dstOff, void *dstMhandle, uint32_t rank, uint64_t signalOff,
                               void *signalMhandle, uint64_t signalValue, uint32_t signalOp, void **request);
    ncclResult_t (*iget)(void *ginCtx, int context, uint64_t remoteOff, void *remoteMhandle, size_t size,
                         uint64_t localOff, void *localMhandle, uint32_t rank, void **request);
    ncclResult_t (*iflush)(void *ginCtx, int context, void *mhandle, uint32_t rank, void **request);
    ncclResult_t (*test)(void *collComm, void *request, int *done);
    ncclResult_t (*ginProgress)(void *ginCtx);
    ncclResult_t (*queryLastError)(void *ginCtx, bool *hasError);
    ncclResult_t (*finalize)(void *ctx);
} ncclGin_v13_t;

typedef struct {
    bool supportsStrongSignals;
    bool supportsVASignals;
} ncclGinProperties_v14_t;

typedef struct {
    int nSignals;
    int nCounters;
    int nContexts;
    int queueDepth;
    int trafficClass;
    int backendVersion;
    int rankStride;
} ncclGinConfig_v14_t;

/* From 2.30.7. RMA v14 moves the data. */
typedef struct {
    const char *name;
    ncclResult_t (*init)(void **ctx, uint64_t commId, ncclDebugLogger_t logFunction);
    ncclResult_t (*devices)(int *ndev);
    ncclResult_t (*getGinProperties)(ncclGinProperties_v14_t *ginProps);
    ncclResult_t (*getProperties)(int dev, ncclNetProperties_v12_t *props);
    ncclResult_t (*listen)(void *ctx, int dev, void *handle, void **listenComm);
    ncclResult_t (*connect)(void *ctx, void **handles, int nranks, int rank, void *listenComm, void **collComm);
    ncclResult_t (*createContext)(void *collComm, ncclGinConfig_v14_t *config, void **ginCtx,
                                  ncclNetDeviceHandle_v11_t **devHandle);
    ncclResult_t (*regMrSym)(void *collComm, void *data, size_t size, int type, uint64_t mrFlags, void **mhandle,
                             void **ginHandle);
    ncclResult_t (*regMrSymDmaBuf)(void *collComm, void *data, size_t size, int type, uint64_t offset, int fd,
                                   uint64_t mrFlags, void **mhandle, void **ginHandle);
    ncclResult_t (*deregMrSym)(void *collComm, void *mhandle);
    ncclResult_t (*destroyContext)(void *ginCtx);
    ncclResult_t (*closeColl)(void *collComm);
    ncclResult_t (*closeListen)(void *listenComm);
    ncclResult_t (*ginProgress)(void *ginCtx);
    ncclResult_t (*queryLastError)(void *ginCtx, bool *hasError);
    ncclResult_t (*finalize)(void *ctx);
} ncclGin_v14_t;

/* The symbol is ncclRmaPlugin_v13, or else ncclGinPlugin_v13 of the same library. */
typedef ncclGin_v13_t ncclRma_v13_t;

typedef struct {
    int nContexts;
    int trafficClass;
    int rankStride;
} ncclRmaConfig_v14_t;

/* From 2.30.7. */
typedef struct {
    const char *name;
    ncclResult_t (*init)(void **ctx, uint64_t commId, ncclDebugLogger_t logFunction);
    ncclResult_t (*devices)(int *ndev);
    ncclResult_t (*getProperties)(int dev, ncclNetProperties_v12_t *props);
    ncclResult_t (*listen)(void *ctx, int dev, void *handle, void **listenComm);
    ncclResult_t (*connect)(void *ctx, void **handles, int nranks, int rank, void *listenComm, void **collComm);
    ncclResult_t (*createContext)(void *collComm, ncclRmaConfig_v14_t *config, void **rmaCtx);
    ncclResult_t (*regMrSym)(void *collComm, void *data, size_t size, int type, uint64_t mrFlags, void **mhandle);
    ncclResult_t (*regMrSymDmaBuf)(void *collComm, void *data, size_t size, int type, uint64_t offset, int fd,
                                   uint64_t mrFlags, void **mhandle);
    ncclResult_t (*deregMrSym)(void *collComm, void *mhandle);
    ncclResult_t (*destroyContext)(void *rmaCtx);
    ncclResult_t (*closeColl)(void *collComm);
    ncclResult_t (*closeListen)(void *listenComm);
    ncclResult_t (*iput)(void *rmaCtx, int context, uint64_t srcOff, void *srcMhandle, size_t size, uint64_t dstOff,
                         void *dstMhandle, uint32_t rank, void **request);
    ncclResult_t (*iputSignal)(void *rmaCtx, int context, uint64_t srcOff, void *srcMhandle, size_t size,
                               uint64_t dstOff, void *dstMhandle, uint32_t rank, uint64_t signalOff,
                               void *signalMhandle, uint64_t signalValue, uint32_t signalOp, bool isStrongSignal,
                               void **request);
    ncclResult_t (*iget)(void *rmaCtx, int context, uint64_t remoteOff, void *remoteMhandle, size_t size,
                         uint64_t localOff, void *localMhandle, uint32_t rank, void **request);
    ncclResult_t (*iflush)(void *rmaCtx, int context, void *mhandle, uint32_t rank, void **request);
    ncclResult_t (*test)(void *collComm, void *request, int *done);
    ncclResult_t (*rmaProgress)(void *rmaCtx);
    ncclResult_t (*queryLastError)(void *rmaCtx, bool *hasError);
    ncclResult_t (*finalize)(void *ctx);
} ncclRma_v14_t;

/* A plugin defines the versions that it supports: `const ncclX_vN_t ncclXPlugin_vN = {...}`. */
extern PSM_ABI_TABLE ncclGin_v11_t ncclGinPlugin_v11;
extern PSM_ABI_TABLE ncclGin_v12_t ncclGinPlugin_v12;
extern PSM_ABI_TABLE ncclGin_v13_t ncclGinPlugin_v13;
extern PSM_ABI_TABLE ncclGin_v14_t ncclGinPlugin_v14;
extern PSM_ABI_TABLE ncclRma_v13_t ncclRmaPlugin_v13;
extern PSM_ABI_TABLE ncclRma_v14_t ncclRmaPlugin_v14;

#ifdef __cplusplus
}
#endif

#endif
