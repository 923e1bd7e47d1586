/* Fault injection: which call a fault hits, and what it does. */
#define _GNU_SOURCE
#include "fault.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fault_parse.h"
#include "psm_messages.h"

/* The rules of the installed set that apply to one site, with the calls counted for each. */
struct psm_fault_hooks {
    size_t n;
    struct hook {
        const struct psm_rule *rule;
        int64_t value;
        _Atomic uint64_t calls;
    } hook[];
};

enum { STATE_OFF, STATE_ON, STATE_UNREAD };
_Atomic uint32_t psm_fault_state = STATE_UNREAD;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct psm_fault_set *) installed;
static bool (*resolver)(const char *site, const char *name, int64_t *value);

static void after_fork(void)
{
    pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    mutex = fresh; /* a thread that does not exist in the child may have held it */
}

__attribute__((constructor)) static void prepare(void)
{
    pthread_atfork(NULL, NULL, after_fork);
}

void psm_site_init(struct psm_site *site, const char *name, const char *description, uint32_t actions)
{
    site->name = name;
    site->description = description;
    site->actions = actions;
    atomic_init(&site->hooks, NULL);
}

void psm_fault_set_resolver(bool (*resolve)(const char *site, const char *name, int64_t *value))
{
    pthread_mutex_lock(&mutex);
    resolver = resolve;
    pthread_mutex_unlock(&mutex);
}

/* The faults of PSM_FAULTS, and behind them those of PSM_MUTATION: the mistake of `psmkit mutate`, which goes into the
 * processes of a test that sets PSM_FAULTS itself. NULL: there are none, or *wrong. */
static struct psm_fault_set *read_sets(struct psm_fault_error *error, bool *wrong)
{
    const char *names[] = {"PSM_FAULTS", "PSM_MUTATION"};
    struct psm_fault_set *sets[2] = {NULL, NULL};
    for (int i = 0; i < 2 && !*wrong; i++) {
        const char *text = getenv(names[i]);
        sets[i] = text ? psm_fault_parse(text, error) : NULL;
        *wrong = text && !sets[i];
    }
    if (!sets[1]) return sets[0];
    size_t faults = sets[0] ? sets[0]->n : 0;
    for (size_t i = 0; i < sets[1]->n; i++) sets[1]->rules[i].quiet = true;
    if (!faults) return sets[1];
    struct psm_fault_set *both = calloc(1, sizeof *both + (faults + sets[1]->n) * sizeof *both->rules);
    if (!both) return sets[0];
    both->n = faults + sets[1]->n;
    memcpy(both->rules, sets[0]->rules, faults * sizeof *both->rules);
    memcpy(both->rules + faults, sets[1]->rules, sets[1]->n * sizeof *both->rules);
    return both;
}

/* Leaves a mark that a mistake was made, for `psmkit mutate`. */
static void mark(const struct psm_site *site)
{
    const char *path = getenv("PSM_MUTATION_FILE");
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (fd < 0) return;
    char line[PSM_FAULT_NAME + 1];
    int n = snprintf(line, sizeof line, "%s\n", site->name);
    if (write(fd, line, (size_t)n) < 0) n = 0; /* the mistake is made all the same */
    close(fd);
}

void psm_fault_load(void)
{
    struct psm_fault_error error;
    bool wrong = false;
    pthread_mutex_lock(&mutex);
    if (atomic_load(&psm_fault_state) == STATE_UNREAD) {
        struct psm_fault_set *set = read_sets(&error, &wrong);
        if (set) atomic_store(&installed, set);
        atomic_store(&psm_fault_state, set && set->n ? STATE_ON : STATE_OFF);
    }
    pthread_mutex_unlock(&mutex);
    if (wrong) psm_msg_fault_text_wrong(error.position, error.text);
}

void psm_fault_each(void (*visit)(const char *site, bool prefix, void *context), void *context)
{
    const struct psm_fault_set *set = atomic_load_explicit(&installed, memory_order_acquire);
    for (size_t i = 0; set && i < set->n; i++) visit(set->rules[i].site, set->rules[i].prefix, context);
}

static bool concerns(const struct psm_rule *rule, const char *site)
{
    return rule->prefix ? strncmp(site, rule->site, strlen(rule->site)) == 0 : strcmp(site, rule->site) == 0;
}

/* A rule that names a site and an action that the site cannot perform is a mistake: log it. A rule with a star is not
 * expected to fit every site. */
static bool usable(const struct psm_site *site, const struct psm_rule *rule, int64_t *value)
{
    *value = rule->value;
    if (!(site->actions & PSM_FAULT_CAN(rule->action))) {
        if (!rule->prefix) psm_msg_fault_unusable(site->name, psm_fault_action_name(rule->action));
        return false;
    }
    if (rule->action == PSM_FAULT_ERROR && *rule->error && !(resolver && resolver(site->name, rule->error, value))) {
        psm_msg_fault_unusable_2(site->name, rule->error);
        return false;
    }
    return true;
}

