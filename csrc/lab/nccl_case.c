/* A case of psm_nccl_rank: its keys beyond those of every case; and the library that it runs on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "nccl_rank.h"

bool nccl_load(struct nccl_api *api, const char *library, char *text, size_t size)
{
    void *nccl = dlopen(library, RTLD_NOW | RTLD_GLOBAL), *cuda = RTLD_DEFAULT;
    if (!nccl) {
        snprintf(text, size, "%.200s cannot be loaded: %.300s", library, dlerror());
        return false;
    }
    if (!dlsym(RTLD_DEFAULT, "cudaMalloc") && !(cuda = dlopen("libcudart.so.12", RTLD_NOW | RTLD_GLOBAL))) {
        snprintf(text, size, "%.200s brings no libcudart, and none is found: %.300s", library, dlerror());
        return false;
    }
#define LOAD_FROM(handle, name, must)                                                                                  \
    *(void **)&api->name = dlsym(handle, #name);                                                                       \
    if (!api->name && (must)) {                                                                                        \
        snprintf(text, size, "%.200s: there is no " #name, library);                                                   \
        return false;                                                                                                  \
    }
#define LOAD_NCCL(name, result, must, ...) LOAD_FROM(nccl, name, must)
#define LOAD_CUDA(name, result, must, ...) LOAD_FROM(cuda, name, must)
    NCCL_FUNCTIONS(LOAD_NCCL)
    CUDA_FUNCTIONS(LOAD_CUDA)
#undef LOAD_NCCL
#undef LOAD_CUDA
#undef LOAD_FROM
    if (api->ncclGetVersion(&api->version) != NCCL_SUCCESS) api->version = 0;
    return true;
}

/* In the order of their numbers. */
static const char *const types[] = {"int8",    "uint8",   "int32",    "uint32",     "int64",      "uint64", "float16",
                                    "float32", "float64", "bfloat16", "float8e4m3", "float8e5m2", NULL};
static const char *const ops[] = {"sum", "prod", "max", "min", "avg", NULL};
static const char *const memories[] = {"cuda", "nccl", NULL};
static const char *const policies[] = {"default", "efficiency", "zero", NULL};

static bool set(void *which, const char *key, const char *value)
{
    struct nccl_case *c = which;
    unsigned n;
    int common = lab_task_set(&c->task, key, value, PATTERN_SCATTER);
    if (common != 0) return common > 0;
#define IS(name) (strcmp(key, name) == 0)
    if (IS("type")) return lab_choice(value, types, &c->type);
    if (IS("op")) return lab_choice(value, ops, &n) && (c->op = (enum nccl_op)n, true);
    if (IS("memory")) return lab_choice(value, memories, &n) && (c->memory = (enum nccl_memory)n, true);
    if (IS("iters")) return lab_number(value, 0, 1000000, &c->task.iters);
    if (IS("root")) return lab_number(value, 0, (uint64_t)c->ranks - 1, &c->root);
    if (IS("registered")) return lab_flag(value, &c->task.registered);
    if (IS("blocking")) return lab_flag(value, &c->blocking);
    if (IS("keep")) return lab_flag(value, &c->keep);
    if (IS("windows")) return lab_flag(value, &c->windows);
    if (IS("cta_policy")) return lab_choice(value, policies, &n) && (c->policy = (enum nccl_policy)n, true);
    if (IS("tasks")) return lab_number(value, 1, 10000000, &c->tasks.lines);
    if (IS("graph")) return lab_number(value, 0, 1000000, &c->graph);
#undef IS
    return false;
}

int nccl_case_read(struct nccl_case *c, int ranks, char *text, size_t size)
{
    char line[4096];
    *c = (struct nccl_case){.task = {.iters = 1, .seed = 1, .stream = STREAM_NONBLOCKING, .pattern = PATTERN_ALLTOALL},
                            .blocking = true,
                            .ranks = ranks,
                            .type = 1};
    int more = lab_case_line(line, sizeof line, &c->task, text, size);
    if (more <= 0) return more;
    if (!lab_case_set(line, set, c, &c->task, text, size)) return -1;
    const struct lab_task *task = &c->task;
    if ((task->pattern == PATTERN_TASKS) != (c->tasks.lines != 0)) {
        snprintf(text, size, "case %.60s: the pattern tasks comes with tasks=N, the number of lines behind it",
                 task->name);
        return -1;
    }
    if (task->pattern == PATTERN_TASKS && !nccl_tasks_read(c, text, size)) return -1;
    size_t each = nccl_type_size(c->type);
    if (task->size % each || task->shorter % each) {
        snprintf(text, size, "case %.60s: size %llu less %llu is no multiple of the %zu bytes of a %s", task->name,
                 (unsigned long long)task->size, (unsigned long long)task->shorter, each, types[c->type]);
        return -1;
    }
    if (c->graph && (task->pattern == PATTERN_RANDOM || task->stream == STREAM_LEGACY)) {
        snprintf(text, size, "case %.60s: a graph has one size of each message, and no legacy stream", task->name);
        return -1;
    }
    if (task->pattern == PATTERN_PUT_SIGNAL && !c->windows) {
        snprintf(text, size, "case %.60s: put-signal needs windows=1", task->name);
        return -1;
    }
    return 1;
}
