/* Tuner plugins, v1 to v6: libnccl-tuner.so, see NCCL_TUNER_PLUGIN. If getCollInfo returns anything but ncclSuccess,
 * the collective fails: NCCL's headers mention a fallback, but its code has none. */
#ifndef PSM_ABI_TUNER_H
#define PSM_ABI_TUNER_H

#include "common.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NCCL_ALGO_UNDEF          -1
#define NCCL_ALGO_TREE           0
#define NCCL_ALGO_RING           1
#define NCCL_ALGO_COLLNET_DIRECT 2
#define NCCL_ALGO_COLLNET_CHAIN  3
#define NCCL_ALGO_NVLS           4
#define NCCL_ALGO_NVLS_TREE      5
#define NCCL_ALGO_PAT            6 /* 2.23 */
/* 6 until 2.22. The table of getCollInfo has numAlgo rows: use numAlgo, not this. */
#define NCCL_NUM_ALGORITHMS NCCL_NUM_ALGORITHMS_V5

#define NCCL_PROTO_UNDEF   -1
#define NCCL_PROTO_LL      0
#define NCCL_PROTO_LL128   1
#define NCCL_PROTO_SIMPLE  2
#define NCCL_NUM_PROTOCOLS NCCL_NUM_PROTOCOLS_V5

/* Functions with a cost model, ncclFuncBroadcast to ncclFuncAllReduce. Not the number of values of ncclFunc_t. */
#define NCCL_NUM_FUNCTIONS 5

/* In the cost table of v3 and later: this algorithm cannot run with this protocol. Do not change such an entry. */
#define NCCL_ALGO_PROTO_IGNORE -1.0

#define NCCL_NUM_ALGORITHMS_V5    7
#define NCCL_NUM_PROTOCOLS_V5     3
#define NCCL_NUM_HW_LINKS_V5      3
#define NCCL_NUM_COMPCAPS_V5      4
#define NCCL_NUM_TUNING_SCALES_V5 3

/* Indices into ncclTunerConstants_v5_t. */
#define NCCL_HW_NVLINK             0
#define NCCL_HW_PCI                1
#define NCCL_HW_NET                2
#define NCCL_NUM_HW_LINKS          NCCL_NUM_HW_LINKS_V5
#define NCCL_VOLTA_COMPCAP_IDX     0
#define NCCL_AMPERE_COMPCAP_IDX    1
#define NCCL_HOPPER_COMPCAP_IDX    2
#define NCCL_BLACKWELL_COMPCAP_IDX 3
#define NCCL_NUM_COMPCAPS          NCCL_NUM_COMPCAPS_V5
#define NCCL_TUNING_SCALE_1NODE    0
#define NCCL_TUNING_SCALE_2NODES   1
#define NCCL_TUNING_SCALE_4NODES   2
#define NCCL_NUM_TUNING_SCALES     NCCL_NUM_TUNING_SCALES_V5

/* NCCL 2.19 and 2.20, RCCL 2.20. There is no context, so all communicators of a process share one state. An output that
 * is not written means NCCL's own choice; set algorithm and protocol together. */
typedef struct {
    const char *name;
    ncclResult_t (*init)(size_t nRanks, size_t nNodes, ncclDebugLogger_t logFunction);
    ncclResult_t (*getCollInfo)(ncclFunc_t collType, size_t nBytes, int collNetSupport, int nvlsSupport, int numPipeOps,
                                int *algorithm, int *protocol, int *nChannels);
    ncclResult_t (*destroy)(void);
} ncclTuner_v1_t;

/* From NCCL 2.21; RCCL 2.21. The context is the last argument of init and the first of the others. */
typedef struct {
    const char *name;
    ncclResult_t (*init)(size_t nRanks, size_t nNodes, ncclDebugLogger_t logFunction, void **context);
    ncclResult_t (*getCollInfo)(void *context, ncclFunc_t collType, size_t nBytes, int collNetSupport, int nvlsSupport,
                                int numPipeOps, int *algorithm, int *protocol, int *nChannels);
    ncclResult_t (*destroy)(void *context);
} ncclTuner_v2_t;

/* From 2.22. A cost table instead of one choice. Despite its type, collCostTable is not an array of pointers: cast it
 * to float (*)[numProto]. The lowest cost wins; 0 forces a choice. A non-zero nChannels overrides the number of
 * channels. */
typedef struct {
    const char *name;
    ncclResult_t (*init)(size_t nRanks, size_t nNodes, ncclDebugLogger_t logFunction, void **context);
    ncclResult_t (*getCollInfo)(void *context, ncclFunc_t collType, size_t nBytes, int numPipeOps,
                                float **collCostTable, int numAlgo, int numProto, int *nChannels);
    ncclResult_t (*destroy)(void *context);
} ncclTuner_v3_t;

