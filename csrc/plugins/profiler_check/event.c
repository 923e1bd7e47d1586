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

/* The members that are the same in all versions; coll and p2p differ. */
#define READ_PROXY(r)                                                                                                  \
    case ncclProfileProxyOp:                                                                                           \
        e->pid = (r)->proxyOp.pid;                                                                                     \
        e->channel = (r)->proxyOp.channelId;                                                                           \
        e->peer = (r)->proxyOp.peer;                                                                                   \
        e->steps = (r)->proxyOp.nSteps;                                                                                \
        e->chunk = (r)->proxyOp.chunkSize;                                                                             \
        e->is_send = (r)->proxyOp.isSend != 0;                                                                         \
        break;                                                                                                         \
    case ncclProfileProxyStep:                                                                                         \
        e->step = (r)->proxyStep.step;                                                                                 \
        break;
#define READ_TASK(r)                                                                                                   \
    e->send = (r)->coll.sendBuff;                                                                                      \
    e->recv = (r)->coll.recvBuff;                                                                                      \
    e->seq = (r)->coll.seqNumber;                                                                                      \
    e->count = (r)->coll.count;                                                                                        \
    e->root = (r)->coll.root;                                                                                          \
    e->warps = (r)->coll.nWarps
#define READ_STRINGS(r)                                                                                                \
    word(e->func, (r)->coll.func);                                                                                     \
    word(e->datatype, (r)->coll.datatype);                                                                             \
    word(e->algo, (r)->coll.algo);                                                                                     \
    word(e->proto, (r)->coll.proto)
#define READ_COMM(r, member)                                                                                           \
    word(e->name, (r)->member.name);                                                                                   \
    e->hash = (r)->member.commHash
#define READ_P2P(r)                                                                                                    \
    e->recv = (r)->p2p.buff;                                                                                           \
    e->count = (r)->p2p.count;                                                                                         \
    e->peer = (r)->p2p.peer
#define READ_P2P_STRINGS(r)                                                                                            \
    word(e->func, (r)->p2p.func);                                                                                      \
    word(e->datatype, (r)->p2p.datatype)
#define READ_NET(r)                                                                                                    \
    case ncclProfileNetPlugin:                                                                                         \
        e->net_id = (r)->netPlugin.id;                                                                                 \
        e->data = (r)->netPlugin.data;                                                                                 \
        break;
#define READ_HEAD(r)                                                                                                   \
    e->type = (r)->type;                                                                                               \
    e->parent = (r)->parentObj;                                                                                        \
    e->rank = (r)->rank

static void read_v1(const ncclProfilerEventDescr_v1_t *r, struct event *e)
{
    READ_HEAD(r);
    switch (r->type) {
    case ncclProfileColl:
        READ_TASK(r);
        READ_COMM(r, coll);
        e->channels = r->coll.nMaxChannels;
        name_of(e->func, functions, COUNT(functions), r->coll.func);
        name_of(e->datatype, datatypes, COUNT(datatypes), r->coll.datatype);
        name_of(e->algo, algorithms, COUNT(algorithms), r->coll.algo);
        name_of(e->proto, protocols, COUNT(protocols), r->coll.proto);
        break;
    case ncclProfileP2p:
        READ_P2P(r);
        READ_COMM(r, p2p);
        name_of(e->func, functions, COUNT(functions), r->p2p.func);
        name_of(e->datatype, datatypes, COUNT(datatypes), r->p2p.datatype);
        break;
        READ_PROXY(r)
    default:
        break;
    }
}

static void read_v2(const ncclProfilerEventDescr_v2_t *r, struct event *e)
{
    READ_HEAD(r);
    switch (r->type) {
    case ncclProfileColl:
        READ_TASK(r);
        READ_COMM(r, coll);
        READ_STRINGS(r);
        e->channels = r->coll.nMaxChannels;
        break;
    case ncclProfileP2p:
        READ_P2P(r);
        READ_COMM(r, p2p);
        READ_P2P_STRINGS(r);
        break;
        READ_PROXY(r)
    default:
        break;
    }
}

static void read_v3(const ncclProfilerEventDescr_v3_t *r, struct event *e)
{
    READ_HEAD(r);
    switch (r->type) {
    case ncclProfileColl:
        READ_TASK(r);
        READ_COMM(r, coll);
        READ_STRINGS(r);
        e->channels = r->coll.nMaxChannels;
        break;
    case ncclProfileP2p:
        READ_P2P(r);
        READ_COMM(r, p2p);
        READ_P2P_STRINGS(r);
        break;
        READ_PROXY(r)
        READ_NET(r)
    case ncclProfileKernelCh:
        e->channel = r->kernelCh.channelId;
        break;
    default:
        break;
    }
}

