/* The profiler's calls in any version, each watched and reported to the checker. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "libc.h"
#include "profiler_drive.h"

enum { PAGE = 4096, PAGES = 32 };

/* The current call of each thread; read by the watcher and by the fault handler. */
struct slot {
    _Atomic(const char *) call;
    _Atomic uint64_t since;
    char event[120];
};
static struct slot slots[MAX_THREADS];
static _Atomic int nslots;
static _Thread_local struct slot *mine;
/* Descriptors on pages that become inaccessible after the call. */
static _Thread_local char *pages;
static _Thread_local unsigned page;

static struct slot *slot(void)
{
    if (!mine) mine = &slots[atomic_fetch_add(&nslots, 1) % MAX_THREADS];
    return mine;
}

static void enter(const char *call, const struct event *e)
{
    struct slot *s = slot();
    if (e)
        event_text(e, s->event, sizeof s->event);
    else
        s->event[0] = 0;
    atomic_store(&s->since, now_ns());
    atomic_store(&s->call, call);
}

static void leave(void)
{
    atomic_store(&slot()->call, NULL);
}

static const char *of_event(const struct slot *s)
{
    static _Thread_local char text[140];
    snprintf(text, sizeof text, "%s%s", s->event[0] ? " of " : "", s->event);
    return text;
}

static void *watch(void *unused)
{
    (void)unused;
    for (;;) {
        usleep(20000);
        uint64_t now = now_ns();
        for (int i = 0; i < MAX_THREADS; i++) {
            const char *call = atomic_load(&slots[i].call);
            uint64_t since = atomic_load(&slots[i].since);
            if (call && since < now && now - since > d.timeout_ns)
                failed("blocked", "%s%s did not return within %.3g s", call, of_event(&slots[i]),
                       (double)d.timeout_ns * 1e-9);
        }
    }
    return NULL;
}

/* ---- memory that must not be accessed ---- */

static struct {
    char *parents, *contexts, *buffer;
    size_t size;
} closed;

