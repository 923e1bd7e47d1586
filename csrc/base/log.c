/* Log lines: their prefix, and the file that they go to. */
#define _GNU_SOURCE
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { KEPT_LINES = 64, KEPT_BYTES = 32768, PREFIX_SIZE = 256 };

/* A descriptor and the identity of its file. A process that closes all of its descriptors closes ours too, and the
 * number may then refer to another file. */
struct target {
    int fd;
    dev_t dev;
    ino_t ino;
};

static _Atomic int locked;
static struct target own = {-1, 0, 0};   /* of PSM_LOG_FILE */
static struct target nccls = {-1, 0, 0}; /* NCCL's, of NCCL_DEBUG_FILE */
static char kept[KEPT_BYTES];            /* lines kept until NCCL opens its file */
static size_t kept_bytes, kept_lines;
static long zone_seconds;
static _Thread_local int device;
static _Thread_local bool device_is_set;
static int (*_Atomic device_function)(void);

static void after_fork(void)
{
    /* The parent prints the lines that it kept. Its threads do not exist here, and one of them may have held the lock.
     * %p now expands to another file. */
    kept_bytes = kept_lines = 0;
    if (own.fd >= 0) close(own.fd);
    own.fd = -1;
    nccls.fd = -1;
    atomic_store(&locked, 0);
}

__attribute__((constructor)) static void prepare(void)
{
    /* localtime_r is not async-signal-safe. */
    time_t now = time(NULL);
    struct tm local;
    if (localtime_r(&now, &local)) zone_seconds = local.tm_gmtoff;
    pthread_atfork(NULL, NULL, after_fork);
}

void psm_log_set_device(int number)
{
    device = number;
    device_is_set = true;
}

void psm_log_set_device_function(int (*current_device)(void))
{
    atomic_store(&device_function, current_device);
}

int psm_log_device(void)
{
    if (device_is_set) return device;
    int (*current)(void) = atomic_load_explicit(&device_function, memory_order_acquire);
    return current ? current() : 0;
}

/* As NCCL reads it: 0 nothing, 1 version, 2 warnings, 3 info and more. */
static int nccl_level(void)
{
    static const char *const names[] = {"VERSION", "WARN", "INFO", "ABORT", "TRACE"};
    const char *text = getenv("NCCL_DEBUG");
    if (!text) return 0;
    for (int i = 0; i < 5; i++)
        if (strcasecmp(text, names[i]) == 0) return i + 1;
    return 0;
}

bool psm_log_enabled(enum psm_level level)
{
    /* Reads the environment each time: programs set NCCL_DEBUG after they load the library. */
    if (level == PSM_LEVEL_WARN || nccl_level() >= (level == PSM_LEVEL_TRACE ? 5 : 3)) return true;
    const char *text = getenv("PSM_LOG");
    return text && (strcasecmp(text, "trace") == 0 || (level == PSM_LEVEL_INFO && strcasecmp(text, "info") == 0));
}

static void write_all(int fd, const char *s, size_t n)
{
    while (n) {
        ssize_t done = write(fd, s, n);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return; /* on a full disk or a closed pipe there is nowhere to report it */
        s += done;
        n -= (size_t)done;
    }
}

static void write_standard(const char *s, size_t n)
{
    struct stat st;
    write_all(fstat(STDOUT_FILENO, &st) == 0 ? STDOUT_FILENO : STDERR_FILENO, s, n);
}

/* Expands %h and %p as NCCL does; false: it does not fit. */
static bool expand(const char *name, char *path, size_t size)
{
    struct psm_text t = {path, 0, size - 1, 0};
    for (const char *p = name; *p; p++) {
        if (*p != '%') {
            psm_text_literal(&t, p, 1);
        } else if (p[1] == 'h') {
            psm_text_literal(&t, psm_proc_self()->host, strlen(psm_proc_self()->host));
            p++;
        } else if (p[1] == 'p') {
            psm_text_int(&t, psm_proc_self()->pid);
            p++;
        } else {
            psm_text_literal(&t, "%", 1);
            if (p[1] == '%') p++;
        }
    }
    path[t.n] = 0;
    return t.lost == 0;
}

