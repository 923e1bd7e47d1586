/* The list of cases on standard input, one a line, key=value with blanks between; and the library that they run on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_rank.h"
#include "words.h"

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

static const char *const patterns[] = {"pair",      "ring",          "alltoall",  "random", "allreduce",
                                       "allgather", "reducescatter", "broadcast", "reduce", NULL};
/* In the order of their numbers. */
static const char *const types[] = {"int8",    "uint8",   "int32",    "uint32",     "int64",      "uint64", "float16",
                                    "float32", "float64", "bfloat16", "float8e4m3", "float8e5m2", NULL};
static const char *const ops[] = {"sum", "prod", "max", "min", "avg", NULL};
static const char *const streams[] = {"legacy", "blocking", "nonblocking", NULL};
static const char *const memories[] = {"cuda", "nccl", NULL};
static const char *const skips[] = {"none", "send", "recv", NULL};

static bool yes(const char *text, bool *value)
{
    uint64_t n;
    if (!lab_number(text, 0, 1, &n)) return false;
    *value = n;
    return true;
}

static bool set(struct nccl_case *c, int ranks, const char *key, const char *value)
{
    unsigned n;
#define IS(name) (strcmp(key, name) == 0)
    if (IS("name")) {
        if (!*value || strlen(value) >= sizeof c->name) return false;
        strcpy(c->name, value);
        return true;
    }
    if (IS("pattern")) return lab_choice(value, patterns, &n) && (c->pattern = (enum nccl_pattern)n, true);
    if (IS("type")) return lab_choice(value, types, &c->type);
    if (IS("op")) return lab_choice(value, ops, &n) && (c->op = (enum nccl_op)n, true);
    if (IS("app_stream")) return lab_choice(value, streams, &n) && (c->stream = (enum nccl_stream)n, true);
    if (IS("memory")) return lab_choice(value, memories, &n) && (c->memory = (enum nccl_memory)n, true);
    if (IS("skip")) return lab_choice(value, skips, &n) && (c->skip = (enum nccl_skip)n, true);
    if (IS("size")) return lab_number(value, 0, UINT64_C(1) << 36, &c->size);
    if (IS("iters")) return lab_number(value, 0, 1000000, &c->iters);
    if (IS("seed")) return lab_number(value, 0, UINT64_MAX, &c->seed);
    if (IS("device")) return lab_number(value, 0, 1023, &c->device);
    if (IS("root")) return lab_number(value, 0, (uint64_t)ranks - 1, &c->root);
    if (IS("shorter")) return lab_number(value, 0, UINT64_C(1) << 36, &c->shorter);
    if (IS("registered")) return yes(value, &c->registered);
    if (IS("blocking")) return yes(value, &c->blocking);
    if (IS("keep")) return yes(value, &c->keep);
#undef IS
    return false;
}

int nccl_case_read(struct nccl_case *c, int ranks, char *text, size_t size)
{
    static unsigned count;
    char line[4096];
    do {
        if (!fgets(line, sizeof line, stdin)) return 0;
        if (!strchr(line, '\n') && !feof(stdin)) {
            snprintf(text, size, "a case has more than %zu bytes", sizeof line - 2);
            return -1;
        }
    } while (line[strspn(line, " \t\n")] == 0 || line[0] == '#');
    *c = (struct nccl_case){
        .iters = 1, .seed = 1, .stream = APP_NONBLOCKING, .blocking = true, .pattern = NCCL_ALLTOALL, .type = 1};
    snprintf(c->name, sizeof c->name, "%u", count++);
    char *rest = line;
    for (char *item; (item = strtok_r(rest, " \t\n", &rest));) {
        char *equal = strchr(item, '=');
        if (equal) *equal = 0;
        if (equal && set(c, ranks, item, equal + 1)) continue;
        snprintf(text, size, "case %.60s: %.60s%s%.60s: no such key, or a value that it cannot have", c->name, item,
                 equal ? "=" : "", equal ? equal + 1 : "");
        return -1;
    }
    size_t each = nccl_type_size(c->type);
    if (c->size % each || c->shorter % each) {
        snprintf(text, size, "case %.60s: size %llu less %llu is no multiple of the %zu bytes of a %s", c->name,
                 (unsigned long long)c->size, (unsigned long long)c->shorter, each, types[c->type]);
        return -1;
    }
    return 1;
}
