/* The return addresses of the calling thread, and a cache of stacks that were walked before.
 *
 * The unwinder needs microseconds, which is more than most CUDA calls. But a program makes the same calls from the same
 * places, so each thread caches its stacks: by the address of the calling frame, with every word of the stack that the
 * unwinder's path depended on. While all of these words are the same, the path is the same:
 *
 * - Each return address is just below the frame that it returns to.
 * - The end of that frame follows from its code and its stack pointer, or from a register that its callees preserve:
 *   the frame pointer, or that of a frame which aligns itself. If so, every word counts in which the register may have
 *   been saved, down to one that the unwinder must have read.
 *
 * Without these words a function that calls alloca() could have another caller at an equal stack pointer, with the old
 * return addresses still in the memory that it allocated. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unwind.h>

#include "san_internal.h"

/* As in glibc's backtrace(): libgcc_s is loaded with its first user, not with every program. */
static typeof(_Unwind_Backtrace) *unwind_all;
static typeof(_Unwind_GetIP) *unwind_ip;
static typeof(_Unwind_GetCFA) *unwind_cfa;
static typeof(_Unwind_GetGR) *unwind_register;

#if defined(__x86_64__)
/* DWARF's numbers of callee-saved registers. */
static const int kept[] = {6 /* rbp */, 3 /* rbx */, 12, 13, 14, 15};
enum { KEPT = sizeof kept / sizeof *kept, FRAME_POINTER = 0 /* in kept */ };
#else
enum { KEPT = 1 };
#endif

struct way {
    int n;
    uintptr_t above; /* frames below it are omitted */
    uintptr_t pc[SAN_WALK];
    uintptr_t sp[SAN_WALK]; /* after the return address, where the frame starts */
    uintptr_t reg[SAN_WALK][KEPT];
};

static _Unwind_Reason_Code step(struct _Unwind_Context *context, void *argument)
{
    struct way *way = argument;
    uintptr_t pc = unwind_ip(context), sp = unwind_cfa(context);
    if (!way->n && sp <= way->above) return _URC_NO_REASON; /* a signal frame may be followed by a lower stack */
    if (way->n == SAN_WALK) return _URC_END_OF_STACK;
    if (way->n && way->pc[way->n - 1] == pc && way->sp[way->n - 1] == sp) return _URC_END_OF_STACK; /* no progress */
    way->pc[way->n] = pc;
    way->sp[way->n] = sp;
#if defined(__x86_64__)
    for (int i = 0; i < KEPT; i++) way->reg[way->n][i] = unwind_register(context, kept[i]);
#endif
    way->n++;
    return _URC_NO_REASON;
}

static void walk(struct way *way, uintptr_t above)
{
    way->n = 0;
    way->above = above;
    if (unwind_all) {
        unwind_all(step, way);
    } else {
        void *pc[SAN_WALK];
        way->n = backtrace(pc, SAN_WALK);
        for (int i = 0; i < way->n; i++) way->pc[i] = (uintptr_t)pc[i];
    }
    if (way->n > 1 && !way->pc[way->n - 1]) way->n--; /* beyond the first function of the thread */
}

__attribute__((noinline)) int san_walk(uintptr_t pc[static SAN_WALK])
{
    struct way way;
    walk(&way, (uintptr_t)__builtin_frame_address(0));
    memcpy(pc, way.pc, (size_t)way.n * sizeof *pc);
    return way.n;
}

static struct san_shared *shared_from(const struct way *way)
{
    struct san_shared *shared = malloc(sizeof *shared);
    if (!shared) return NULL;
    san_stack_set(&shared->stack, way->pc, way->n);
    shared->stays = false;
    atomic_init(&shared->users, 1);
    return shared;
}

#if defined(__x86_64__)

/* SETS * WAYS: different stacks per thread. WORDS: number of words that one may depend on, compared STEP at a time.
 * STAYING: different stacks per process, about 600 KiB; NEAR: number of places for each of them. */
enum { SETS = 32, WAYS = 8, WORDS = 3 * SAN_WALK, STEP = 4, STAYING = 4096, NEAR = 8 };
_Static_assert(WORDS % STEP == 0, "words are compared in steps");

static struct san_shared *_Atomic staying[STAYING];

struct known {
    uintptr_t frame; /* of san_stack_take; 0: none */
    int n;
    struct word {
        const volatile uintptr_t *at;
        uintptr_t value;
    } word[WORDS];
    struct san_shared *stack;
};