static bool still_open(const struct target *t)
{
    struct stat st;
    return t->fd >= 0 && fstat(t->fd, &st) == 0 && st.st_dev == t->dev && st.st_ino == t->ino;
}

static bool open_own(const char *name)
{
    char path[PATH_MAX];
    struct stat st;
    if (still_open(&own)) return true;
    own.fd = -1;
    if (!expand(name, path, sizeof path)) return false;
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0600);
    if (fd < 0) return false;
    if (fd <= STDERR_FILENO) { /* standard streams are closed; do not take their numbers */
        int high = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
        close(fd);
        fd = high;
    }
    if (fd < 0 || fstat(fd, &st) != 0) return false;
    own = (struct target){fd, st.st_dev, st.st_ino};
    return true;
}

struct entry { /* linux_dirent64 */
    uint64_t ino;
    int64_t off;
    unsigned short length;
    unsigned char type;
    char name[];
};

/* NCCL opens its file with "w": a second descriptor would have its own offset and overwrite NCCL's lines. So find and
 * use NCCL's descriptor. opendir allocates, hence the system call. */
static bool find_nccls(const char *name)
{
    char path[PATH_MAX];
    struct stat file, st;
    if (still_open(&nccls)) return true;
    nccls.fd = -1;
    if (!expand(name, path, sizeof path) || stat(path, &file) != 0) return false;
    int folder = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return false;
    _Alignas(struct entry) char buffer[2048];
    long n;
    while (nccls.fd < 0 && (n = syscall(SYS_getdents64, folder, buffer, sizeof buffer)) > 0)
        for (long at = 0; at < n && nccls.fd < 0;) {
            const struct entry *e = (const struct entry *)(buffer + at);
            at += e->length;
            if (e->name[0] < '0' || e->name[0] > '9') continue;
            int fd = 0;
            for (const char *p = e->name; *p; p++) fd = fd * 10 + (*p - '0');
            if (fstat(fd, &st) != 0 || st.st_dev != file.st_dev || st.st_ino != file.st_ino) continue;
            int flags = fcntl(fd, F_GETFL);
            if (flags >= 0 && (flags & O_ACCMODE) != O_RDONLY) nccls = (struct target){fd, st.st_dev, st.st_ino};
        }
    close(folder);
    return nccls.fd >= 0;
}

static void flush_kept(int fd)
{
    write_all(fd, kept, kept_bytes);
    kept_bytes = kept_lines = 0;
}

static void deliver(const char *line, size_t n)
{
    const char *name = getenv("PSM_LOG_FILE");
    if (!name || !*name) name = getenv("PSM_DEBUG_FILE");
    if (name && *name) {
        if (open_own(name))
            write_all(own.fd, line, n);
        else
            write_all(STDERR_FILENO, line, n);
        return;
    }
    name = getenv("NCCL_DEBUG_FILE");
    if (!name || !*name || nccl_level() < 2) { /* NCCL opens no file without a level */
        write_standard(line, n);
        return;
    }
    if (find_nccls(name)) {
        if (kept_bytes) flush_kept(nccls.fd);
        write_all(nccls.fd, line, n);
    } else if (kept_lines < KEPT_LINES && kept_bytes + n <= sizeof kept) {
        memcpy(kept + kept_bytes, line, n);
        kept_bytes += n;
        kept_lines++;
    } else {
        write_all(STDERR_FILENO, line, n);
    }
}

