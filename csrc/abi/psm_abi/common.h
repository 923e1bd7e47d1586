/* Definitions shared by NCCL's plugin ABIs: result codes, data types, log levels and the logger function.
 *
 * These are our own headers of the ABIs, with NCCL's names, for plugins that are built without NCCL. tests/abi compares
 * layouts and values with every release from 2.4 to 2.30. Enums and constants that grew over time have their newest
 * form; an older release never passes a value that it does not know, and may refuse one. Names without a version
 * (ncclNet_t, NCCL_NET_PLUGIN_SYMBOL, ...) mean a different version in each release, so these headers do not define
 * them. */
#ifndef PSM_ABI_COMMON_H
#define PSM_ABI_COMMON_H

#include <stddef.h>
#include <stdint.h>

#if defined(NCCL_NET_H_) || defined(NCCL_TUNER_H_) || defined(NCCL_PROFILER_H_) || defined(NCCL_ENV_H_) ||             \
    defined(NCCL_GIN_H_) || defined(NCCL_RMA_H_) || defined(NCCL_DEBUG_H_) || defined(NCCL_ERR_H_) ||                  \
    defined(NCCL_TYPES_H_) || defined(NCCL_NET_DEVICE_H_)
#error                                                                                                                 \
    "psm_abi: NCCL's own plugin headers are included already and define the same names. Include either those or psm_abi in one file; nccl.h may come before psm_abi."
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* NCCL finds a plugin's table by its symbol name. The headers declare each table so that the compiler checks its type
 * and the symbol stays visible in a library built with -fvisibility=hidden. For tables that are filled in at run time,
 * build with -DPSM_ABI_CONST= */
#ifndef PSM_ABI_CONST
#define PSM_ABI_CONST const
#endif
#define PSM_ABI_TABLE __attribute__((visibility("default"))) PSM_ABI_CONST

/* nccl.h declares these three too; its declarations win if it is included first. */
#ifndef NCCL_H_
typedef enum {
    ncclSuccess = 0, /* <- nccl.h was included after psm_abi? Include nccl.h first. */
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6, /* 2.13 */
    ncclInProgress = 7,  /* 2.14 */
    ncclTimeout = 8,     /* 2.30 */
    ncclNumResults = 9
} ncclResult_t;

typedef enum {
    ncclSum = 0,
    ncclProd = 1,
    ncclMax = 2,
    ncclMin = 3,
    ncclAvg = 4,    /* 2.10 */
    ncclNumOps = 5, /* numbers from here on are user-defined operations */
    ncclMaxRedOp = 0x7fffffff
} ncclRedOp_t;

typedef enum {
    ncclInt8 = 0,
    ncclChar = 0,
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclInt = 2,
    ncclUint32 = 3,
    ncclInt64 = 4,
    ncclUint64 = 5,
    ncclFloat16 = 6,
    ncclHalf = 6,
    ncclFloat32 = 7,
    ncclFloat = 7,
    ncclFloat64 = 8,
    ncclDouble = 8,
    ncclBfloat16 = 9,    /* 2.10; before that, 9 was the number of types */
    ncclFloat8e4m3 = 10, /* 2.24; RCCL has it earlier, as ncclFp8E4M3 */
    ncclFloat8e5m2 = 11, /* likewise, ncclFp8E5M2 */
    ncclNumTypes = 12
} ncclDataType_t;
#endif

/* What a tuner is asked about. The numbers up to ncclFuncRecv are the same in all releases. */
typedef enum {
    ncclFuncBroadcast = 0,
    ncclFuncReduce = 1,
    ncclFuncAllGather = 2,
    ncclFuncReduceScatter = 3,
    ncclFuncAllReduce = 4,
    ncclFuncSendRecv = 5,
    ncclFuncSend = 6,
    ncclFuncRecv = 7,
    ncclFuncAlltoAll = 8, /* 2.28. RCCL uses 8 for something else: PSM_ABI_RCCL_FUNC_ALLTOALL_PIVOT */
    ncclFuncScatter = 9,
    ncclFuncGather = 10,
    ncclFuncAllGatherV = 11, /* 2.29 */
    ncclFuncPutSignal = 12,
    ncclFuncSignal = 13,
    ncclFuncWaitSignal = 14,
    ncclNumFuncs = 15
} ncclFunc_t;
#define PSM_ABI_RCCL_FUNC_ALLTOALL_PIVOT 8

typedef enum {
    NCCL_LOG_NONE = 0,
    NCCL_LOG_VERSION = 1,
    NCCL_LOG_WARN = 2,
    NCCL_LOG_INFO = 3,
    NCCL_LOG_ABORT = 4,
    NCCL_LOG_TRACE = 5
} ncclDebugLogLevel;

/* Bits of the logger's flags. A release's NCCL_DEBUG_SUBSYS never enables bits that it does not know. */
typedef enum {
    NCCL_INIT = 1 << 0,
    NCCL_COLL = 1 << 1,
    NCCL_P2P = 1 << 2,
    NCCL_SHM = 1 << 3,
    NCCL_NET = 1 << 4,
    NCCL_GRAPH = 1 << 5,
    NCCL_TUNING = 1 << 6,
    NCCL_ENV = 1 << 7,         /* 2.7 */
    NCCL_ALLOC = 1 << 8,       /* 2.9.9 */
    NCCL_CALL = 1 << 9,        /* 2.13 */
    NCCL_PROXY = 1 << 10,      /* 2.17 */
    NCCL_NVLS = 1 << 11,       /* 2.17 */
    NCCL_BOOTSTRAP = 1 << 12,  /* 2.21 */
    NCCL_REG = 1 << 13,        /* 2.21 */
    NCCL_PROFILE = 1 << 14,    /* 2.22 */
    NCCL_RAS = 1 << 15,        /* 2.24 */
    NCCL_DESTROY = 1 << 16,    /* 2.30 */
    NCCL_ALLOC_HOST = 1 << 17, /* 2.30.7 */
    NCCL_ALL = ~0
} ncclDebugLogSubSys;

/* NCCL's log function, passed to a plugin's init. It adds the prefix and the line end. */
typedef void (*ncclDebugLogger_t)(ncclDebugLogLevel level, unsigned long flags, const char *file, int line,
                                  const char *fmt, ...) __attribute__((format(printf, 5, 6)));

#ifdef __cplusplus
}
#endif

#endif
