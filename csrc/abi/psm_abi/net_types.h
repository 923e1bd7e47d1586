/* Records shared by net, CollNet, GIN and RMA plugins: properties, virtual devices, device handles. */
#ifndef PSM_ABI_NET_TYPES_H
#define PSM_ABI_NET_TYPES_H

#include "common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* listen writes its handle into this many bytes. NCCL owns the memory and copies it to other ranks, so it must hold no
 * pointers to itself. It was 64 bytes until 2.11: a v4 plugin that must work there is limited to 64. */
#define NCCL_NET_HANDLE_MAXSIZE    128
#define NCCL_NET_HANDLE_MAXSIZE_V3 64
#define NCCL_NET_HANDLE_MAXSIZE_V4 64

/* Number of requests that a comm must be able to hold at once; a send comm must hold maxRecvs times as many. 8 for
 * plugins up to v6, 32 from v7 (2.19) on. */
#define NCCL_NET_MAX_REQUESTS    32
#define NCCL_NET_MAX_REQUESTS_V3 16
#define NCCL_NET_MAX_REQUESTS_V6 8

/* Memory types: the type argument of regMr, and bits of ptrSupport. */
#define NCCL_PTR_HOST   0x1
#define NCCL_PTR_CUDA   0x2
#define NCCL_PTR_DMABUF 0x4 /* v6, 2.13 */

/* v9 and later: irecv may find (void *)NCCL_NET_OPTIONAL_RECV_COMPLETION in *request. It is not a request; it means
 * that NCCL does not need the completion of this receive. Write *request in any case. Adapters for v8 and before hide
 * it. */
#define NCCL_NET_OPTIONAL_RECV_COMPLETION 0x1
#define NCCL_NET_MULTI_REQUEST            0x2 /* 2.28 */

/* Limits of NCCL: of a whole transfer; and of one isend and one collective operation for plugins before v9, which do
 * not report their own. */
#define NCCL_MAX_NET_SIZE_BYTES (1LL << 40)
#define MAX_NET_SIZE            (1LL << 30)
#define MAX_COLLNET_SIZE        (1LL << 29)
#define NCCL_NET_MAX_PLUGINS    16 /* including the two built-in ones; 3 in 2.24 to 2.26 */

/* In a virtual device. */
#define NCCL_NET_MAX_DEVS_PER_NIC_V9  4
#define NCCL_NET_MAX_DEVS_PER_NIC_V10 4
#define NCCL_NET_MAX_DEVS_PER_NIC_V11 4
#define NCCL_NET_MAX_DEVS_PER_NIC_V12 8
#define NCCL_NET_MAX_DEVS_PER_NIC     NCCL_NET_MAX_DEVS_PER_NIC_V12

#define NCCL_NET_TRAFFIC_CLASS_UNDEF -1 /* v10 */
#define NCCL_NET_ATTR_UNDEF          -1 /* v11 */
#define NCCL_NET_ID_UNDEF            -1 /* v12: railId, planeId */

typedef enum {
    NCCL_NET_DEVICE_HOST = 0,
    NCCL_NET_DEVICE_UNPACK = 1,
    NCCL_NET_DEVICE_GIN_PROXY = 2, /* 2.28.7 */
    NCCL_NET_DEVICE_GIN_GDAKI = 3,
    NCCL_NET_DEVICE_GIN_GPI = 4 /* 2.30.7 */
} ncclNetDeviceType;
#define NCCL_NET_DEVICE_INVALID_VERSION 0
#define NCCL_NET_DEVICE_UNPACK_VERSION  7
#define NCCL_NET_MTU_SIZE               4096

/* What getProperties fills in. The plugin owns the strings, and they stay valid while it is loaded: since v3, NCCL no
 * longer frees them. */
typedef struct {
    char *name;
    char *pciPath;  /* path in /sys; NULL or "" for a device on no bus */
    uint64_t guid;  /* of the NIC: the same for all of its ports and virtual devices */
    int ptrSupport; /* NCCL_PTR_HOST, NCCL_PTR_CUDA; NCCL_PTR_DMABUF from v6 */
    int speed;      /* Mbit/s */
    int port;
    int maxComms; /* maximum number of open connections */
} ncclNetProperties_v4_t;

/* v5 and v6. latency is inserted in the middle, which moves maxComms. */
typedef struct {
    char *name;
    char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int speed;
    int port;
    float latency; /* microseconds */
    int maxComms;
    int maxRecvs; /* maximum number of receives per irecv; 1: no groups */
} ncclNetProperties_v6_t;

typedef ncclNetProperties_v6_t ncclNetProperties_v5_t;

/* For devices that unpack on the GPU. A plugin without that leaves the device-handle arguments of connect and accept
 * untouched. */
typedef struct {
    ncclNetDeviceType netDeviceType;
    int netDeviceVersion;
    void *handle;
    size_t size;
    int needsProxyProgress;
} ncclNetDeviceHandle_v7_t;

typedef ncclNetDeviceHandle_v7_t ncclNetDeviceHandle_v8_t;
typedef ncclNetDeviceHandle_v8_t ncclNetDeviceHandle_v9_t;
typedef ncclNetDeviceHandle_v9_t ncclNetDeviceHandle_v10_t;
typedef ncclNetDeviceHandle_v10_t ncclNetDeviceHandle_v11_t;
typedef ncclNetDeviceHandle_v11_t ncclNetDeviceHandle_v12_t;