static void read_v4(const ncclProfilerEventDescr_v4_t *r, struct event *e)
{
    READ_HEAD(r);
    switch (r->type) {
    case ncclProfileColl:
        READ_TASK(r);
        READ_STRINGS(r);
        e->channels = r->coll.nChannels;
        break;
    case ncclProfileP2p:
        READ_P2P(r);
        READ_P2P_STRINGS(r);
        e->channels = r->p2p.nChannels;
        break;
        READ_PROXY(r)
        READ_NET(r)
    case ncclProfileKernelCh:
        e->channel = r->kernelCh.channelId;
        e->ptimer = r->kernelCh.pTimer;
        break;
    default:
        break;
    }
}

/* v5 is v6 without the kinds of the copy engine. */
static void read_v6(const ncclProfilerEventDescr_v6_t *r, struct event *e)
{
    READ_HEAD(r);
    switch (r->type) {
    case ncclProfileGroupApi:
        e->captured = r->groupApi.graphCaptured;
        e->depth = r->groupApi.groupDepth;
        break;
    case ncclProfileCollApi:
        word(e->func, r->collApi.func);
        word(e->datatype, r->collApi.datatype);
        e->count = r->collApi.count;
        e->root = r->collApi.root;
        e->stream = r->collApi.stream;
        e->captured = r->collApi.graphCaptured;
        break;
    case ncclProfileP2pApi:
        word(e->func, r->p2pApi.func);
        word(e->datatype, r->p2pApi.datatype);
        e->count = r->p2pApi.count;
        e->stream = r->p2pApi.stream;
        e->captured = r->p2pApi.graphCaptured;
        break;
    case ncclProfileKernelLaunch:
        e->stream = r->kernelLaunch.stream;
        break;
    case ncclProfileColl:
        READ_TASK(r);
        READ_STRINGS(r);
        e->channels = r->coll.nChannels;
        e->group = r->coll.parentGroup;
        break;
    case ncclProfileP2p:
        READ_P2P(r);
        READ_P2P_STRINGS(r);
        e->channels = r->p2p.nChannels;
        e->group = r->p2p.parentGroup;
        break;
        READ_PROXY(r)
        READ_NET(r)
    case ncclProfileKernelCh:
        e->channel = r->kernelCh.channelId;
        e->ptimer = r->kernelCh.pTimer;
        break;
    case ncclProfileCeColl:
        word(e->func, r->ceColl.func);
        word(e->datatype, r->ceColl.datatype);
        word(e->algo, r->ceColl.syncStrategy);
        e->seq = r->ceColl.seqNumber;
        e->send = r->ceColl.sendBuff;
        e->recv = r->ceColl.recvBuff;
        e->count = r->ceColl.count;
        e->root = r->ceColl.root;
        e->stream = r->ceColl.stream;
        e->flag = r->ceColl.intraBatchSync;
        e->ops = (int)r->ceColl.numBatches;
        break;
    case ncclProfileCeSync:
        e->flag = r->ceCollSync.isComplete;
        e->ops = r->ceCollSync.nRanks;
        break;
    case ncclProfileCeBatch:
        e->ops = r->ceCollBatch.numOps;
        e->bytes = r->ceCollBatch.totalBytes;
        e->flag = r->ceCollBatch.useIntraSync;
        break;
    default:
        break;
    }
}

void event_read(int version, const void *record, struct event *e)
{
    memset(e, 0, sizeof *e);
    switch (version) {
    case 1:
        read_v1(record, e);
        break;
    case 2:
        read_v2(record, e);
        break;
    case 3:
        read_v3(record, e);
        break;
    case 4:
        read_v4(record, e);
        break;
    default:
        read_v6(record, e);
        break;
    }
}

/* ---- writing ---- */

#define WRITE_HEAD(r)                                                                                                  \
    (r)->type = (uint8_t)e->type;                                                                                      \
    (r)->parentObj = e->parent;                                                                                        \
    (r)->rank = e->rank
#define WRITE_TASK(r)                                                                                                  \
    (r)->coll.sendBuff = e->send;                                                                                      \
    (r)->coll.recvBuff = (void *)(uintptr_t)e->recv;                                                                   \
    (r)->coll.seqNumber = e->seq;                                                                                      \
    (r)->coll.count = e->count;                                                                                        \
    (r)->coll.root = e->root;                                                                                          \
    (r)->coll.nWarps = e->warps
#define WRITE_STRINGS(r)                                                                                               \
    (r)->coll.func = w[0];                                                                                             \
    (r)->coll.datatype = w[1];                                                                                         \
    (r)->coll.algo = w[2];                                                                                             \
    (r)->coll.proto = w[3]