struct cache {
    uintptr_t low, high;         /* of the thread's stack */
    volatile sig_atomic_t inuse; /* a signal handler that interrupts it walks by itself */
    unsigned char next[SETS];    /* next to be replaced */
    unsigned char last[SETS];    /* the one that was found */
    struct known known[SETS][WAYS];
};

static _Thread_local struct cache *cache __attribute__((tls_model("initial-exec")));
static _Thread_local bool none __attribute__((tls_model("initial-exec"))); /* no memory, or the thread ends */
static pthread_key_t key;
static bool have_key;

static void drop(void *argument)
{
    struct cache *c = argument;
    none = true;
    cache = NULL;
    for (int i = 0; i < SETS; i++)
        for (int j = 0; j < WAYS; j++) san_stack_drop(c->known[i][j].stack);
    free(c);
}

__attribute__((noinline)) static struct cache *make_cache(void)
{
    pthread_attr_t attributes;
    void *low;
    size_t size;
    if (none || !have_key) return NULL;
    none = true; /* until it is complete: a signal handler may interrupt */
    if (pthread_getattr_np(pthread_self(), &attributes) != 0) return NULL;
    int rc = pthread_attr_getstack(&attributes, &low, &size);
    pthread_attr_destroy(&attributes);
    if (rc != 0) return NULL;
    struct cache *made = calloc(1, sizeof *made); /* pages come when they are used */
    if (!made) return NULL;
    made->low = (uintptr_t)low;
    made->high = made->low + size;
    if (pthread_setspecific(key, made) != 0) {
        free(made);
        return NULL;
    }
    none = false;
    return cache = made;
}

/* These two read words of foreign frames, and of locals that are no longer in use. */
#define READS_STACK __attribute__((no_sanitize("address"), no_sanitize("thread")))

READS_STACK static inline bool is_there(const struct known *k, uintptr_t frame)
{
    if (k->frame != frame) return false;
    const struct word *w = k->word, *end = w + k->n;
    uintptr_t differ = 0;
    for (; w < end && !differ; w += STEP)
        for (int i = 0; i < STEP; i++) differ |= *w[i].at ^ w[i].value;
    return !differ;
}

/* Try the last one first. */
READS_STACK static inline const struct known *find(struct cache *c, size_t set, uintptr_t frame)
{
    const struct known *known = c->known[set];
    if (is_there(&known[c->last[set]], frame)) return &known[c->last[set]];
    for (int i = 0; i < WAYS; i++)
        if (is_there(&known[i], frame)) {
            c->last[set] = (unsigned char)i;
            return &known[i];
        }
    return NULL;
}

static bool depend(struct known *k, uintptr_t at, uintptr_t value)
{
    if (k->n == WORDS) return false;
    k->word[k->n].at = (const volatile uintptr_t *)at;
    k->word[k->n++].value = value;
    return true;
}

/* The words from which a register of frame i was restored. */
READS_STACK __attribute__((noinline)) static bool depend_on_register(struct known *k, const struct way *way, int i,
                                                                     int r)
{
    for (uintptr_t value = way->reg[i][r];; i--) {
        bool saved = false;
        uintptr_t from = i ? way->sp[i - 1] : k->frame, to = way->sp[i];
        for (uintptr_t at = (from + 7) & ~(uintptr_t)7; at + 8 <= to; at += 8) {
            if (*(const volatile uintptr_t *)at != value) continue;
            if (!depend(k, at, value)) return false;
            saved = true;
        }
        /* The callee used the register itself, so it saved the caller's value; or it may have left it alone. */
        if (i == 0 || way->reg[i - 1][r] != value) return saved;
    }
}

READS_STACK __attribute__((noinline)) static bool learn(struct known *k, const struct way *way, uintptr_t frame,
                                                        const struct cache *c)
{
    k->n = 0;
    k->frame = frame;
    for (int i = 0; i < way->n; i++) {
        uintptr_t slot = way->sp[i] - 8;
        if (slot <= frame || slot >= c->high || slot % 8 || (i && way->sp[i] <= way->sp[i - 1])) return false;
        /* Not at a signal frame: the kernel keeps that address elsewhere. */
        if (*(const volatile uintptr_t *)slot != way->pc[i] || !depend(k, slot, way->pc[i])) return false;
    }
    for (int i = 0; i + 1 < way->n; i++) {
        uintptr_t begin = way->sp[i], end = way->sp[i + 1];
        for (int r = 0; r < KEPT; r++) {
            uintptr_t value = way->reg[i][r];
            /* A frame pointer is in its frame; a frame that aligns itself keeps its end in a register or next to the
             * frame pointer. */
            if (r == FRAME_POINTER ? value < begin || value >= end : value != end) continue;
            if (!depend_on_register(k, way, i, r)) return false;
            if (r == FRAME_POINTER && value != end - 16 && value % 8 == 0 && value - 8 >= begin &&
                !depend(k, value - 8, *(const volatile uintptr_t *)(value - 8)))
                return false;
        }
    }
    while (k->n % STEP) depend(k, (uintptr_t)k->word[0].at, k->word[0].value);
    return true;
}