/* NCCL rejects a plugin whose netDeviceType is neither HOST nor UNPACK with netDeviceVersion 7. */
typedef struct {
    char *name;
    char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    ncclNetDeviceType netDeviceType;
    int netDeviceVersion;
} ncclNetProperties_v7_t;

/* regIsGlobal is inserted: everything after ptrSupport moves by 4 bytes. */
typedef struct {
    char *name;
    char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int regIsGlobal; /* a registration is valid for every comm, not only its own */
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    ncclNetDeviceType netDeviceType;
    int netDeviceVersion;
} ncclNetProperties_v8_t;

/* A virtual device merges several physical ones. NCCL 2.30 passes a v12 record to v9 to v11 plugins and keeps ndevs
 * <= 4. */
typedef struct {
    int ndevs;
    int devs[NCCL_NET_MAX_DEVS_PER_NIC_V9];
} ncclNetVDeviceProps_v9_t;

/* forceFlush is inserted in the middle; the tail is new. */
typedef struct {
    char *name;
    char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int regIsGlobal;
    int forceFlush; /* flush even if the GPU's PCI ordering makes it unnecessary */
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    ncclNetDeviceType netDeviceType;
    int netDeviceVersion;
    ncclNetVDeviceProps_v9_t vProps;
    size_t maxP2pBytes;  /* of one isend */
    size_t maxCollBytes; /* of one collective operation */
} ncclNetProperties_v9_t;

typedef struct {
    int ndevs;
    int devs[NCCL_NET_MAX_DEVS_PER_NIC_V10];
} ncclNetVDeviceProps_v10_t;

typedef struct {
    char *name;
    char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int regIsGlobal;
    int forceFlush;
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    ncclNetDeviceType netDeviceType;
    int netDeviceVersion;
    ncclNetVDeviceProps_v10_t vProps;
    size_t maxP2pBytes;
    size_t maxCollBytes;
} ncclNetProperties_v10_t;

typedef struct {
    int trafficClass; /* NCCL_NET_TRAFFIC_CLASS_UNDEF: not set */
} ncclNetCommConfig_v10_t;

typedef struct {
    int ndevs;
    int devs[NCCL_NET_MAX_DEVS_PER_NIC_V11];
} ncclNetVDeviceProps_v11_t;

typedef struct {
    char *name;
    char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int regIsGlobal;
    int forceFlush;
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    ncclNetDeviceType netDeviceType;
    int netDeviceVersion;
    ncclNetVDeviceProps_v11_t vProps;
    size_t maxP2pBytes;
    size_t maxCollBytes;
    int maxMultiRequestSize; /* 1; no core code up to 2.30.7 reads it */
} ncclNetProperties_v11_t;

typedef struct {
    int trafficClass; /* NCCL_NET_TRAFFIC_CLASS_UNDEF: not set */
} ncclNetCommConfig_v11_t;

/* Each field is NCCL_NET_ATTR_UNDEF if NCCL does not set it. */
typedef struct {
    int32_t maxConcurrentPeers;
    int32_t minConcurrentPeers;
    int32_t maxFlowsPerPeer;
    int32_t minFlowsPerPeer;
} ncclNetCommAttr_v11_t;

typedef struct {
    ncclNetCommAttr_v11_t sendCommAttr;
    ncclNetCommAttr_v11_t recvCommAttr;
    uint32_t op;
    uint32_t algo;
    uint32_t proto;
} ncclNetAttr_v11_t;

/* 8 devices instead of 4: everything after vProps in the properties moves by 16 bytes. */
typedef struct {
    int ndevs;
    int devs[NCCL_NET_MAX_DEVS_PER_NIC_V12];
} ncclNetVDeviceProps_v12_t;

typedef struct {
    char *name;
    char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int regIsGlobal;
    int forceFlush;
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    ncclNetDeviceType netDeviceType;
    int netDeviceVersion;
    ncclNetVDeviceProps_v12_t vProps;
    size_t maxP2pBytes;
    size_t maxCollBytes;
    int maxMultiRequestSize;
    int16_t railId;  /* NCCL_NET_ID_UNDEF: not known */
    int16_t planeId; /* likewise */
} ncclNetProperties_v12_t;

typedef struct {
    int trafficClass; /* NCCL_NET_TRAFFIC_CLASS_UNDEF: not set */
} ncclNetCommConfig_v12_t;

typedef struct {
    int32_t maxConcurrentPeers;
    int32_t minConcurrentPeers;
    int32_t maxFlowsPerPeer;
    int32_t minFlowsPerPeer;
} ncclNetCommAttr_v12_t;

typedef struct {
    ncclNetCommAttr_v12_t sendCommAttr;
    ncclNetCommAttr_v12_t recvCommAttr;
    uint32_t op;
    uint32_t algo;
    uint32_t proto;
} ncclNetAttr_v12_t;

/* A part of a buffer, for CollNet's iallgather and ireducescatter. size is 32 bits in v8 alone. */
typedef struct {
    void *mhandle;
    void *address;
    uint32_t size;
} ncclNetSGE_v8_t;

typedef struct {
    void *mhandle;
    void *address;
    size_t size;
} ncclNetSGE_v9_t;

typedef struct {
    void *mhandle;
    void *address;
    size_t size;
} ncclNetSGE_v10_t;

typedef struct {
    void *mhandle;
    void *address;
    size_t size;
} ncclNetSGE_v11_t;

typedef struct {
    void *mhandle;
    void *address;
    size_t size;
} ncclNetSGE_v12_t;

#ifdef __cplusplus
}
#endif

#endif
