/* Communicators: each takes the rules of the file as it is at init; a thread watches the file for changes.
 *
 * NCCL's ranks must decide alike, and a tuner cannot ask another rank. So a change reaches running communicators only
 * with PSM_TUNER_RELOAD=live, best at a call that the file names (from_call). */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tuner.h"
#include "tuner_say.h"

struct stamp {
    uint64_t device, inode, size, changed, modified;
    bool there;
};

static struct {
    pthread_mutex_t lock; /* protects everything here; readers do not take it */
    pthread_cond_t wake;
    struct tuner_context *contexts;
    char path[4096];
    bool live, one_shape;
    uint64_t pause_ms;
    pthread_t thread;
    bool runs, stop;
    pid_t pid; /* pid that owns the thread: fork does not copy it */
    struct stamp seen, complained;
} all = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Held by init and finalize throughout, not by the thread: while one joins the thread, nobody starts another. */
static pthread_mutex_t comings = PTHREAD_MUTEX_INITIALIZER;

/* ---- settings ---- */

static const char *setting(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static bool wrong(ncclDebugLogger_t logger, const char *name, const char *value, const char *meant)
{
    TUNER_SAY(logger, PSM_TUNER_SETTING, psm_tuner_setting, name, value, meant);
    return false;
}

static bool settings(ncclDebugLogger_t logger)
{
    const char *path = setting("PSM_TUNER_CONFIG"), *reload = setting("PSM_TUNER_RELOAD");
    const char *pause = setting("PSM_TUNER_RELOAD_MS"), *one = setting("PSM_TUNER_ONE_SHAPE");
    if (!path) path = setting("NCCL_TUNER_CONFIG_FILE"); /* the name in NVIDIA's example */
    if (path && strlen(path) >= sizeof all.path)
        return wrong(logger, "PSM_TUNER_CONFIG", path, "expected a path of less than 4096 bytes");
    if (reload && strcmp(reload, "live") != 0 && strcmp(reload, "new") != 0)
        return wrong(logger, "PSM_TUNER_RELOAD", reload, "expected new or live");
    uint64_t ms = 1000;
    if (pause && (!tuner_number(pause, &ms) || ms < 1 || ms > 3600000))
        return wrong(logger, "PSM_TUNER_RELOAD_MS", pause, "expected milliseconds from 1 to 3600000");
    if (one && strcmp(one, "0") != 0 && strcmp(one, "1") != 0)
        return wrong(logger, "PSM_TUNER_ONE_SHAPE", one, "expected 0 or 1");
    strcpy(all.path, path ? path : "");
    all.live = reload && strcmp(reload, "live") == 0;
    all.one_shape = one && *one == '1';
    all.pause_ms = ms;
    return true;
}

/* ---- the file ---- */

static struct stamp look(void)
{
    struct stat st;
    if (stat(all.path, &st) != 0) return (struct stamp){.there = false};
    return (struct stamp){(uint64_t)st.st_dev,
                          (uint64_t)st.st_ino,
                          (uint64_t)st.st_size,
                          (uint64_t)st.st_ctim.tv_sec * 1000000000u + (uint64_t)st.st_ctim.tv_nsec,
                          (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec,
                          true};
}

static bool same(const struct stamp *a, const struct stamp *b)
{
    return a->there == b->there && a->device == b->device && a->inode == b->inode && a->size == b->size &&
           a->changed == b->changed && a->modified == b->modified;
}

/* One warning per version of the file. */
static bool read_file(ncclDebugLogger_t logger, const struct stamp *stamp, const char *instead,
                      struct tuner_rules *rules)
{
    struct tuner_error error;
    *rules = (struct tuner_rules){0};
    if (!*all.path) return true;
    if (tuner_rules_read(all.path, rules, &error)) return true;
    if (!same(stamp, &all.complained) || !stamp->there) {
        all.complained = *stamp;
        TUNER_SAY(logger, PSM_TUNER_FILE, psm_tuner_file, all.path, error.line, error.text, instead);
    }
    return false;
}

/* ---- changes ---- */

static void retire(struct tuner_context *c, struct tuner_table *table)
{
    if (!table) return;
    table->next = c->retired;
    c->retired = table;
}

/* New readers see the current tables: what was replaced before is unused when there is no reader. */
static void sweep(struct tuner_context *c)
{
    if (atomic_load(&c->readers) != 0) return;
    while (c->retired) {
        struct tuner_table *next = c->retired->next;
        tuner_table_free(c->retired);
        c->retired = next;
    }
}

static void settle(struct tuner_context *c)
{
    struct tuner_table *coming = atomic_load(&c->coming);
    if (!coming || atomic_load(&c->calls) <= coming->from_call) return;
    retire(c, atomic_exchange(&c->current, coming));
    atomic_store(&c->coming, NULL);
}

static void say_unmet(const struct tuner_context *c, const struct tuner_rules *rules)
{
    uint32_t n = 0, first = 0;
    const char *what = NULL;
    for (uint32_t i = 0; i < rules->n; i++) {
        const char *unmet = tuner_unmet(&rules->rule[i], &c->shape, c->version);
        if (unmet && n++ == 0) {
            what = unmet;
            first = rules->rule[i].line;
        }
    }
    if (!n) return;
    bool shape = c->version == 1;
    TUNER_SAY(c->logger, PSM_TUNER_UNMET, psm_tuner_unmet, n, rules->n, all.path, c->version, first, what,
              shape ? "PSM_TUNER_ONE_SHAPE=1 gives it ranks and nodes, if all communicators of the job have the same"
                    : "remove the condition, or use a release with a later table");
}

static void renew(struct tuner_context *c, const struct tuner_rules *rules)
{
    struct tuner_table *table = tuner_table_make(rules, &c->shape);
    if (!table) return;
    say_unmet(c, rules);
    settle(c);
    uint64_t calls = atomic_load(&c->calls);
    if (rules->from_call && calls > rules->from_call) {
        TUNER_SAY(c->logger, PSM_TUNER_LATE, psm_tuner_late, all.path, rules->from_call, calls);
        tuner_table_free(table);
        return;
    }
    if (rules->from_call)
        retire(c, atomic_exchange(&c->coming, table));
    else {
        retire(c, atomic_exchange(&c->current, table));
        retire(c, atomic_exchange(&c->coming, NULL));
    }
    TUNER_SAY(c->logger, PSM_TUNER_RELOADED, psm_tuner_reloaded, rules->n, all.path, c->comm_id,
              rules->from_call ? rules->from_call : calls);
}

static void *watch(void *unused)
{
    (void)unused;
    struct stamp last;
    pthread_mutex_lock(&all.lock);
    last = all.seen;
    while (!all.stop) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        uint64_t ns = (uint64_t)until.tv_nsec + all.pause_ms % 1000 * 1000000;
        until.tv_sec += (time_t)(all.pause_ms / 1000 + ns / 1000000000);
        until.tv_nsec = (long)(ns % 1000000000);
        pthread_cond_timedwait(&all.wake, &all.lock, &until);
        if (all.stop) break;
        struct stamp now = look();
        for (struct tuner_context *c = all.contexts; c; c = c->next) settle(c), sweep(c);
        /* Twice the same: nobody is writing it. */
        bool still = same(&now, &last);
        last = now;
        if (!still || same(&now, &all.seen) || !now.there || !all.contexts) continue;
        all.seen = now;
        struct tuner_rules rules;
        if (!read_file(all.contexts->logger, &now, "the previous rules stay in use", &rules)) continue;
        for (struct tuner_context *c = all.contexts; c; c = c->next) renew(c, &rules);
        tuner_rules_free(&rules);
    }
    pthread_mutex_unlock(&all.lock);
    return NULL;
}

static void start_watching(ncclDebugLogger_t logger)
{
    if (all.runs || !all.live || !*all.path) return;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    /* Created for each thread: nobody waits on the old one. */
    pthread_cond_init(&all.wake, &attributes);
    pthread_condattr_destroy(&attributes);
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before); /* signals belong to the application's threads */
    all.stop = false;
    int error = pthread_create(&all.thread, NULL, watch, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    all.runs = error == 0;
    all.pid = getpid();
    if (error) TUNER_SAY(logger, PSM_TUNER_NO_THREAD, psm_tuner_no_thread, strerror(error), all.path);
}

/* ---- communicators ---- */

static struct tuner_shape shape_of(const struct tuner_context *c, const ncclNvlDomainInfo_v5_t *domains)
{
    /* v1 calls without a context: with several communicators it is unknown for which one, and ranks would differ. */
    if (c->version == 1 && !all.one_shape) return (struct tuner_shape){TUNER_UNKNOWN, TUNER_UNKNOWN, TUNER_UNKNOWN};
    return (struct tuner_shape){c->ranks, c->nodes, domains ? domains->nNvlDomains : TUNER_UNKNOWN};
}

void tuner_other_shape(const struct tuner_context *c, size_t ranks, size_t nodes)
{
    pthread_mutex_lock(&all.lock);
    if (all.one_shape && (c->ranks != (int64_t)ranks || c->nodes != (int64_t)nodes))
        TUNER_SAY(c->logger, PSM_TUNER_SHAPES, psm_tuner_shapes, (int64_t)ranks, (int64_t)nodes, c->ranks, c->nodes);
    pthread_mutex_unlock(&all.lock);
}

static ncclResult_t begin(struct tuner_context *c, const ncclNvlDomainInfo_v5_t *domains,
                          ncclTunerConstants_v5_t *constants)
{
    if (!all.contexts && !settings(c->logger)) return ncclInvalidUsage;
    c->shape = shape_of(c, domains);
    struct stamp now = look();
    struct tuner_rules rules;
    if (!all.contexts) all.seen = now;
    read_file(c->logger, &now, "no rules are in use", &rules);
    struct tuner_table *table = tuner_table_make(&rules, &c->shape);
    for (uint32_t i = 0; table && constants && i < rules.nconstants; i++)
        memcpy((char *)constants + rules.constant[i].at * sizeof(double), &rules.constant[i].value, sizeof(double));
    uint32_t n = rules.n, nconstants = constants ? rules.nconstants : 0;
    if (table) say_unmet(c, &rules);
    tuner_rules_free(&rules);
    if (!table) return ncclSystemError;
    table->from_call = 0; /* a new communicator has no previous rules */
    atomic_store(&c->current, table);
    c->next = all.contexts;
    all.contexts = c;
    TUNER_SAY(c->logger, PSM_TUNER_USING, psm_tuner_using, n, nconstants, *all.path ? all.path : "no file", c->comm_id,
              c->ranks, c->nodes);
    start_watching(c->logger);
    return ncclSuccess;
}

ncclResult_t tuner_init(int version, uint64_t comm_id, size_t ranks, size_t nodes, ncclDebugLogger_t logger,
                        const ncclNvlDomainInfo_v5_t *domains, ncclTunerConstants_v5_t *constants,
                        struct tuner_context **context)
{
    struct tuner_context *c = calloc(1, sizeof *c);
    if (!c) return ncclSystemError;
    c->magic = TUNER_CONTEXT;
    c->version = version;
    c->logger = logger;
    c->comm_id = comm_id;
    c->ranks = (int64_t)ranks;
    c->nodes = (int64_t)nodes;
    c->rows = tuner_record();
    pthread_mutex_lock(&comings);
    pthread_mutex_lock(&all.lock);
    ncclResult_t result = begin(c, domains, constants);
    pthread_mutex_unlock(&all.lock);
    pthread_mutex_unlock(&comings);
    if (result != ncclSuccess) {
        free(c);
        return result;
    }
    *context = c;
    return ncclSuccess;
}

void tuner_finalize(struct tuner_context *c)
{
    pthread_mutex_lock(&comings);
    pthread_mutex_lock(&all.lock);
    struct tuner_context **at = &all.contexts;
    while (*at && *at != c) at = &(*at)->next;
    if (*at) *at = c->next;
    bool join = !all.contexts && all.runs;
    if (join) {
        all.stop = true;
        all.runs = false;
        pthread_cond_signal(&all.wake);
    }
    pthread_t thread = all.thread;
    pthread_mutex_unlock(&all.lock);
    if (join && all.pid == getpid()) pthread_join(thread, NULL);
    pthread_mutex_unlock(&comings);
    c->magic = 0;
    retire(c, atomic_load(&c->current));
    retire(c, atomic_load(&c->coming));
    sweep(c);
    free(c);
}
