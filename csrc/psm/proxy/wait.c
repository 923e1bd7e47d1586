/* Ways to wait without spinning. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "proxy/proxy.h"

static struct timespec span(uint64_t ns)
{
    return (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
}

void psm_futex_wait(const volatile uint32_t *word, uint32_t value, uint64_t ns)
{
    struct timespec time = span(ns);
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &time, NULL, 0);
}

void psm_futex_wake(const volatile void *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 0x7fffffff, NULL, NULL, 0);
}

void psm_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t how;
    pthread_condattr_init(&how);
    pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &how);
    pthread_condattr_destroy(&how);
}

void psm_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t ns)
{
    struct timespec until = span(psm_clock_ns() + ns);
    pthread_cond_timedwait(cond, lock, &until);
}

void psm_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

int psm_event_make(void)
{
    return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

void psm_event_set(int event)
{
    ssize_t n;
    uint64_t one = 1;
    /* EAGAIN: it has already been set very many times */
    do n = write(event, &one, sizeof one);
    while (n < 0 && errno == EINTR);
}

void psm_event_clear(int event)
{
    ssize_t n;
    uint64_t count;
    do n = read(event, &count, sizeof count);
    while (n < 0 && errno == EINTR);
}
