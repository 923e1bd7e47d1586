/* The tables that NCCL gets: each call is reported to the checker, and passed on with the same arguments. */
#include <stdlib.h>
#include <string.h>

#include "check.h"

/* Around a call of startEvent. */
struct starting {
    struct contract *c;
    struct contract_start start;
    struct event e;
    union event_record copy;
    void *before;
    uint64_t parent, group;
};

static void start_before(struct starting *s, int version, void *context, void *const *handle, const void *descriptor)
{
    s->c = check_contract(version);
    event_read(version, descriptor, &s->e);
    memcpy(&s->copy, descriptor, event_record_size(version));
    s->before = handle ? *handle : NULL;
    if (check_streams()) {
        s->parent = contract_id(s->c, s->e.parent);
        s->group = contract_id(s->c, s->e.group);
    }
    s->start = contract_starting(s->c, context, &s->e);
}

static ncclResult_t start_after(struct starting *s, int version, const void *context, void *const *handle,
                                const void *descriptor, ncclResult_t result)
{
    bool changed = memcmp(&s->copy, descriptor, event_record_size(version)) != 0;
    uint64_t id = contract_started(s->c, &s->start, &s->e, result, s->before, *handle, changed);
    if (check_streams()) check_stream_start(id, context, &s->e, s->parent, s->group);
    return result;
}

static struct contract *state_before(int version, void *handle, int state, const void *record)
{
    struct contract *c = check_contract(version);
    struct event_args args;
    event_args_read(version, state, record, &args);
    if (check_streams()) check_stream_state(contract_id(c, handle), state, &args);
    contract_stating(c, handle, state, &args);
    return c;
}

static struct contract *stop_before(int version, void *handle)
{
    struct contract *c = check_contract(version);
    if (check_streams()) check_stream_stop(contract_id(c, handle));
    contract_stopping(c, handle);
    return c;
}

static ncclResult_t after(struct contract *c, const char *call, ncclResult_t result)
{
    contract_result(c, call, result);
    return result;
}

static struct contract *end_before(int version, void *context)
{
    struct contract *c = check_contract(version);
    if (check_streams()) check_stream_finalize(context);
    contract_finalizing(c, context);
    return c;
}

static ncclResult_t end_after(struct contract *c, int version, ncclResult_t result)
{
    contract_result(c, "finalize", result);
    check_say_end(version, c);
    return result;
}

/* Whether init may continue. */
static bool init_before(int version, ncclDebugLogger_t logger)
{
    if (logger) check_logger(logger);
    if (check_trouble()) {
        check_say_trouble(check_trouble());
        return false;
    }
    if (!check_contract(version)) {
        check_say_trouble("no memory for its events");
        return false;
    }
    check_say_begin(version, check_name(version));
    return true;
}

static ncclResult_t init_after(int version, ncclResult_t result, void *context, const int *mask,
                               const struct stream_line *line)
{
    contract_init(check_contract(version), result, context, mask, line->hash, line->rank);
    if (result == ncclSuccess && check_streams()) check_stream_init(version, context, line);
    return result;
}

static struct stream_line comm_line(const char *name, uint64_t hash, int nodes, int ranks, int rank)
{
    struct stream_line line = {.what = STREAM_INIT, .hash = hash, .nodes = nodes, .ranks = ranks, .rank = rank};
    if (name) strncpy(line.name, name, sizeof line.name - 1);
    return line;
}

static ncclResult_t own_init(int version, void **context, int *mask)
{
    *context = check_own();
    *mask = (int)event_known(version);
    return ncclSuccess;
}

static ncclResult_t own_start(void **handle)
{
    *handle = check_own();
    return ncclSuccess;
}

