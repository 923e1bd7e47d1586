/* Events of a net plugin, v10 and later, that NCCL hands on to a profiler, v3 and later. */
#ifndef PSM_ABI_PROFILER_NET_H
#define PSM_ABI_PROFILER_NET_H

#include "common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An id says who made an event and which descriptor its data is: a type in the upper half, that descriptor's version in
   the lower. A plugin with its own descriptor takes a type of its own; a profiler leaves alone what it does not know.
 */
typedef enum { NCCL_PROFILER_NET_TYPE_IB = 1 << 16, NCCL_PROFILER_NET_TYPE_SOCK = 2 << 16 } ncclProfilerNetType;
#define NCCL_PROFILER_NET_VER_BITS   16
#define NCCL_PROFILER_NET_VER_MASK   0xffffU
#define NCCL_PROFILER_NET_TYPE_MASK  0xffff0000U
#define NCCL_PROFILER_NET_IB_VER     1
#define NCCL_PROFILER_NET_SOCKET_VER 1

/* The type argument of the callback; 2.26 has 0 and 1 only, without these names. */
enum {
    ncclProfilerNetEventStart = 0,
    ncclProfilerNetEventStop = 1,
    ncclProfilerNetEventUpdate = 2,
    ncclProfilerNetEventUpdateAndStop = 3
};

/* What net init gets: eHandle is the event, made at the start and given back after; pHandle the phandle of isend or
   irecv, which is the parent; extData a descriptor, valid during the call. */
typedef ncclResult_t (*ncclProfilerCallback_t)(void **eHandle, int type, void *pHandle, int64_t pluginId,
                                               void *extData);

/* Kinds in the type of the two descriptors of NCCL's own transports. */
enum { ncclProfileQp = 1 << 0 };
enum { ncclProfileSocket = 1 << 0 };

typedef struct {
    uint8_t type;
    union {
        struct {
            int device;
            uint64_t wr_id;
            int opcode;
            int qpNum;
            size_t length;
        } qp;
    };
} ncclProfilerNetIbDescr_v1_t;

typedef struct {
    uint8_t type;
    union {
        struct {
            int fd;
            int op;
            size_t length;
        } sock;
    };
} ncclProfilerNetSockDescr_v1_t;

#ifdef __cplusplus
}
#endif

#endif
