/* Identity of this process. */
#define _GNU_SOURCE
#include "base.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static struct psm_proc self;
static _Atomic int ready; /* 0: not filled, 1: a thread is filling it, 2: filled */
static _Atomic bool abort_flag;
/* Needed for every record: read it without a call of __tls_get_addr. */
#define FAST_TLS __attribute__((tls_model("initial-exec")))
static _Thread_local int thread_id FAST_TLS;
static _Thread_local int thread_pid FAST_TLS;

static size_t read_file(const char *path, char *buffer, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        buffer[0] = 0;
        return 0;
    }
    size_t n = 0;
    ssize_t got;
    while (n < size - 1 && ((got = read(fd, buffer + n, size - 1 - n)) > 0 || (got < 0 && errno == EINTR)))
        if (got > 0) n += (size_t)got;
    close(fd);
    buffer[n] = 0;
    return n;
}

/* Start time and state of a process from its stat line. The command may contain blanks and parentheses: count the
 * fields after the last parenthesis. */
static bool read_stat(const char *path, uint64_t *start_time, char *state)
{
    char text[1024];
    if (!read_file(path, text, sizeof text)) return false;
    const char *p = strrchr(text, ')');
    if (!p || p[1] != ' ') return false;
    p += 2;
    *state = *p;
    for (int field = 3; field < 22; field++) {
        p = strchr(p, ' ');
        if (!p) return false;
        p++;
    }
    uint64_t value = 0;
    if (*p < '0' || *p > '9') return false;
    for (; *p >= '0' && *p <= '9'; p++) value = value * 10 + (uint64_t)(*p - '0');
    *start_time = value;
    return true;
}

static int read_rank(void)
{
    static const char *const names[] = {"PSM_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK",
                                        "PMI_RANK", "SLURM_PROCID",         "RANK"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *text = getenv(names[i]);
        if (!text || *text < '0' || *text > '9') continue;
        char *end;
        errno = 0;
        unsigned long value = strtoul(text, &end, 10);
        if (*end == 0 && errno == 0 && value <= INT_MAX) return (int)value;
    }
    return -1;
}

void psm_proc_refresh_rank(void)
{
    self.rank = read_rank();
}

static uint16_t random_tag(void)
{
    uint16_t tag = 0;
    if (getrandom(&tag, sizeof tag, GRND_NONBLOCK) != sizeof tag) tag = 0;
    if (tag) return tag;
    uint64_t mixed = (psm_clock_ns() ^ (uint64_t)getpid() << 32) * 0x9e3779b97f4a7c15u;
    tag = (uint16_t)(mixed >> 48);
    return tag ? tag : 1;
}

static void fill_process(void)
{
    self.pid = (int)getpid();
    self.tag = random_tag();
    char state;
    if (!read_stat("/proc/self/stat", &self.start_time, &state)) self.start_time = 0;
}

static void after_fork(void)
{
    if (atomic_load(&ready) == 2) fill_process();
}

static void fill(void)
{
    fill_process();
    self.uid = (uint32_t)geteuid();
    self.rank = read_rank();
    struct stat st;
    self.pid_ns = stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
    char host[256];
    if (gethostname(host, sizeof host) != 0) host[0] = 0;
    host[sizeof host - 1] = 0;
    size_t n = strcspn(host, ".");
    if (n >= sizeof self.host) n = sizeof self.host - 1;
    memcpy(self.host, host, n);
    self.host[n] = 0;
    n = read_file("/proc/sys/kernel/random/boot_id", self.boot_id, sizeof self.boot_id);
    self.boot_id[strcspn(self.boot_id, "\n")] = 0;
    pthread_atfork(NULL, NULL, after_fork);
}

const struct psm_proc *psm_proc_self(void)
{
    int state = atomic_load_explicit(&ready, memory_order_acquire);
    if (state == 2) return &self;
    int expected = 0;
    if (atomic_compare_exchange_strong(&ready, &expected, 1)) {
        fill();
        atomic_store_explicit(&ready, 2, memory_order_release);
        return &self;
    }
    /* Another thread fills it, which takes microseconds. A signal handler that interrupted that thread must not wait
     * for it. */
    for (int i = 0; i < 1000 && atomic_load_explicit(&ready, memory_order_acquire) != 2; i++) {
        struct timespec moment = {0, 10000};
        nanosleep(&moment, NULL);
    }
    return &self;
}

/* Runs before main, while there is no signal handler and no second thread yet. */
__attribute__((constructor)) static void fill_early(void)
{
    psm_proc_self();
}

int psm_tid(void)
{
    /* A child of fork inherits the variable, but not the number. */
    int pid = psm_proc_self()->pid;
    if (thread_pid != pid) {
        thread_id = (int)syscall(SYS_gettid);
        thread_pid = pid;
    }
    return thread_id;
}

bool psm_pid_alive(int pid, uint64_t start_time)
{
    if (pid <= 0) return false;
    char path[64], state;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    uint64_t started;
    if (read_stat(path, &started, &state))
        return state != 'Z' && state != 'X' && (start_time == 0 || started == start_time);
    /* /proc does not show other processes (hidepid), or it is not mounted: assume alive rather than delete files in
     * use. */
    return kill(pid, 0) == 0 || errno == EPERM;
}

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t psm_clock_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

uint64_t psm_tick_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC_COARSE);
}

uint64_t psm_wall_ns(void)
{
    return clock_ns(CLOCK_REALTIME);
}

void psm_abort(void)
{
    atomic_store(&abort_flag, true);
}

bool psm_aborted(void)
{
    return atomic_load_explicit(&abort_flag, memory_order_acquire);
}