static struct psm_fault_hooks *hooks_of(struct psm_site *site)
{
    struct psm_fault_set *set = atomic_load_explicit(&installed, memory_order_acquire);
    struct psm_fault_hooks *hooks = atomic_load_explicit(&site->hooks, memory_order_acquire);
    if (!set || hooks) return hooks;
    pthread_mutex_lock(&mutex);
    hooks = atomic_load(&site->hooks);
    if (!hooks) {
        struct psm_fault_hooks *fresh = calloc(1, sizeof *fresh + set->n * sizeof *fresh->hook);
        if (fresh) {
            for (size_t i = 0; i < set->n; i++) {
                struct hook *hook = &fresh->hook[fresh->n];
                if (concerns(&set->rules[i], site->name) && usable(site, &set->rules[i], &hook->value)) {
                    hook->rule = &set->rules[i];
                    fresh->n++;
                }
            }
            atomic_store_explicit(&site->hooks, fresh, memory_order_release);
        }
        hooks = fresh;
    }
    pthread_mutex_unlock(&mutex);
    return hooks;
}

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u; /* splitmix64 */
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Deterministic: the same seed, site, rank and call give the same result in every run. */
static bool chance(const struct psm_rule *rule, const char *site, int rank, uint64_t call)
{
    uint64_t x = mix(rule->seed);
    for (const char *s = site; *s; s++) x = mix(x ^ (unsigned char)*s);
    x = mix(mix(x ^ (uint64_t)(int64_t)rank) ^ call);
    return (uint32_t)((x >> 32) * 1000000000u >> 32) < rule->p_billionths;
}

static bool strikes(const struct psm_rule *rule, uint64_t call)
{
    if (rule->nth == 0) return true;
    if (rule->every == 0) return call == rule->nth;
    return call >= rule->nth && (call - rule->nth) % rule->every == 0;
}

int psm_fault_hit_slow(struct psm_site *site, const struct psm_fault_args *args, struct psm_fault *out)
{
    static const struct psm_fault_args nothing = {PSM_FAULT_UNKNOWN, PSM_FAULT_UNKNOWN, NULL, NULL, 0, 0};
    if (atomic_load_explicit(&psm_fault_state, memory_order_acquire) == STATE_UNREAD) psm_fault_load();
    if (atomic_load_explicit(&psm_fault_state, memory_order_acquire) != STATE_ON) return 0;
    struct psm_fault_hooks *hooks = hooks_of(site);
    if (!hooks || !hooks->n) return 0;
    if (!args) args = &nothing;
    int rank = args->rank >= 0 ? args->rank : psm_proc_self()->rank;
    bool struck = false, quiet = false;
    for (size_t i = 0; i < hooks->n; i++) {
        struct hook *hook = &hooks->hook[i];
        const struct psm_rule *rule = hook->rule;
        if (rule->rank >= 0 && rule->rank != rank) continue;
        if (rule->peer >= 0 && rule->peer != args->peer) continue;
        if (rule->comm >= 0 && (uint32_t)rule->comm + 1 != args->comm) continue;
        if (args->cannot & PSM_FAULT_CAN(rule->action)) continue;
        if (*rule->op && (!args->op || strcmp(rule->op, args->op) != 0)) continue;
        /* Every rule counts the call, even if an earlier rule hits: nth does not depend on other rules. */
        uint64_t call = atomic_fetch_add_explicit(&hook->calls, 1, memory_order_relaxed) + 1;
        if (struck || !strikes(rule, call)) continue;
        if (rule->has_p && !chance(rule, site->name, rank, call)) continue;
        *out = (struct psm_fault){rule->action, hook->value, call, rank, site, args->abort_flag};
        struck = true;
        quiet = rule->quiet;
    }
    if (struck && quiet)
        mark(site);
    else if (struck && rank >= 0)
        psm_msg_fault_fired(psm_fault_action_name(out->action), site->name, out->nth, rank);
    else if (struck)
        psm_msg_fault_fired_2(psm_fault_action_name(out->action), site->name, out->nth);
    return struck;
}

static bool aborted(const struct psm_fault *fault)
{
    return psm_aborted() || (fault->abort_flag && __atomic_load_n(fault->abort_flag, __ATOMIC_ACQUIRE));
}

/* Waits until the time is over or until an abort; UINT64_MAX: until an abort. Polls, because the flag may be in any
 * memory. */
static bool wait_for(const struct psm_fault *fault, uint64_t ns)
{
    uint64_t begun = psm_clock_ns();
    for (;;) {
        if (aborted(fault)) return true;
        uint64_t gone = psm_clock_ns() - begun;
        if (gone >= ns) return false;
        uint64_t left = ns - gone;
        struct timespec moment = {0, left < 10000000 ? (long)left : 10000000};
        nanosleep(&moment, NULL);
    }
}

int psm_fault_act_before(const struct psm_fault *fault)
{
    switch (fault->action) {
    case PSM_FAULT_HANG:
        wait_for(fault, UINT64_MAX);
        psm_msg_fault_aborted(fault->site->name);
        return 1;
    case PSM_FAULT_SLOW:
        wait_for(fault, (uint64_t)fault->value);
        return 0;
    case PSM_FAULT_KILL:
        psm_log_flush();
        raise((int)fault->value); /* in this thread, so that a debugger shows its stack */
        return 0;
    default:
        return 0;
    }
}

void psm_fault_act_after(const struct psm_fault *fault)
{
    if (fault->action == PSM_FAULT_LATE) wait_for(fault, (uint64_t)fault->value);
}
