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
    default:
        break;
    }
}

void event_write(int version, const struct event *e, union event_record *record, char (*words)[EVENT_WORD])
{
    memset(record, 0, sizeof *record);
    memcpy(words[0], e->func, EVENT_WORD);
    memcpy(words[1], e->datatype, EVENT_WORD);
    memcpy(words[2], e->algo, EVENT_WORD);
    memcpy(words[3], e->proto, EVENT_WORD);
    memcpy(words[4], e->name, EVENT_WORD);
    switch (version) {
#define WRITE(n)                                                                                                       \
    case n:                                                                                                            \
        write_v##n(e, &record->v##n, words);                                                                           \
        break;
        PSM_ABI_PROFILER_VERSIONS(WRITE)
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

size_t event_args_size(int version)
{
#define SIZE(v) [v] = sizeof(ncclProfilerEventStateArgs_v##v##_t),
    static const size_t sizes[] = {PSM_ABI_PROFILER_VERSIONS(SIZE)};
#undef SIZE
    return sizes[version];
}

static bool of_control(int state)
{
    return state >= ncclProfilerProxyCtrlIdle && state <= ncclProfilerProxyCtrlAppendEnd;
}

void event_args_read(int version, int state, const void *record, struct event_args *a)
{
    memset(a, 0, sizeof *a);
    a->none = record == NULL;
    if (!record) return;
    if (version <= 3) {
        const ncclProfilerEventStateArgs_v3_t *r = record;
        if (of_control(state)) {
            a->appended = r->proxyCtrl.appendedProxyOps;
        } else if (state <= ncclProfilerProxyOpRecvDone) {
            a->bytes = r->proxyOp.transSize;
            a->steps = r->proxyOp.steps;
        }
        return;
    }
    const ncclProfilerEventStateArgs_v4_t *r = record;
    if (of_control(state))
        a->appended = r->proxyCtrl.appendedProxyOps;
    else if (state == ncclProfilerNetPluginUpdate)
        a->data = r->netPlugin.data;
    else if (state == ncclProfilerKernelChStop || state == ncclProfilerKernelPhaseStop)
        a->ptimer = r->kernelCh.pTimer;
    else if (event_has_state(version, event_kind(ncclProfileProxyStep), state))
        a->bytes = r->proxyStep.transSize;
}

void event_args_write(int version, int state, const struct event_args *a, union event_args_record *record)
{
    memset(record, 0, sizeof *record);
    if (of_control(state) && version <= 3)
        record->v3.proxyCtrl.appendedProxyOps = a->appended;
    else if (of_control(state))
        record->v4.proxyCtrl.appendedProxyOps = a->appended;
    else if (version <= 3) {
        record->v3.proxyOp.transSize = a->bytes;
        record->v3.proxyOp.steps = a->steps;
    } else if (state == ncclProfilerNetPluginUpdate)
        record->v4.netPlugin.data = a->data;
    else if (state == ncclProfilerKernelChStop || state == ncclProfilerKernelPhaseStop)
        record->v4.kernelCh.pTimer = a->ptimer;
    else
        record->v4.proxyStep.transSize = a->bytes;
}
