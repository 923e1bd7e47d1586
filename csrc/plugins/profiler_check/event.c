/* Descriptors of all versions: reading and writing. Members that a version lacks are 0. */
#include "event.h"

#include <string.h>

/* v1 has numbers where later versions have strings. */
static const char *const functions[] = {"Broadcast", "Reduce",   "AllGather", "ReduceScatter",
                                        "AllReduce", "SendRecv", "Send",      "Recv"};
static const char *const datatypes[] = {"ncclInt8",   "ncclUint8",   "ncclInt32",   "ncclUint32",  "ncclInt64",
                                        "ncclUint64", "ncclFloat16", "ncclFloat32", "ncclFloat64", "ncclBfloat16"};
static const char *const algorithms[] = {"TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"};
static const char *const protocols[] = {"LL", "LL128", "SIMPLE"};
#define COUNT(array) (sizeof(array) / sizeof *(array))

static void word(char *to, const char *from)
{
    size_t n = 0;
    if (from)
        while (n < EVENT_WORD - 1 && from[n]) n++;
    memset(to, 0, EVENT_WORD);
    if (n) memcpy(to, from, n);
}

static void name_of(char *to, const char *const *names, size_t n, unsigned number)
{
    word(to, number < n ? names[number] : "?");
}

static uint8_t number_of(const char *const *names, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0) return (uint8_t)i;
    return 0;
}

#define NAMES(field)   NAMES_##field, COUNT(NAMES_##field)
#define NAMES_func     functions
#define NAMES_datatype datatypes
#define NAMES_algo     algorithms
#define NAMES_proto    protocols

#define EVENT_CODEC
#include "psm_abi_events.h"

void event_read(int version, const void *record, struct event *e)
{
    memset(e, 0, sizeof *e);
    switch (version) {
#define READ(n)                                                                                                        \
    case n:                                                                                                            \
        read_v##n(record, e);                                                                                          \
        break;
        PSM_ABI_PROFILER_VERSIONS(READ)
#undef READ
    default:
        break;
    }
}

void event_write(int version, const struct event *e, union event_record *record, event_words words)
{
    memset(record, 0, sizeof *record);
    memcpy(words, e->words, sizeof e->words);
    switch (version) {
#define WRITE(n)                                                                                                       \
    case n:                                                                                                            \
        write_v##n(e, &record->v##n, words);                                                                           \
        break;
        PSM_ABI_PROFILER_VERSIONS(WRITE)
#undef WRITE
    default:
        break;
    }
}

size_t event_record_size(int version)
{
#define SIZE(v) [v] = sizeof(ncclProfilerEventDescr_v##v##_t),
    static const size_t sizes[] = {PSM_ABI_PROFILER_VERSIONS(SIZE)};
#undef SIZE
    return sizes[version];
}

/* ---- arguments of states ---- */

#define CASE(state, moves)                                                                                             \
    case state:                                                                                                        \
        moves break;
#define READ(field, member)  a->field = (__typeof__(a->field))r->member;
#define WRITE(field, member) r->member = (__typeof__(r->member))a->field;
#define CODEC(n)                                                                                                       \
    static void args_read_v##n(int state, const ncclProfilerEventStateArgs_v##n##_t *r, struct event_args *a)          \
    {                                                                                                                  \
        switch (state) {                                                                                               \
            PSM_ABI_PROFILER_STATE_ARGS_V##n(CASE, READ) default : break;                                              \
        }                                                                                                              \
    }                                                                                                                  \
    static void args_write_v##n(int state, const struct event_args *a, ncclProfilerEventStateArgs_v##n##_t *r)         \
    {                                                                                                                  \
        switch (state) {                                                                                               \
            PSM_ABI_PROFILER_STATE_ARGS_V##n(CASE, WRITE) default : break;                                             \
        }                                                                                                              \
    }
PSM_ABI_PROFILER_VERSIONS(CODEC)

void event_args_read(int version, int state, const void *record, struct event_args *a)
{
    memset(a, 0, sizeof *a);
    a->none = record == NULL;
    if (!record) return;
    switch (version) {
#define READ_ARGS(n)                                                                                                   \
    case n:                                                                                                            \
        args_read_v##n(state, record, a);                                                                              \
        break;
        PSM_ABI_PROFILER_VERSIONS(READ_ARGS)
    default:
        break;
    }
}

void event_args_write(int version, int state, const struct event_args *a, union event_args_record *record)
{
    memset(record, 0, sizeof *record);
    switch (version) {
#define WRITE_ARGS(n)                                                                                                  \
    case n:                                                                                                            \
        args_write_v##n(state, a, &record->v##n);                                                                      \
        break;
        PSM_ABI_PROFILER_VERSIONS(WRITE_ARGS)
    default:
        break;
    }
}