#define WRITE_COMM(r, member)                                                                                          \
    (r)->member.name = e->name[0] ? w[4] : NULL;                                                                       \
    (r)->member.commHash = e->hash
#define WRITE_P2P(r)                                                                                                   \
    (r)->p2p.buff = (void *)(uintptr_t)e->recv;                                                                        \
    (r)->p2p.count = e->count;                                                                                         \
    (r)->p2p.peer = e->peer
#define WRITE_P2P_STRINGS(r)                                                                                           \
    (r)->p2p.func = w[0];                                                                                              \
    (r)->p2p.datatype = w[1]
#define WRITE_PROXY(r)                                                                                                 \
    case ncclProfileProxyOp:                                                                                           \
        (r)->proxyOp.pid = e->pid;                                                                                     \
        (r)->proxyOp.channelId = e->channel;                                                                           \
        (r)->proxyOp.peer = e->peer;                                                                                   \
        (r)->proxyOp.nSteps = e->steps;                                                                                \
        (r)->proxyOp.chunkSize = e->chunk;                                                                             \
        (r)->proxyOp.isSend = e->is_send;                                                                              \
        break;                                                                                                         \
    case ncclProfileProxyStep:                                                                                         \
        (r)->proxyStep.step = e->step;                                                                                 \
        break;
#define WRITE_NET(r)                                                                                                   \
    case ncclProfileNetPlugin:                                                                                         \
        (r)->netPlugin.id = e->net_id;                                                                                 \
        (r)->netPlugin.data = e->data;                                                                                 \
        break;

static void write_v1(const struct event *e, ncclProfilerEventDescr_v1_t *r, char (*w)[EVENT_WORD])
{
    WRITE_HEAD(r);
    switch (e->type) {
    case ncclProfileColl:
        WRITE_TASK(r);
        WRITE_COMM(r, coll);
        r->coll.nMaxChannels = e->channels;
        r->coll.func = number_of(functions, COUNT(functions), e->func);
        r->coll.datatype = number_of(datatypes, COUNT(datatypes), e->datatype);
        r->coll.algo = number_of(algorithms, COUNT(algorithms), e->algo);
        r->coll.proto = number_of(protocols, COUNT(protocols), e->proto);
        break;
    case ncclProfileP2p:
        WRITE_P2P(r);
        WRITE_COMM(r, p2p);
        r->p2p.func = number_of(functions, COUNT(functions), e->func);
        r->p2p.datatype = number_of(datatypes, COUNT(datatypes), e->datatype);
        break;
        WRITE_PROXY(r)
    default:
        break;
    }
}

static void write_v2(const struct event *e, ncclProfilerEventDescr_v2_t *r, char (*w)[EVENT_WORD])
{
    WRITE_HEAD(r);
    switch (e->type) {
    case ncclProfileColl:
        WRITE_TASK(r);
        WRITE_COMM(r, coll);
        WRITE_STRINGS(r);
        r->coll.nMaxChannels = e->channels;
        break;
    case ncclProfileP2p:
        WRITE_P2P(r);
        WRITE_COMM(r, p2p);
        WRITE_P2P_STRINGS(r);
        break;
        WRITE_PROXY(r)
    default:
        break;
    }
}

static void write_v3(const struct event *e, ncclProfilerEventDescr_v3_t *r, char (*w)[EVENT_WORD])
{
    WRITE_HEAD(r);
    switch (e->type) {
    case ncclProfileColl:
        WRITE_TASK(r);
        WRITE_COMM(r, coll);
        WRITE_STRINGS(r);
        r->coll.nMaxChannels = e->channels;
        break;
    case ncclProfileP2p:
        WRITE_P2P(r);
        WRITE_COMM(r, p2p);
        WRITE_P2P_STRINGS(r);
        break;
        WRITE_PROXY(r)
        WRITE_NET(r)
    case ncclProfileKernelCh:
        r->kernelCh.channelId = e->channel;
        break;
    default:
        break;
    }
}

static void write_v4(const struct event *e, ncclProfilerEventDescr_v4_t *r, char (*w)[EVENT_WORD])
{
    WRITE_HEAD(r);
    switch (e->type) {
    case ncclProfileColl:
        WRITE_TASK(r);
        WRITE_STRINGS(r);
        r->coll.nChannels = e->channels;
        break;
    case ncclProfileP2p:
        WRITE_P2P(r);
        WRITE_P2P_STRINGS(r);
        r->p2p.nChannels = e->channels;
        break;
        WRITE_PROXY(r)
        WRITE_NET(r)
    case ncclProfileKernelCh:
        r->kernelCh.channelId = e->channel;
        r->kernelCh.pTimer = e->ptimer;
        break;
    default:
        break;
    }
}

