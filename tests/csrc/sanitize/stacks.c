/* Stacks that are taken again and again from the same places, each held against a walk of its own. */
#define _GNU_SOURCE
#include <alloca.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "san_internal.h"

#define PLAIN __attribute__((noinline, noclone))
/* What keeps a call from being the last thing that a function does: it has to return there. */
#define STAY __asm__ volatile("" ::: "memory")

enum { STACK = 4 << 20, HANDLERS = 128 << 10, THREADS = 4, ROUNDS = 20 };

static _Thread_local struct san_stack taken;
static _Thread_local bool stays;                      /* it was kept for the next time, or is from there */
static _Thread_local const struct san_shared *shared; /* only to be compared */
static _Thread_local uintptr_t depth;                 /* where the frame was that took it */

static void fail(const char *what)
{
    fprintf(stderr, "%s\n", what);
    _exit(1);
}

/* Takes a stack, and looks whether it is the one that is there. */
PLAIN static void take(void)
{
    void *pc[SAN_WALK];
    uintptr_t as_number[SAN_WALK];
    struct san_stack expected;
    struct san_shared *now = san_stack_take();
    if (!now) fail("there is no stack");
    int n = backtrace(pc, SAN_WALK);
    int first = 1; /* our caller; whoever looks at backtrace() lies before it */
    while (first < n && pc[first] != __builtin_return_address(0)) first++;
    for (int i = first - 1; i < n; i++) as_number[i - first + 1] = (uintptr_t)pc[i];
    san_stack_set(&expected, as_number, n - first + 1);
    /* The first frame is this function, at two places. */
    if (now->stack.n != expected.n) fail("the stack is not as deep as the real one");
    if (memcmp(now->stack.frame + 1, expected.frame + 1, (expected.n - 1) * sizeof *expected.frame) != 0)
        fail("the stack is not the real one");
    taken = now->stack;
    shared = now;
    stays = now->stays;
    depth = (uintptr_t)__builtin_frame_address(0);
    san_stack_drop(now);
    STAY;
}

/* ---- two ways to one call at one depth ---- */

PLAIN static void site(void)
{
    take();
    STAY;
}

PLAIN static void one_way(void)
{
    site();
    STAY;
}

PLAIN static void other_way(void)
{
    site();
    STAY;
}

/* known: these stacks are kept. */
static void two_ways(bool known)
{
    static void (*const ways[])(void) = {one_way, other_way};
    struct san_stack seen[2] = {0};
    const struct san_shared *from[2] = {NULL, NULL};
    uintptr_t at[2] = {0, 0};
    for (volatile int i = 0; i < ROUNDS; i++) {
        ways[i % 2]();
#if defined(__x86_64__)
        if (known && (!stays || (i >= 2 && from[i % 2] != shared))) fail("a stack that was known was walked again");
#else
        (void)known;
#endif
        from[i % 2] = shared;
        seen[i % 2] = taken;
        at[i % 2] = depth;
    }
    if (at[0] != at[1]) fail("the two ways are not of one depth, so that this shows nothing");
    if (memcmp(&seen[0], &seen[1], sizeof *seen) == 0) fail("two ways gave one stack");
}

/* ---- one depth by alloca(), with old return addresses in what it gives ---- */

PLAIN static void with_room(size_t size)
{
    volatile char *room = alloca(size);
    STAY;
    take();
    __asm__ volatile("" ::"r"(room) : "memory");
}

PLAIN static void between(size_t size)
{
    with_room(size);
    STAY;
}

PLAIN static void call_with(void (*function)(size_t), size_t size)
{
    function(size);
    STAY;
}

static bool old_addresses(void)
{
    void (*volatile functions[])(size_t) = {between, with_room};
    volatile bool met = false;
    for (volatile size_t more = 0; more < 1024; more += 16) {
        uintptr_t before = 0;
        for (volatile int i = 0; i < 2; i++) {
            before = depth;
            call_with(functions[i], i ? 16 + more : 16);
        }
        met = met || depth == before;
    }
    return met;
}

/* ---- recursion, beyond what a stack holds too ---- */