/* A signal handler may interrupt the holder: do not wait for ever. */
static bool lock(void)
{
    for (int i = 0; i < 2000; i++) {
        int expected = 0;
        if (atomic_compare_exchange_weak_explicit(&locked, &expected, psm_tid(), memory_order_acquire,
                                                  memory_order_relaxed))
            return true;
        if (expected == psm_tid()) return false;
        struct timespec moment = {0, 50000};
        if (i > 100) nanosleep(&moment, NULL);
    }
    return false;
}

static void unlock(void)
{
    atomic_store_explicit(&locked, 0, memory_order_release);
}

static void put_two(struct psm_text *t, int value)
{
    char digits[2] = {(char)('0' + value / 10 % 10), (char)('0' + value % 10)};
    psm_text_literal(t, digits, 2);
}

/* [2026-11-21 01:35:22], for warnings only, as in NCCL. Computes the date by counting days from 0000-03-01 in eras of
 * 400 years. */
static void put_time(struct psm_text *t)
{
    int64_t now = (int64_t)(psm_wall_ns() / 1000000000u) + zone_seconds;
    int64_t days = now / 86400, second = now % 86400;
    int64_t z = days + 719468, era = z / 146097, doe = z - era * 146097;
    int64_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    int64_t doy = doe - (365 * yoe + yoe / 4 - yoe / 100), mp = (5 * doy + 2) / 153;
    int64_t month = mp < 10 ? mp + 3 : mp - 9, year = yoe + era * 400 + (month <= 2);
    psm_text_literal(t, "[", 1);
    psm_text_int(t, year);
    psm_text_literal(t, "-", 1);
    put_two(t, (int)month);
    psm_text_literal(t, "-", 1);
    put_two(t, (int)(doy - (153 * mp + 2) / 5 + 1));
    psm_text_literal(t, " ", 1);
    put_two(t, (int)(second / 3600));
    psm_text_literal(t, ":", 1);
    put_two(t, (int)(second / 60 % 60));
    psm_text_literal(t, ":", 1);
    put_two(t, (int)(second % 60));
    psm_text_literal(t, "] ", 2);
}

void psm_log_write(enum psm_level level, const char *text, size_t n)
{
    if (psm_log_enabled(level)) psm_log_put(level, text, n);
}

void psm_log_put(enum psm_level level, const char *text, size_t n)
{
    int error = errno;
    char line[PREFIX_SIZE + PSM_LINE_SIZE];
    const struct psm_proc *proc = psm_proc_self();
    struct psm_text t = {line, 0, sizeof line - 1, 0};
    if (level == PSM_LEVEL_WARN) {
        psm_text_literal(&t, "\n", 1);
        put_time(&t);
    }
    psm_text_literal(&t, proc->host, strlen(proc->host));
    psm_text_literal(&t, ":", 1);
    psm_text_int(&t, proc->pid);
    psm_text_literal(&t, ":", 1);
    psm_text_int(&t, psm_tid());
    psm_text_literal(&t, " [", 2);
    psm_text_int(&t, psm_log_device());
    if (level == PSM_LEVEL_WARN)
        psm_text_literal(&t, "] NCCL WARN ", 12);
    else if (level == PSM_LEVEL_TRACE)
        psm_text_literal(&t, "] NCCL TRACE ", 13);
    else
        psm_text_literal(&t, "] NCCL INFO ", 12);
    psm_text_literal(&t, text, n < t.size - t.n ? n : t.size - t.n);
    line[t.n++] = '\n';
    if (lock()) {
        deliver(line, t.n);
        unlock();
    } else {
        write_all(STDERR_FILENO, line, t.n);
    }
    errno = error;
}

void psm_log_flush(void)
{
    if (!lock()) return;
    const char *name = getenv("NCCL_DEBUG_FILE");
    if (kept_bytes) flush_kept(name && *name && find_nccls(name) ? nccls.fd : STDERR_FILENO);
    unlock();
}

/* Runs after the destructors of the object that links this: they print their last lines. */
__attribute__((destructor(101))) static void flush_at_exit(void)
{
    psm_log_flush();
}
