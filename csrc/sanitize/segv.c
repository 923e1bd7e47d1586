/* A crash on device memory is reported before the process dies of it. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "log.h"
#include "san_internal.h"

static struct sigaction before[2];
static _Atomic int told;

static int slot_of(int number)
{
    return number == SIGBUS;
}

/* Whether the access was a write, and where the code was. */
static void *look_at(void *context, bool *write)
{
    *write = false;
    ucontext_t *u = context;
#if defined(__x86_64__)
    *write = (u->uc_mcontext.gregs[REG_ERR] & 2) != 0; /* bit 1 of a page fault's error code */
    return (void *)u->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    return (void *)u->uc_mcontext.pc;
#else
    (void)u;
    return NULL;
#endif
}

/* Whether the instruction runs into it again once the handler has returned. A signal that a process sent does not come
 * back by itself, nor does news of broken memory that nobody has touched yet. */
static bool comes_back(int number, const siginfo_t *info)
{
    return info->si_code > 0 && !(number == SIGBUS && info->si_code == BUS_MCEERR_AO);
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    struct san_span span;
    struct san_copy copy;
    uint64_t address = (uint64_t)(uintptr_t)info->si_addr;
    /* A fault that the kernel found, not a signal that somebody sent. */
    if (info->si_code > 0 && atomic_exchange(&told, 1) == 0 && san_span_try_find(address, &span) &&
        san_try_copy(span.kind, span.base, &copy)) {
        struct san_stack stack;
        struct san_report report = {.finding = SAN_HOST_ACCESS,
                                    .call = "host",
                                    .kind = copy.object.kind,
                                    .value = copy.object.value,
                                    .size = copy.object.size,
                                    .address = address,
                                    .device = copy.object.device,
                                    .used = &stack,
                                    .birth = &copy.birth,
                                    .tid = copy.object.tid};
        san_stack_take_from(&stack, look_at(context, &report.write));
        san_report(&report);
        psm_log_flush();
    }
    /* The handler that was there before decides. */
    sigaction(number, &before[slot_of(number)], NULL);
    /* With the sender's pid and value. It stays blocked until this handler returns. */
    if (!comes_back(number, info)) syscall(SYS_rt_tgsigqueueinfo, getpid(), gettid(), number, info);
}

void san_segv_start(void)
{
    const char *text = getenv("PSM_SANITIZE_SEGV");
    if (text && strcmp(text, "0") == 0) return;
    struct sigaction action = {.sa_flags = SA_SIGINFO | SA_ONSTACK};
    action.sa_sigaction = on_fault;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &before[0]);
    sigaction(SIGBUS, &action, &before[1]);
}