PLAIN static void recurse(int n)
{
    if (n)
        recurse(n - 1);
    else
        take();
    STAY;
}

static void depths(void)
{
    for (int round = 0; round < 3; round++)
        for (int n = 0; n < 3 * SAN_WALK; n += round + 1) {
            recurse(n);
            if (n > SAN_FRAMES && taken.n != SAN_FRAMES) fail("a deep stack is not held as far as can be");
        }
}

/* ---- stacks that are not the thread's ---- */

struct coroutine {
    ucontext_t self, back;
};
static _Thread_local struct coroutine coroutine;

static void in_coroutine_one(void)
{
    two_ways(false);
    swapcontext(&coroutine.self, &coroutine.back);
}

static void in_coroutine_other(void)
{
    recurse(3);
    two_ways(false);
    swapcontext(&coroutine.self, &coroutine.back);
}

/* The memory of one is the other's next, or is gone. */
static void coroutines(void)
{
    for (volatile int i = 0; i < 6; i++) {
        void *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (stack == MAP_FAILED) fail("no memory");
        getcontext(&coroutine.self);
        coroutine.self.uc_stack.ss_sp = stack;
        coroutine.self.uc_stack.ss_size = STACK;
        coroutine.self.uc_link = NULL;
        makecontext(&coroutine.self, i % 2 ? in_coroutine_other : in_coroutine_one, 0);
        swapcontext(&coroutine.back, &coroutine.self);
        munmap(stack, STACK);
    }
}

static void in_handler(int number)
{
    (void)number;
    take();
    STAY;
}

PLAIN static void raised(void)
{
    raise(SIGUSR1);
    STAY;
}

PLAIN static void raised_deeper(void)
{
    raised();
    STAY;
}

static void signals(void)
{
    for (int i = 0; i < ROUNDS; i++) {
        raised();
        raised_deeper();
    }
}

/* ---- all of it ---- */

struct job {
    bool checked;
    char *handlers; /* stack of signal handlers, above the thread's */
};

static void *work(void *argument)
{
    const struct job *job = argument;
    two_ways(true);
    old_addresses();
    depths();
    if (!job->checked) signals();
    if (job->handlers) {
        const stack_t stack = {.ss_sp = job->handlers, .ss_size = HANDLERS};
        if (sigaltstack(&stack, NULL) != 0) fail("no stack for handlers");
        if (!job->checked) signals();
    }
    two_ways(true);
    return NULL;
}

static void in_threads(bool checked)
{
    pthread_t threads[THREADS];
    char *stacks[THREADS];
    struct job jobs[THREADS];
    for (int i = 0; i < THREADS; i++) {
        pthread_attr_t attributes;
        stacks[i] = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (stacks[i] == MAP_FAILED) fail("no memory");
        pthread_attr_init(&attributes);
        if (i % 2 && pthread_attr_setstack(&attributes, stacks[i], STACK - HANDLERS) != 0) fail("no stack of its own");
        jobs[i] = (struct job){checked, i % 2 ? stacks[i] + STACK - HANDLERS : NULL};
        if (pthread_create(&threads[i], &attributes, work, &jobs[i]) != 0) fail("no thread");
        pthread_attr_destroy(&attributes);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        munmap(stacks[i], STACK);
    }
}

int main(int argc, char **argv)
{
    bool checked =
        argc > 1 && strcmp(argv[1], "checked") == 0; /* by what lays frames out anew, and does not like all of this */
    const struct psm_san_hooks hooks = {0};
    struct job job = {checked, NULL};
    struct sigaction action = {.sa_flags = SA_ONSTACK};
    action.sa_handler = in_handler;
    sigaction(SIGUSR1, &action, NULL);
    psm_san_start(PSM_SAN_WARN, "stacks", &hooks);
    work(&job);
    if (!old_addresses() && !checked) fail("no alloca() met the depth of the other way, so that this shows nothing");
    if (!checked) coroutines();
    in_threads(checked);
    pid_t child = fork();
    if (child == 0) {
        work(&job);
        _exit(0);
    }
    int status = -1;
    if (waitpid(child, &status, 0) != child || status != 0) fail("the child of fork failed");
    puts("done");
    return 0;
}
