/* Env plugins, v1 and v2: libnccl-env.so, see NCCL_ENV_PLUGIN, which is read with plain getenv. */
#ifndef PSM_ABI_ENV_H
#define PSM_ABI_ENV_H

#include "common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* NCCL 2.28.7 and later. */
typedef struct {
    const char *name;
    ncclResult_t (*init)(uint8_t ncclMajor, uint8_t ncclMinor, uint8_t ncclPatch, const char *suffix);
    ncclResult_t (*finalize)(void);
    /* the plugin owns the string; it stays valid until finalize or the next call for that name */
    const char *(*getEnv)(const char *name);
} ncclEnv_v1_t;

/* From 2.30.7. */
typedef struct {
    const char *name;
    ncclResult_t (*init)(uint8_t ncclMajor, uint8_t ncclMinor, uint8_t ncclPatch, const char *suffix,
                         ncclDebugLogger_t logFunction);
    ncclResult_t (*finalize)(void);
    const char *(*getEnv)(const char *name);
} ncclEnv_v2_t;

/* A plugin defines the versions that it supports: `const ncclX_vN_t ncclXPlugin_vN = {...}`. */
extern PSM_ABI_TABLE ncclEnv_v1_t ncclEnvPlugin_v1;
extern PSM_ABI_TABLE ncclEnv_v2_t ncclEnvPlugin_v2;

#ifdef __cplusplus
}
#endif

#endif
