/* Tables of net and CollNet plugins before v4, for NCCL 2.4 to 2.7. */
#ifndef PSM_ABI_NET_OLD_H
#define PSM_ABI_NET_OLD_H

#include "common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* In the headers of 2.4 and 2.5 only: no known release looks it up. No registration: isend and irecv take a pointer
 * type. */
typedef struct {
    const char *name;
    ncclResult_t (*init)(ncclDebugLogger_t logFunction);
    ncclResult_t (*devices)(int *ndev);
    ncclResult_t (*pciPath)(int dev, char **path);
    ncclResult_t (*ptrSupport)(int dev, int *supportedTypes);
    ncclResult_t (*listen)(int dev, void *handle, void **listenComm);
    ncclResult_t (*connect)(int dev, void *handle, void **sendComm);
    ncclResult_t (*accept)(void *listenComm, void **recvComm);
    ncclResult_t (*isend)(void *sendComm, void *data, int size, int type, void **request);
    ncclResult_t (*irecv)(void *recvComm, void *data, int size, int type, void **request);
    ncclResult_t (*flush)(void *recvComm, void *data, int size);
    ncclResult_t (*test)(void *request, int *done, int *size);
    ncclResult_t (*closeSend)(void *sendComm);
    ncclResult_t (*closeRecv)(void *recvComm);
    ncclResult_t (*closeListen)(void *listenComm);
} ncclNet_v1_t;

/* 2.4 and 2.5. */
typedef struct {
    const char *name;
    ncclResult_t (*init)(ncclDebugLogger_t logFunction);
    ncclResult_t (*devices)(int *ndev);
    ncclResult_t (*pciPath)(int dev, char **path); /* NCCL frees *path */
    ncclResult_t (*ptrSupport)(int dev, int *supportedTypes);
    ncclResult_t (*listen)(int dev, void *handle, void **listenComm);
    ncclResult_t (*connect)(int dev, void *handle, void **sendComm);
    ncclResult_t (*accept)(void *listenComm, void **recvComm);
    ncclResult_t (*regMr)(void *comm, void *data, int size, int type, void **mhandle);
    ncclResult_t (*deregMr)(void *comm, void *mhandle);
    ncclResult_t (*isend)(void *sendComm, void *data, int size, void *mhandle, void **request);
    ncclResult_t (*irecv)(void *recvComm, void *data, int size, void *mhandle, void **request);
    ncclResult_t (*flush)(void *recvComm, void *data, int size, void *mhandle); /* blocks until the data is visible */
    ncclResult_t (*test)(void *request, int *done, int *size);
    ncclResult_t (*closeSend)(void *sendComm);
    ncclResult_t (*closeRecv)(void *recvComm);
    ncclResult_t (*closeListen)(void *listenComm);
} ncclNet_v2_t;

typedef struct {
    char *name;
    char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int speed;
    int port;
    int maxComms;
} ncclNetProperties_v3_t;

/* 2.6 and 2.7. */
typedef struct {
    const char *name;
    ncclResult_t (*init)(ncclDebugLogger_t logFunction);
    ncclResult_t (*devices)(int *ndev);
    ncclResult_t (*getProperties)(int dev, ncclNetProperties_v3_t *props);
    ncclResult_t (*listen)(int dev, void *handle, void **listenComm);
    ncclResult_t (*connect)(int dev, void *handle, void **sendComm);
    ncclResult_t (*accept)(void *listenComm, void **recvComm);
    ncclResult_t (*regMr)(void *comm, void *data, int size, int type, void **mhandle);
    ncclResult_t (*deregMr)(void *comm, void *mhandle);
    ncclResult_t (*isend)(void *sendComm, void *data, int size, void *mhandle, void **request);
    ncclResult_t (*irecv)(void *recvComm, void *data, int size, void *mhandle, void **request);
    ncclResult_t (*flush)(void *recvComm, void *data, int size, void *mhandle);
    ncclResult_t (*test)(void *request, int *done, int *size);
    ncclResult_t (*closeSend)(void *sendComm);
    ncclResult_t (*closeRecv)(void *recvComm);
    ncclResult_t (*closeListen)(void *listenComm);
} ncclNet_v3_t;

/* 2.6 and 2.7. */
typedef struct {
    const char *name;
    ncclResult_t (*init)(ncclDebugLogger_t logFunction);
    ncclResult_t (*devices)(int *ndev);
    ncclResult_t (*getProperties)(int dev, ncclNetProperties_v3_t *props);
    ncclResult_t (*listen)(int dev, void *handle, void **listenComm);
    ncclResult_t (*connect)(void **handles, int nranks, int rank, void *listenComm, void **collComm);
    ncclResult_t (*reduceSupport)(ncclDataType_t dataType, ncclRedOp_t redOp, int *supported);
    ncclResult_t (*regMr)(void *collComm, void *data, int size, int type, void **mhandle);
    ncclResult_t (*deregMr)(void *collComm, void *mhandle);
    ncclResult_t (*iallreduce)(void *collComm, void *sendData, void *recvData, int count, ncclDataType_t dataType,
                               ncclRedOp_t redOp, void *sendMhandle, void *recvMhandle, void **request);
    ncclResult_t (*flush)(void *collComm, void *data, int size, void *mhandle);
    ncclResult_t (*test)(void *request, int *done, int *size);
    ncclResult_t (*closeColl)(void *collComm);
    ncclResult_t (*closeListen)(void *listenComm);
} ncclCollNet_v3_t;

/* A plugin defines the versions that it supports: `const ncclX_vN_t ncclXPlugin_vN = {...}`. */
extern PSM_ABI_TABLE ncclNet_v1_t ncclNetPlugin_v1;
extern PSM_ABI_TABLE ncclNet_v2_t ncclNetPlugin_v2;
extern PSM_ABI_TABLE ncclNet_v3_t ncclNetPlugin_v3;
extern PSM_ABI_TABLE ncclCollNet_v3_t ncclCollNetPlugin_v3;

#ifdef __cplusplus
}
#endif

#endif
