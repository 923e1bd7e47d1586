/* The table of one version: VERSION is its number. The versions differ in numbers instead of names (v1), in the
 * communicator's hash with each operation (up to v3), the application's tags (from v7 on), and in their kinds and
 * members. */
#define JOIN2(a, b, c) a##b##c
#define JOIN(a, b, c)  JOIN2(a, b, c)
#define NAMED(name)    JOIN(name##_v, VERSION, )
#define TYPE(name)     JOIN(ncclProfiler##name##_v, VERSION, _t)

#define STATE_ARGS JOIN(PSM_ABI_PROFILER_STATE_ARGS_V, VERSION, )
#define ARGS_OF(state, moves)                                                                                          \
    case state:                                                                                                        \
        moves break;
#define ARG(field, member) a.field = args->member;

#if VERSION == 1
#define FUNC(x)     number((x), PSM_PROF_FUNCS)
#define DATATYPE(x) number((x), 12)
#define ALGO(x)     number((x), PSM_PROF_ALGOS)
#define PROTO(x)    number((x), PSM_PROF_PROTOS)
#else
#define FUNC(x)     prof_func(&made, (x))
#define DATATYPE(x) prof_datatype(&made, (x))
#define ALGO(x)     prof_algo(&made, (x))
#define PROTO(x)    prof_proto(&made, (x))
#endif

#if VERSION >= 7
#define TAG(member)                                                                                                    \
    if (made.comm->tags) e->u.tagged.user_tag = d->member.userTag
#else
#define TAG(member) (void)0
#endif

static ncclResult_t NAMED(start)(void *context, void **handle, TYPE(EventDescr) * d)
{
    struct prof_new made;
    if (!handle) return ncclSuccess;
    *handle = NULL;
    if (!d || !prof_begin(&made, context, VERSION, d->type, (uint64_t)(uintptr_t)d->parentObj,
                          d->type == ncclProfileProxyOp ? d->proxyOp.pid : 0))
        return ncclSuccess;
    struct psm_prof_event *e = made.event;
    switch (d->type) {
    case ncclProfileColl:
        e->u.coll.seq = d->coll.seqNumber;
        e->u.coll.count = d->coll.count;
        e->u.coll.root = d->coll.root;
        e->u.coll.func = FUNC(d->coll.func);
        e->u.coll.datatype = DATATYPE(d->coll.datatype);
        e->u.coll.algo = ALGO(d->coll.algo);
        e->u.coll.proto = PROTO(d->coll.proto);
        e->u.coll.warps = d->coll.nWarps;
#if VERSION <= 3
        e->u.coll.channels = d->coll.nMaxChannels;
        identify(made.comm, d->coll.commHash, d->coll.name, d->rank);
#else
        e->u.coll.channels = d->coll.nChannels;
#endif
#if VERSION >= 5
        e->u.coll.group = (uint64_t)(uintptr_t)d->coll.parentGroup;
#endif
        TAG(coll);
        break;
    case ncclProfileP2p:
        e->u.p2p.count = d->p2p.count;
        e->u.p2p.peer = d->p2p.peer;
        e->u.p2p.func = FUNC(d->p2p.func);
        e->u.p2p.datatype = DATATYPE(d->p2p.datatype);
#if VERSION <= 3
        identify(made.comm, d->p2p.commHash, d->p2p.name, d->rank);
#else
        e->u.p2p.channels = d->p2p.nChannels;
#endif
#if VERSION >= 5
        e->u.p2p.group = (uint64_t)(uintptr_t)d->p2p.parentGroup;
#endif
        TAG(p2p);
        break;
    case ncclProfileProxyOp:
        e->u.proxy_op.pid = d->proxyOp.pid;
        e->u.proxy_op.peer = d->proxyOp.peer;
        e->u.proxy_op.steps = d->proxyOp.nSteps;
        e->u.proxy_op.chunk = d->proxyOp.chunkSize;
        e->u.proxy_op.channel = d->proxyOp.channelId;
        if (d->proxyOp.isSend) set_flag(e, PSM_PROF_SENDS);
        break;
    case ncclProfileProxyStep:
        e->u.proxy_step.step = d->proxyStep.step;
        break;
#if VERSION >= 3
    case ncclProfileKernelCh:
        e->u.kernel_ch.channel = d->kernelCh.channelId;
#if VERSION >= 4
        e->u.kernel_ch.gpu_begin_ns = d->kernelCh.pTimer;
#endif
        break;
    case ncclProfileNetPlugin:
        e->u.net.id = d->netPlugin.id;
        prof_net_data(e, d->netPlugin.id, d->netPlugin.data);
        break;
#endif
#if VERSION >= 5
    case ncclProfileGroupApi:
        e->u.api.depth = d->groupApi.groupDepth;
        e->u.api.func = e->u.api.datatype = PSM_PROF_NAME_NONE;
        if (d->groupApi.graphCaptured) set_flag(e, PSM_PROF_CAPTURED);
        break;
    case ncclProfileCollApi:
        e->u.api.count = d->collApi.count;
        e->u.api.stream = (uint64_t)(uintptr_t)d->collApi.stream;
        e->u.api.root = d->collApi.root;
        e->u.api.func = FUNC(d->collApi.func);
        e->u.api.datatype = DATATYPE(d->collApi.datatype);
        if (d->collApi.graphCaptured) set_flag(e, PSM_PROF_CAPTURED);
        TAG(collApi);
        break;
    case ncclProfileP2pApi:
        e->u.api.count = d->p2pApi.count;
        e->u.api.stream = (uint64_t)(uintptr_t)d->p2pApi.stream;
        e->u.api.func = FUNC(d->p2pApi.func);
        e->u.api.datatype = DATATYPE(d->p2pApi.datatype);
        if (d->p2pApi.graphCaptured) set_flag(e, PSM_PROF_CAPTURED);
        TAG(p2pApi);
        break;
    case ncclProfileKernelLaunch:
        e->u.api.stream = (uint64_t)(uintptr_t)d->kernelLaunch.stream;
        e->u.api.func = e->u.api.datatype = PSM_PROF_NAME_NONE;
        break;
#endif
#if VERSION >= 6
    case ncclProfileCeColl:
        e->u.ce.seq = d->ceColl.seqNumber;
        e->u.ce.count = d->ceColl.count;
        e->u.ce.stream = (uint64_t)(uintptr_t)d->ceColl.stream;
        e->u.ce.root = d->ceColl.root;
        e->u.ce.func = FUNC(d->ceColl.func);
        e->u.ce.datatype = DATATYPE(d->ceColl.datatype);
        e->u.ce.intra = d->ceColl.intraBatchSync;
        e->u.ce.batches = d->ceColl.numBatches;
        TAG(ceColl);
        break;
    case ncclProfileCeSync:
        e->u.ce.complete = d->ceCollSync.isComplete;
        e->u.ce.ops = d->ceCollSync.nRanks;
        e->u.ce.func = e->u.ce.datatype = PSM_PROF_NAME_NONE;
        break;
    case ncclProfileCeBatch:
        e->u.ce.ops = d->ceCollBatch.numOps;
        e->u.ce.bytes = d->ceCollBatch.totalBytes;
        e->u.ce.intra = d->ceCollBatch.useIntraSync;
        e->u.ce.func = e->u.ce.datatype = PSM_PROF_NAME_NONE;
        break;
#endif
#if VERSION >= 7
    case ncclProfileKernelPhase:
        e->u.kernel_phase.gpu_begin_ns = d->kernelPhase.pTimer;
        e->u.kernel_phase.channel = d->kernelPhase.channelId;
        e->u.kernel_phase.phase = d->kernelPhase.phaseId;
        e->u.kernel_phase.name = prof_phase(&made, d->kernelPhase.phaseName);
        break;
#endif
    default:
        break;
    }
    *handle = prof_commit(&made);
    return ncclSuccess;
}