/* From 2.24. regBuff: the user's buffers are registered, or can be. */
typedef struct {
    const char *name;
    ncclResult_t (*init)(size_t nRanks, size_t nNodes, ncclDebugLogger_t logFunction, void **context);
    ncclResult_t (*getCollInfo)(void *context, ncclFunc_t collType, size_t nBytes, int numPipeOps,
                                float **collCostTable, int numAlgo, int numProto, int regBuff, int *nChannels);
    ncclResult_t (*destroy)(void *context);
} ncclTuner_v4_t;

typedef struct {
    int nNvlDomains;
    int minRanksPerNvlDomain;
    int maxRanksPerNvlDomain;
} ncclNvlDomainInfo_v5_t;

/* In and out: NCCL passes its own model and uses what init leaves there. 1152 bytes in NCCL; the example header that
 * NCCL ships ends before perChMaxNVLSTreeBws, at 1056, so a plugin built with it does not change the last table. */
typedef struct {
    double baseLatencies[NCCL_NUM_ALGORITHMS_V5][NCCL_NUM_PROTOCOLS_V5];
    double hwLatencies[NCCL_NUM_HW_LINKS_V5][NCCL_NUM_ALGORITHMS_V5][NCCL_NUM_PROTOCOLS_V5];
    double llMaxBws[NCCL_NUM_COMPCAPS_V5][NCCL_NUM_TUNING_SCALES_V5];
    double perChMaxRingLL128Bws[NCCL_NUM_COMPCAPS_V5][NCCL_NUM_TUNING_SCALES_V5];
    double perChMaxTreeLL128Bws[NCCL_NUM_COMPCAPS_V5][NCCL_NUM_TUNING_SCALES_V5];
    double perChMaxTreeBws[NCCL_NUM_COMPCAPS_V5][NCCL_NUM_TUNING_SCALES_V5];
    double perChMaxNVLSTreeBws[NCCL_NUM_COMPCAPS_V5][NCCL_NUM_TUNING_SCALES_V5];
} ncclTunerConstants_v5_t;

/* From 2.28. The context is the first argument of init, and destroy is renamed finalize. */
typedef struct {
    const char *name;
    ncclResult_t (*init)(void **ctx, uint64_t commId, size_t nRanks, size_t nNodes, ncclDebugLogger_t logFunction,
                         ncclNvlDomainInfo_v5_t *nvlDomainInfo, ncclTunerConstants_v5_t *constants);
    ncclResult_t (*getCollInfo)(void *context, ncclFunc_t collType, size_t nBytes, int numPipeOps,
                                float **collCostTable, int numAlgo, int numProto, int regBuff, int *nChannels);
    ncclResult_t (*finalize)(void *context);
} ncclTuner_v5_t;

typedef ncclNvlDomainInfo_v5_t ncclNvlDomainInfo_v6_t;
typedef ncclTunerConstants_v5_t ncclTunerConstants_v6_t;

/* From 2.30. */
typedef struct {
    const char *name;
    ncclResult_t (*init)(void **ctx, uint64_t commId, size_t nRanks, size_t nNodes, ncclDebugLogger_t logFunction,
                         ncclNvlDomainInfo_v6_t *nvlDomainInfo, ncclTunerConstants_v6_t *constants);
    ncclResult_t (*getCollInfo)(void *context, ncclFunc_t collType, size_t nBytes, int numPipeOps,
                                float **collCostTable, int numAlgo, int numProto, int regBuff, int *nChannels);
    ncclResult_t (*finalize)(void *context);
    /* May be NULL. chunkSize is in and out; NCCL keeps it within the buffer. */
    ncclResult_t (*getChunkSize)(void *context, ncclFunc_t collType, size_t nBytes, int algo, int proto, int nChannels,
                                 size_t *chunkSize);
} ncclTuner_v6_t;

extern PSM_ABI_TABLE ncclTuner_v1_t ncclTunerPlugin_v1;
extern PSM_ABI_TABLE ncclTuner_v2_t ncclTunerPlugin_v2;
extern PSM_ABI_TABLE ncclTuner_v3_t ncclTunerPlugin_v3;
extern PSM_ABI_TABLE ncclTuner_v4_t ncclTunerPlugin_v4;
extern PSM_ABI_TABLE ncclTuner_v5_t ncclTunerPlugin_v5;
extern PSM_ABI_TABLE ncclTuner_v6_t ncclTunerPlugin_v6;

#ifdef __cplusplus
}
#endif

#endif
