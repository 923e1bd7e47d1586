/* CUDA types of one area (device); see types.h for the rules. */
#ifndef PSM_CUDA_TYPES_DEVICE_H
#define PSM_CUDA_TYPES_DEVICE_H

/* Contexts. */
typedef int CUfunc_cache;
typedef int CUsharedconfig;
typedef int CUlimit;
typedef int CUexecAffinityType;
typedef struct CUexecAffinityParam_st {
    CUexecAffinityType type;
    union {
        struct {
            unsigned int val;
        } smCount;
    } param;
} CUexecAffinityParam;
typedef struct CUctxCigParam_st {
    int sharedDataType;
    void *sharedData;
} CUctxCigParam;
typedef struct CUctxCreateParams_st {
    CUexecAffinityParam *execAffinityParams;
    int numExecAffinityParams;
    CUctxCigParam *cigParams;
} CUctxCreateParams;

#define PSM_CUDA_UNSUPPORTED_LIMIT 215
#endif