static ncclResult_t NAMED(record)(void *handle, ncclProfilerEventState_t state, TYPE(EventStateArgs) * args)
{
    /* NCCL wrote only the member of this state; others may not exist. */
    struct prof_args a = {0};
    switch (args ? (int)state : -1) {
        STATE_ARGS(ARGS_OF, ARG)
    default:
        break;
    }
    prof_record((uint64_t)(uintptr_t)handle, (int)state, args ? &a : NULL);
    return ncclSuccess;
}

#if VERSION <= 3
static ncclResult_t NAMED(init)(void **context, int *mask)
{
    return prof_comm_init(context, mask, &(struct prof_init){.abi = VERSION, .rank = -1, .nranks = -1, .nnodes = -1});
}
#elif VERSION == 4
static ncclResult_t NAMED(init)(void **context, int *mask, const char *name, uint64_t hash, int nodes, int ranks,
                                int rank, ncclDebugLogger_t logger)
{
    return prof_comm_init(context, mask, &(struct prof_init){VERSION, hash, name, nodes, ranks, rank, logger, false});
}
#else
static ncclResult_t NAMED(init)(void **context, uint64_t hash, int *mask, const char *name, int nodes, int ranks,
                                int rank, ncclDebugLogger_t logger)
{
    bool tags = VERSION >= 7 && has_tags(__builtin_return_address(0));
    return prof_comm_init(context, mask, &(struct prof_init){VERSION, hash, name, nodes, ranks, rank, logger, tags});
}
#endif

__attribute__((visibility("default"))) PSM_ABI_TABLE JOIN(ncclProfiler_v, VERSION, _t)
    NAMED(ncclProfiler) = {"PSM", NAMED(init), NAMED(start), stop, NAMED(record), prof_comm_finalize};

#undef STATE_ARGS
#undef ARGS_OF
#undef ARG
#undef TAG
#undef FUNC
#undef DATATYPE
#undef ALGO
#undef PROTO
#undef JOIN2
#undef JOIN
#undef NAMED
#undef TYPE
