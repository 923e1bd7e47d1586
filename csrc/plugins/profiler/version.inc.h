/* The table of one version: VERSION is its number. The versions differ in numbers instead of names (v1), in the
 * communicator's hash with each operation (up to v3), the application's tags (from v7 on), and in their kinds and
 * members, which abi.json describes. */
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

/* What the plugin keeps of a descriptor: `keeps` of a kind in abi.json, and what a line there cannot say. */
#define KEPT                     JOIN(PSM_ABI_PROFILER_KEPT_V, VERSION, )
#define KEEP_NUMBER(at, value)   at = value
#define KEEP_POINTER(at, value)  at = (uint64_t)(uintptr_t)(value)
#define KEEP_WORD(at, value)     at = prof_word(&made, (value))
#define KEEP_FUNC(at, value)     at = FUNC(value)
#define KEEP_DATATYPE(at, value) at = DATATYPE(value)
#define KEEP_ALGO(at, value)     at = ALGO(value)
#define KEEP_PROTO(at, value)    at = PROTO(value)
#define KEEP_NONE(at)            at = PSM_PROF_NAME_NONE
#define KEEP_FLAG(flag, value)                                                                                         \
    if (value) set_flag(event, flag)
#define KEEP_TAG(at, value)                                                                                            \
    if (made.comm->tags) at = value
#define KEPT_OF(kind, moves)                                                                                           \
    case kind:                                                                                                         \
        moves break;

static ncclResult_t NAMED(start)(void *context, void **handle, TYPE(EventDescr) * d)
{
    struct prof_new made;
    if (!handle) return ncclSuccess;
    *handle = NULL;
    const uint64_t type = d ? d->type : 0;
    if (!d || !prof_begin(&made, context, VERSION, type, (uint64_t)(uintptr_t)d->parentObj,
                          type == ncclProfileProxyOp ? d->proxyOp.pid : 0))
        return ncclSuccess;
    struct psm_prof_event *event = made.event;
    switch (type) {
        KEPT(KEPT_OF)
    default:
        break;
    }
#if VERSION <= 3
    if (type == ncclProfileColl) identify(made.comm, d->coll.commHash, d->coll.name, d->rank);
    if (type == ncclProfileP2p) identify(made.comm, d->p2p.commHash, d->p2p.name, d->rank);
#endif
#if VERSION >= 3
    if (type == ncclProfileNetPlugin) prof_net_data(event, d->netPlugin.id, d->netPlugin.data);
#endif
#if VERSION >= 7
    if (type == ncclProfileKernelPhase) event->u.kernel_phase.name = prof_phase(&made, d->kernelPhase.phaseName);
#endif
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
#undef KEPT
#undef KEPT_OF
#undef KEEP_NUMBER
#undef KEEP_POINTER
#undef KEEP_WORD
#undef KEEP_FUNC
#undef KEEP_DATATYPE
#undef KEEP_ALGO
#undef KEEP_PROTO
#undef KEEP_NONE
#undef KEEP_FLAG
#undef KEEP_TAG
#undef FUNC
#undef DATATYPE
#undef ALGO
#undef PROTO
#undef JOIN2
#undef JOIN
#undef NAMED
#undef TYPE
