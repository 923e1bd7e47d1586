/* Events of a net plugin, v10 and later, that NCCL passes on to a profiler, v3 and later. */
#ifndef PSM_ABI_PROFILER_NET_H
#define PSM_ABI_PROFILER_NET_H

#include "common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An id names the descriptor of an event's data: the upper half is the type of plugin, the lower half the version of
 * the descriptor. A plugin with its own descriptor uses its own type; a profiler ignores types that it does not know.
 */
typedef enum { NCCL_PROFILER_NET_TYPE_IB = 1 << 16, NCCL_PROFILER_NET_TYPE_SOCK = 2 << 16 } ncclProfilerNetType;
#define NCCL_PROFILER_NET_VER_BITS   16
#define NCCL_PROFILER_NET_VER_MASK   0xffffU
#define NCCL_PROFILER_NET_TYPE_MASK  0xffff0000U
#define NCCL_PROFILER_NET_IB_VER     1
#define NCCL_PROFILER_NET_SOCKET_VER 1

/* The type argument of the callback; 2.26 has only 0 and 1, without these names. */
enum {
    ncclProfilerNetEventStart = 0,
    ncclProfilerNetEventStop = 1,
    ncclProfilerNetEventUpdate = 2,
    ncclProfilerNetEventUpdateAndStop = 3
};

/* The callback that net init receives. eHandle is the event: returned at the start and passed back afterwards. pHandle
 * is the phandle of isend or irecv, the parent. extData is a descriptor, valid during the call. */
typedef ncclResult_t (*ncclProfilerCallback_t)(void **eHandle, int type, void *pHandle, int64_t pluginId,
                                               void *extData);

/* Values of type in the two descriptors of NCCL's own transports. */
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