static void close_memory(void)
{
    closed.size = (size_t)1 << 20;
    closed.parents = mmap(NULL, closed.size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    closed.contexts = mmap(NULL, closed.size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    closed.buffer = mmap(NULL, closed.size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (closed.parents == MAP_FAILED || closed.contexts == MAP_FAILED || closed.buffer == MAP_FAILED) abort();
}

void *foreign_parent(unsigned n)
{
    return closed.parents + (size_t)n % 4096 * 64;
}

void *foreign_context(void)
{
    return closed.contexts + 64;
}

void *user_buffer(void)
{
    return closed.buffer;
}

/* Pages of all threads, to recognise them in a fault. */
static _Atomic(char *) traps[MAX_THREADS];

static const char *place(const char *address)
{
    if (address >= closed.parents && address < closed.parents + closed.size)
        return ": it accessed the parent of an operation of another process (proxyOp.pid is not this process)";
    if (address >= closed.contexts && address < closed.contexts + closed.size)
        return ": it accessed the context of an operation of another process (proxyOp.pid is not this process)";
    if (address >= closed.buffer && address < closed.buffer + closed.size)
        return ": it accessed the user's buffer, which is on the GPU";
    for (int i = 0; i < MAX_THREADS; i++)
        if (traps[i] && address >= traps[i] && address < traps[i] + (size_t)PAGE * PAGES)
            return d.trap_strings ? ": it read a string of a descriptor after the call that it was valid for"
                                  : ": it accessed a descriptor, or arguments, after the call that they were valid for";
    return "";
}

/* What an invalid access did. A general protection fault has the address 0, whatever the pointer was. */
static const char *access_of(int number, const siginfo_t *info)
{
    static char text[80];
    if (number != SIGSEGV && number != SIGBUS) return "";
    bool page_fault = number == SIGBUS || info->si_code == SEGV_MAPERR || info->si_code == SEGV_ACCERR;
    const char *known = page_fault ? place(info->si_addr) : "";
    if (*known) return known;
    if (info->si_code == SI_USER || info->si_code == SI_TKILL || info->si_code == SI_QUEUE) return "";
    if (!page_fault) return ": it followed a pointer that holds no valid address";
    if (info->si_code == SEGV_MAPERR && (uintptr_t)info->si_addr < PAGE) return ": it followed a NULL pointer";
    snprintf(text, sizeof text, ": it followed a pointer to %p, where it may not %s", info->si_addr,
             info->si_code == SEGV_ACCERR ? "read or write" : "access memory");
    return text;
}

/* The instruction that faulted, as addr2line takes it: ", at libmine.so+0x11ac (on_start+0x1c)". */
static const char *at_instruction(const ucontext_t *context)
{
    static char text[300];
#if defined(__x86_64__)
    uintptr_t at = (uintptr_t)context->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    uintptr_t at = (uintptr_t)context->uc_mcontext.pc;
#else
    uintptr_t at = 0;
    (void)context;
#endif
    Dl_info found;
    if (!at || !dladdr((void *)at, &found) || !found.dli_fname) return "";
    const char *slash = strrchr(found.dli_fname, '/');
    int n = snprintf(text, sizeof text, ", at %.100s+0x%lx", slash ? slash + 1 : found.dli_fname,
                     (unsigned long)(at - (uintptr_t)found.dli_fbase));
    if (found.dli_sname)
        snprintf(text + n, sizeof text - (size_t)n, " (%.100s+0x%lx)", found.dli_sname,
                 (unsigned long)(at - (uintptr_t)found.dli_saddr));
    return text;
}

static void fault(int number, siginfo_t *info, void *context)
{
    /* The first of several threads reports, and ends the process. The others give it time; they may hold a lock that it
     * needs. A fault in this handler ends the process, too. */
    static _Atomic bool taken;
    static _Thread_local bool reports;
    if (reports || atomic_exchange(&taken, true)) {
        if (!reports) sleep(5);
        signal(number, SIG_DFL);
        return;
    }
    reports = true;
    const char *call = mine ? atomic_load(&mine->call) : NULL;
    const char *where = access_of(number, info), *at = number == SIGABRT ? "" : at_instruction(context);
    /* So far NCCL's strings are constants. */
    bool string = d.trap_strings && strstr(where, "string") != NULL;
    if (call)
        failed(string ? "weak" : "died", "SIG%s in %s%s%s%s", psm_signal_name(number), call, of_event(mine), where, at);
    failed("died", "SIG%s in a thread of the profiler, or outside of its calls%s%s", psm_signal_name(number), where,
           at);
}

void watch_start(void)
{
    close_memory();
    static char stack[1 << 16];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&alternate, NULL);
    struct sigaction action = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) sigaction(signals[i], &action, NULL);
    pthread_t thread;
    if (pthread_create(&thread, NULL, watch, NULL) == 0) pthread_detach(thread);
}

/* Room for a descriptor, its strings or arguments. */
struct room {
    union event_record *record;
    char (*words)[EVENT_WORD];
    void *page;
};
static _Thread_local union event_record plain_record;
static char (*lasting_words(const struct event *e))[EVENT_WORD];

static struct room take(const struct event *e)
{
    if (!d.trap && !d.trap_strings) return (struct room){&plain_record, lasting_words(e), NULL};
    if (!pages) {
        pages = mmap(NULL, (size_t)PAGE * PAGES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (pages == MAP_FAILED) abort();
        atomic_store(&traps[slot() - slots], pages);
    }
    char *at = pages + (size_t)(page++ % PAGES) * PAGE;
    mprotect(at, PAGE, PROT_READ | PROT_WRITE);
    /* A page holds one or the other. */
    if (d.trap_strings) return (struct room){&plain_record, (void *)at, at};
    return (struct room){(void *)at, lasting_words(e), at};
}

static void give(const struct room *r)
{
    if (r->page) mprotect(r->page, PAGE, PROT_NONE);
}

/* NCCL's strings are constants: unless the check is about them, they stay valid. */
static char (*lasting_words(const struct event *e)) [EVENT_WORD] {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static event_words known[64];
    static int n;
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < n && memcmp(known[i], e->words, sizeof e->words) != 0) i++;
    if (i == n && n < 63) memcpy(known[n++], e->words, sizeof e->words);
    pthread_mutex_unlock(&lock);
    return known[i];
}

/* ---- the table ---- */

bool table_find(int version)
{
    char symbol[32];
    snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", version);
    d.table = dlsym(d.library, symbol);
    return d.table != NULL;
}

const char *table_name(void)
{
    return ((const ncclProfiler_v1_t *)d.table)->name;
}

const char *table_empty(void)
{
    /* All versions have the same slots in the same order. */
    const ncclProfiler_v1_t *t = d.table;
    return !t->init               ? "init"
           : !t->startEvent       ? "startEvent"
           : !t->stopEvent        ? "stopEvent"
           : !t->recordEventState ? "recordEventState"
           : !t->finalize         ? "finalize"
                                  : NULL;
}

/* Reports the call to the checker, unless it is left out. */
#define TELL(call)                                                                                                     \
    do {                                                                                                               \
        if (!d.unchecked) call;                                                                                        \
    } while (0)
#define T(n) ((const ncclProfiler_v##n##_t *)d.table)
#define CASE(v, call)                                                                                                  \
    case v:                                                                                                            \
        call(v);                                                                                                       \
        break;
#define EACH(call)                                                                                                     \
    switch (d.version) {                                                                                               \
        PSM_ABI_PROFILER_VERSIONS(CASE, call)                                                                          \
    default:                                                                                                           \
        abort();                                                                                                       \
    }

bool p_init(struct comm *c)
{
    ncclResult_t result;
    const char *name = c->unnamed ? NULL : c->name;
    enter("init", NULL);
    switch (d.version) {
#define OLD(v)   result = T(v)->init(&c->context, &d.mask)
#define NAMED(v) result = T(v)->init(&c->context, &d.mask, name, c->hash, c->nodes, c->ranks, c->rank, logger)
#define NEW(v)   result = T(v)->init(&c->context, c->hash, &d.mask, name, c->nodes, c->ranks, c->rank, logger)
        PSM_ABI_PROFILER_init_V1(CASE, OLD) PSM_ABI_PROFILER_init_V4(CASE, NAMED)
            PSM_ABI_PROFILER_init_V5(CASE, NEW) default : abort();
    }
    leave();
    /* NCCL's adapters from v5 on clear the bits of newer kinds; that for v5 came before any other release of v5. */
    if (d.version == 5 || (d.adapted && d.version > 5))
        d.mask &= (int)(event_known(d.version) | ~event_known(PROFILER_VERSIONS));
    /* The phases of a kernel are those of its channels. */
    if (d.version >= 7 && d.mask & ncclProfileKernelPhase) d.mask |= ncclProfileKernelCh;
    TELL(contract_init(d.contract, result, c->context, &d.mask, c->hash, c->rank));
    return result == ncclSuccess;
}

void p_finalize(struct comm *c)
{
    /* From 2.28, which v5 came with, on: only if there is a context. */
    if ((d.version >= 5 || d.adapted) && !c->context) return;
    if (d.leave_open) return;
    ncclResult_t result = ncclSuccess;
    TELL(contract_finalizing(d.contract, c->context));
    enter("finalize", NULL);
#define CALL(n) result = T(n)->finalize(c->context)
    EACH(CALL)
#undef CALL
    leave();
    TELL(contract_result(d.contract, "finalize", result));
    c->context = NULL;
}

void p_start(void *context, void **handle, const struct event *e)
{
    ncclResult_t result = ncclSuccess;
    union event_record copy;
    struct room room = take(e);
    event_write(d.version, e, room.record, room.words);
    memcpy(&copy, room.record, sizeof copy);
    void *before = *handle;
    struct contract_start s = {.kind = 0};
    TELL(s = contract_starting(d.contract, context, e));
    enter("startEvent", e);
#define CALL(n) result = T(n)->startEvent(context, handle, &room.record->v##n)
    EACH(CALL)
#undef CALL
    leave();
    bool changed = memcmp(&copy, room.record, event_record_size(d.version)) != 0;
    give(&room);
    void *given = *handle;
    if (before && given == before && result == ncclSuccess)
        failed("contract",
               "startEvent of %s returned success but did not write *eHandle: NCCL then uses the handle of an older "
               "event, or garbage",
               event_kind_name(event_kind(e->type)));
    TELL(contract_started(d.contract, &s, e, result, before, given, changed));
    d.starts++;
    if (!given) d.nulls++;
}

void p_stop(void *handle)
{
    ncclResult_t result = ncclSuccess;
    TELL(contract_stopping(d.contract, handle));
    enter(handle ? "stopEvent" : "stopEvent with NULL", NULL);
#define CALL(n) result = T(n)->stopEvent(handle)
    EACH(CALL)
#undef CALL
    leave();
    if (handle) TELL(contract_result(d.contract, "stopEvent", result));
}

void p_state(void *handle, int state, const struct event_args *args)
{
    ncclResult_t result = ncclSuccess;
    struct event_args none = {.none = true};
    struct event nothing = {.type = 0};
    struct room room = take(&nothing);
    union event_args_record *record = (void *)room.record;
    if (args) event_args_write(d.version, state, args, record);
    TELL(contract_stating(d.contract, handle, state, args ? args : &none));
    enter(handle ? args ? "recordEventState" : "recordEventState with eStateArgs NULL" : "recordEventState with NULL",
          NULL);
#define CALL(n)                                                                                                        \
    result = T(n)->recordEventState(handle, (ncclProfilerEventState_v##n##_t)state, args ? &record->v##n : NULL)
    EACH(CALL)
#undef CALL
    leave();
    give(&room);
    if (handle) TELL(contract_result(d.contract, "recordEventState", result));
}

/* ---- time ---- */

/* The timed kinds are below whatever the profiler enables. */
struct timed {
    struct plan plan;
    struct op ops[64];
    int n;
    void *op; /* sends */
};

static bool timed_op(struct comm *c, struct timed *t)
{
    memset(t, 0, sizeof *t);
    plan_begin(&t->plan, c);
    plan_coll(&t->plan, "AllReduce", 1 << 20, 1);
    int i = 0, n = t->n = plan_launch(&t->plan, t->ops, 64);
    while (i < n && !(t->ops[i].is_send && !t->ops[i].kernel)) i++;
    struct event e = {.type = ncclProfileProxyOp,
                      .rank = c->rank,
                      .pid = getpid(),
                      .peer = 1,
                      .steps = TIMED,
                      .chunk = 1 << 19,
                      .is_send = true,
                      .parent = i < n ? t->ops[i].parent : NULL};
    if (asked((uint32_t)d.mask, event_kind(e.type))) p_start(c->context, &t->op, &e);
    return t->op && asked((uint32_t)d.mask, event_kind(ncclProfileProxyStep));
}

static void timed_end(struct timed *t)
{
    if (t->op) p_stop(t->op);
    /* A collective is done, and its place in a pool free, when all of its parts are. */
    ops_run(t->ops, t->n);
    plan_end(&t->plan);
}

/* In tenths of ns; 0: there are no steps. */
uint64_t p_time_pairs(struct comm *c)
{
    static struct timed t;
    uint64_t best = UINT64_MAX;
    for (int run = 0; run < 9; run++) {
        if (!timed_op(c, &t)) best = 0;
        struct event e = {.type = ncclProfileProxyStep, .parent = t.op, .rank = c->rank};
        union event_record record;
        void *handle;
        event_write(d.version, &e, &record, lasting_words(&e));
        enter("startEvent", &e);
        uint64_t begun = now_ns();
#define CALL(n)                                                                                                        \
    for (int i = 0; best && i < TIMED; i++) {                                                                          \
        handle = NULL;                                                                                                 \
        record.v##n.proxyStep.step = i;                                                                                \
        T(n)->startEvent(c->context, &handle, &record.v##n);                                                           \
        if (handle) T(n)->stopEvent(handle);                                                                           \
    }
        EACH(CALL)
#undef CALL
        uint64_t took = now_ns() - begun;
        leave();
        timed_end(&t);
        if (took < best) best = took;
        if (took > 30000000 && run > 0) break; /* slow, whatever the others are */
    }
    return best * 10 / TIMED;
}

uint64_t p_time_states(struct comm *c)
{
    static struct timed t;
    uint64_t best = UINT64_MAX;
    void *step = NULL;
    if (timed_op(c, &t)) {
        struct event e = {.type = ncclProfileProxyStep, .parent = t.op, .rank = c->rank};
        p_start(c->context, &step, &e);
    }
    /* A state that may be repeated. */
    void *handle = d.version <= 3 ? t.op : step;
    const int state = d.version <= 3 ? ncclProfilerProxyOpSendPosted : ncclProfilerProxyStepSendPeerWait_v4;
    union event_args_record record = {0};
    for (int run = 0; handle && run < 9; run++) {
        enter("recordEventState", NULL);
        uint64_t begun = now_ns();
#define CALL(n)                                                                                                        \
    for (int i = 0; i < TIMED; i++) T(n)->recordEventState(handle, (ncclProfilerEventState_v##n##_t)state, &record.v##n)
        EACH(CALL)
#undef CALL
        uint64_t took = now_ns() - begun;
        leave();
        if (took < best) best = took;
    }
    if (step) p_stop(step);
    timed_end(&t);
    return handle ? best * 10 / TIMED : 0;
}
