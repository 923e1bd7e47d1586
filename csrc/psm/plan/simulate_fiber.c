/* Fibers: separate stacks within one thread. Sanitizers are notified of every switch. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "plan/simulate.h"

#if defined(__has_feature)
#define FEATURE(name) __has_feature(name)
#else
#define FEATURE(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || FEATURE(address_sanitizer)
#define WITH_ASAN 1
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__) || FEATURE(thread_sanitizer)
#define WITH_TSAN 1
#include <sanitizer/tsan_interface.h>
#endif

#if defined(WITH_ASAN) || defined(WITH_TSAN)
enum { STACK = 256 << 10 };
#else
enum { STACK = 64 << 10 };
#endif

struct fiber {
    struct fiber *next; /* free ones, and all of them */
    struct fiber *all;
    struct fiber_home *home;
    void (*fn)(void *);
    void *arg;
    bool ended, begun;
    void *fake; /* ASan's */
    void *tsan;
    ucontext_t context;
    char stack[STACK] __attribute__((aligned(64)));
};
struct fiber_home {
    struct fiber *free, *all, *runs;
    ucontext_t context;
    void *fake, *tsan;
    const void *bottom;
    size_t size;
};

/* ---- switches ---- */

static void leave_home(struct fiber *fiber)
{
#ifdef WITH_ASAN
    __sanitizer_start_switch_fiber(&fiber->home->fake, fiber->stack, STACK);
#endif
#ifdef WITH_TSAN
    __tsan_switch_to_fiber(fiber->tsan, 0);
#endif
    (void)fiber;
}
static void come_home(struct fiber_home *home)
{
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(home->fake, NULL, NULL);
#endif
    (void)home;
}
static void enter(struct fiber *fiber)
{
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(fiber->fake, &fiber->home->bottom, &fiber->home->size);
#endif
    (void)fiber;
}
static void leave(struct fiber *fiber)
{
#ifdef WITH_ASAN
    __sanitizer_start_switch_fiber(fiber->ended ? NULL : &fiber->fake, fiber->home->bottom, fiber->home->size);
#endif
#ifdef WITH_TSAN
    __tsan_switch_to_fiber(fiber->home->tsan, 0);
#endif
    (void)fiber;
}

static void run(unsigned low, unsigned high)
{
    struct fiber *fiber = (struct fiber *)(((uintptr_t)high << 16 << 16) | low);
    enter(fiber);
    while (true) { /* reused */
        fiber->fn(fiber->arg);
        fiber->ended = true;
        leave(fiber);
        swapcontext(&fiber->context, &fiber->home->context);
        enter(fiber);
    }
}

/* ---- life ---- */

struct fiber_home *psm_fiber_home_new(void)
{
    struct fiber_home *home = calloc(1, sizeof *home);
#ifdef WITH_TSAN
    if (home) home->tsan = __tsan_get_current_fiber();
#endif
    return home;
}

void psm_fiber_home_free(struct fiber_home *home)
{
    if (!home) return;
    while (home->all) {
        struct fiber *fiber = home->all;
        home->all = fiber->all;
#ifdef WITH_TSAN
        __tsan_destroy_fiber(fiber->tsan);
#endif
        free(fiber);
    }
    free(home);
}

struct fiber *psm_fiber_new(struct fiber_home *home, void (*fn)(void *), void *arg)
{
    struct fiber *fiber = home->free;
    if (fiber)
        home->free = fiber->next;
    else {
        fiber = aligned_alloc(64, sizeof *fiber);
        if (!fiber) return NULL;
        memset(fiber, 0, offsetof(struct fiber, stack));
        fiber->home = home;
        fiber->all = home->all;
        home->all = fiber;
#ifdef WITH_TSAN
        fiber->tsan = __tsan_create_fiber(0);
#endif
    }
    fiber->fn = fn;
    fiber->arg = arg;
    fiber->ended = false;
    return fiber;
}

bool psm_fiber_resume(struct fiber *fiber)
{
    struct fiber_home *home = fiber->home;
    if (!fiber->begun) {
        fiber->begun = true;
        getcontext(&fiber->context);
        fiber->context.uc_stack.ss_sp = fiber->stack;
        fiber->context.uc_stack.ss_size = STACK;
        fiber->context.uc_link = NULL;
        uintptr_t self = (uintptr_t)fiber;
        makecontext(&fiber->context, (void (*)(void))run, 2, (unsigned)self, (unsigned)(self >> 16 >> 16));
    }
    home->runs = fiber;
    leave_home(fiber);
    swapcontext(&home->context, &fiber->context);
    come_home(home);
    home->runs = NULL;
    if (!fiber->ended) return false;
    fiber->next = home->free;
    home->free = fiber;
    return true;
}

void psm_fiber_yield(struct fiber_home *home)
{
    struct fiber *fiber = home->runs;
    leave(fiber);
    swapcontext(&fiber->context, &home->context);
    enter(fiber);
}

bool psm_fiber_inside(const struct fiber_home *home)
{
    return home->runs != NULL;
}