static void write_v6(const struct event *e, ncclProfilerEventDescr_v6_t *r, char (*w)[EVENT_WORD])
{
    WRITE_HEAD(r);
    r->type = e->type;
    switch (e->type) {
    case ncclProfileGroupApi:
        r->groupApi.graphCaptured = e->captured;
        r->groupApi.groupDepth = e->depth;
        break;
    case ncclProfileCollApi:
        r->collApi.func = w[0];
        r->collApi.datatype = w[1];
        r->collApi.count = e->count;
        r->collApi.root = e->root;
        r->collApi.stream = e->stream;
        r->collApi.graphCaptured = e->captured;
        break;
    case ncclProfileP2pApi:
        r->p2pApi.func = w[0];
        r->p2pApi.datatype = w[1];
        r->p2pApi.count = e->count;
        r->p2pApi.stream = e->stream;
        r->p2pApi.graphCaptured = e->captured;
        break;
    case ncclProfileKernelLaunch:
        r->kernelLaunch.stream = e->stream;
        break;
    case ncclProfileColl:
        WRITE_TASK(r);
        WRITE_STRINGS(r);
        r->coll.nChannels = e->channels;
        r->coll.parentGroup = e->group;
        break;
    case ncclProfileP2p:
        WRITE_P2P(r);
        WRITE_P2P_STRINGS(r);
        r->p2p.nChannels = e->channels;
        r->p2p.parentGroup = e->group;
        break;
        WRITE_PROXY(r)
        WRITE_NET(r)
    case ncclProfileKernelCh:
        r->kernelCh.channelId = e->channel;
        r->kernelCh.pTimer = e->ptimer;
        break;
    case ncclProfileCeColl:
        r->ceColl.func = w[0];
        r->ceColl.datatype = w[1];
        r->ceColl.syncStrategy = w[2];
        r->ceColl.seqNumber = e->seq;
        r->ceColl.ceSeqNum = (uint32_t)e->seq;
        r->ceColl.sendBuff = e->send;
        r->ceColl.recvBuff = (void *)(uintptr_t)e->recv;
        r->ceColl.count = e->count;
        r->ceColl.root = e->root;
        r->ceColl.stream = e->stream;
        r->ceColl.intraBatchSync = e->flag;
        r->ceColl.numBatches = (uint32_t)e->ops;
        break;
    case ncclProfileCeSync:
        r->ceCollSync.isComplete = e->flag;
        r->ceCollSync.nRanks = e->ops;
        break;
    case ncclProfileCeBatch:
        r->ceCollBatch.numOps = e->ops;
        r->ceCollBatch.totalBytes = e->bytes;
        r->ceCollBatch.useIntraSync = e->flag;
        break;
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
    case 1:
        write_v1(e, &record->v1, words);
        break;
    case 2:
        write_v2(e, &record->v2, words);
        break;
    case 3:
        write_v3(e, &record->v3, words);
        break;
    case 4:
        write_v4(e, &record->v4, words);
        break;
    default:
        write_v6(e, &record->v6, words);
        break;
    }
}

size_t event_record_size(int version)
{
    static const size_t sizes[] = {0,
                                   sizeof(ncclProfilerEventDescr_v1_t),
                                   sizeof(ncclProfilerEventDescr_v2_t),
                                   sizeof(ncclProfilerEventDescr_v3_t),
                                   sizeof(ncclProfilerEventDescr_v4_t),
                                   sizeof(ncclProfilerEventDescr_v5_t),
                                   sizeof(ncclProfilerEventDescr_v6_t)};
    return sizes[version];
}

_Static_assert(sizeof(ncclProfilerEventDescr_v5_t) == sizeof(ncclProfilerEventDescr_v6_t), "v5 is read as v6");
_Static_assert(offsetof(ncclProfilerEventDescr_v5_t, p2p.parentGroup) ==
                   offsetof(ncclProfilerEventDescr_v6_t, p2p.parentGroup),
               "v5 is read as v6");

/* ---- arguments of states ---- */

size_t event_args_size(int version)
{
    return version <= 3 ? sizeof(ncclProfilerEventStateArgs_v3_t) : sizeof(ncclProfilerEventStateArgs_v6_t);
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
    else if (state == ncclProfilerKernelChStop)
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
    else if (state == ncclProfilerKernelChStop)
        record->v4.kernelCh.pTimer = a->ptimer;
    else
        record->v4.proxyStep.transSize = a->bytes;
}