static size_t set_of(uintptr_t frame, uintptr_t caller)
{
    uint64_t x = (frame ^ caller << 20) * 0x9e3779b97f4a7c15u;
    return x >> 59;
}
_Static_assert(SETS == 1 << (64 - 59), "set_of gives one of SETS");

/* A cached stack is kept for ever while there is room: counting its users, at four points in the life of an object,
 * would cost as much as finding it. */
static struct san_shared *stay(struct san_shared *shared)
{
    uint64_t hash = shared->stack.n;
    for (uint32_t i = 0; i < shared->stack.n; i++) {
        hash = (hash ^ shared->stack.frame[i]) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    for (unsigned i = 0; i < NEAR; i++) {
        struct san_shared *_Atomic *at = &staying[(hash + i) % STAYING];
        struct san_shared *seen = atomic_load_explicit(at, memory_order_acquire);
        if (!seen) {
            shared->stays = true;
            if (atomic_compare_exchange_strong_explicit(at, &seen, shared, memory_order_acq_rel, memory_order_acquire))
                return shared;
            shared->stays = false;
        }
        if (memcmp(&seen->stack, &shared->stack, sizeof seen->stack) == 0) {
            free(shared);
            return seen;
        }
    }
    return shared;
}

__attribute__((noinline)) static struct san_shared *walk_and_keep(struct cache *c, uintptr_t frame, size_t set)
{
    struct way way;
    walk(&way, frame + 8);
    struct san_shared *shared = shared_from(&way);
    if (!shared || !way.n || !unwind_all) return shared;
    unsigned at = c->next[set];
    struct known *k = &c->known[set][at];
    san_stack_drop(k->stack);
    k->stack = NULL;
    if (learn(k, &way, frame, c)) {
        shared = stay(shared);
        k->stack = san_stack_share(shared);
        c->next[set] = (unsigned char)((at + 1) % WAYS);
    } else {
        k->frame = 0;
    }
    return shared;
}

__attribute__((noinline)) static struct san_shared *walk_once(uintptr_t frame)
{
    struct way way;
    walk(&way, frame + 8);
    return shared_from(&way);
}

/* noinline: its frame is the key. */
READS_STACK __attribute__((noinline)) struct san_shared *san_stack_take(void)
{
    uintptr_t frame = (uintptr_t)__builtin_frame_address(0);
    struct cache *c = cache ? cache : make_cache();
    /* Not the thread's stack but a coroutine's: it may end and another may use its place. */
    if (!c || c->inuse || frame < c->low || frame >= c->high) return walk_once(frame);
    c->inuse = 1;
    atomic_signal_fence(memory_order_seq_cst);
    size_t set = set_of(frame, (uintptr_t)__builtin_return_address(0));
    const struct known *k = find(c, set, frame);
    struct san_shared *shared = k ? san_stack_share(k->stack) : walk_and_keep(c, frame, set);
    atomic_signal_fence(memory_order_seq_cst);
    c->inuse = 0;
    return shared;
}

#else

struct san_shared *san_stack_take(void)
{
    struct way way;
    walk(&way, 0);
    return shared_from(&way);
}

#endif

void san_unwind_start(void)
{
    void *library = dlopen("libgcc_s.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library) {
        *(void **)&unwind_ip = dlsym(library, "_Unwind_GetIP");
        *(void **)&unwind_cfa = dlsym(library, "_Unwind_GetCFA");
        *(void **)&unwind_register = dlsym(library, "_Unwind_GetGR");
        if (unwind_ip && unwind_cfa && unwind_register) *(void **)&unwind_all = dlsym(library, "_Unwind_Backtrace");
    }
#if defined(__x86_64__)
    have_key = pthread_key_create(&key, drop) == 0;
#endif
    uintptr_t pc[SAN_WALK];
    san_walk(pc); /* loads what it needs now, not in a signal handler */
}