#define CALLS(v)                                                                                                       \
    static const ncclProfiler_v##v##_t *wrapped_v##v(void)                                                             \
    {                                                                                                                  \
        return check_wrapped(v);                                                                                       \
    }                                                                                                                  \
    static ncclResult_t start_v##v(void *context, void **handle, ncclProfilerEventDescr_v##v##_t *descriptor)          \
    {                                                                                                                  \
        struct starting s;                                                                                             \
        start_before(&s, v, context, handle, descriptor);                                                              \
        ncclResult_t result =                                                                                          \
            wrapped_v##v() ? wrapped_v##v()->startEvent(context, handle, descriptor) : own_start(handle);              \
        return start_after(&s, v, context, handle, descriptor, result);                                                \
    }                                                                                                                  \
    static ncclResult_t stop_v##v(void *handle)                                                                        \
    {                                                                                                                  \
        struct contract *c = stop_before(v, handle);                                                                   \
        return after(c, "stopEvent", wrapped_v##v() ? wrapped_v##v()->stopEvent(handle) : ncclSuccess);                \
    }                                                                                                                  \
    static ncclResult_t state_v##v(void *handle, ncclProfilerEventState_v##v##_t state,                                \
                                   ncclProfilerEventStateArgs_v##v##_t *args)                                          \
    {                                                                                                                  \
        struct contract *c = state_before(v, handle, (int)state, args);                                                \
        return after(c, "recordEventState",                                                                            \
                     wrapped_v##v() ? wrapped_v##v()->recordEventState(handle, state, args) : ncclSuccess);            \
    }                                                                                                                  \
    static ncclResult_t end_v##v(void *context)                                                                        \
    {                                                                                                                  \
        struct contract *c = end_before(v, context);                                                                   \
        return end_after(c, v, wrapped_v##v() ? wrapped_v##v()->finalize(context) : ncclSuccess);                      \
    }

PSM_ABI_PROFILER_VERSIONS(CALLS)

#define INIT_OLD(v)                                                                                                    \
    static ncclResult_t init_v##v(void **context, int *mask)                                                           \
    {                                                                                                                  \
        if (!init_before(v, NULL)) return ncclInvalidUsage;                                                            \
        ncclResult_t result = wrapped_v##v() ? wrapped_v##v()->init(context, mask) : own_init(v, context, mask);       \
        struct stream_line line = comm_line(NULL, 0, 0, 0, 0);                                                         \
        return init_after(v, result, *context, mask, &line);                                                           \
    }
PSM_ABI_PROFILER_init_V1(INIT_OLD)

/* The order of the arguments differs. */
#define INIT(v, hash, ...)                                                                                             \
    {                                                                                                                  \
        if (!init_before(v, logger)) return ncclInvalidUsage;                                                          \
        ncclResult_t result = wrapped_v##v() ? wrapped_v##v()->init(__VA_ARGS__) : own_init(v, context, mask);         \
        struct stream_line line = comm_line(name, hash, nodes, ranks, rank);                                           \
        return init_after(v, result, *context, mask, &line);                                                           \
    }
#define INIT_NAMED(v)                                                                                                  \
    static ncclResult_t init_v##v(void **context, int *mask, const char *name, uint64_t hash, int nodes, int ranks,    \
                                  int rank, ncclDebugLogger_t logger)                                                  \
        INIT(v, hash, context, mask, name, hash, nodes, ranks, rank, logger)
#define INIT_NEW(v)                                                                                                    \
    static ncclResult_t init_v##v(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks,      \
                                  int rank, ncclDebugLogger_t logger)                                                  \
        INIT(v, id, context, id, mask, name, nodes, ranks, rank, logger)
    PSM_ABI_PROFILER_init_V4(INIT_NAMED) PSM_ABI_PROFILER_init_V5(INIT_NEW)

/* exports.c returns it. */
#define TABLE(v)                                                                                                       \
    extern const ncclProfiler_v##v##_t check_table_v##v;                                                               \
    const ncclProfiler_v##v##_t check_table_v##v = {.name = "PSM check",                                               \
                                                    .init = init_v##v,                                                 \
                                                    .startEvent = start_v##v,                                          \
                                                    .stopEvent = stop_v##v,                                            \
                                                    .recordEventState = state_v##v,                                    \
                                                    .finalize = end_v##v};
        PSM_ABI_PROFILER_VERSIONS(TABLE)
