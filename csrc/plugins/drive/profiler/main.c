/* psm_profiler_drive LIB VERSION CHECK [STREAM]: one check, reported as a line of JSON. --list names the checks,
   --tables LIB the versions that the library has. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "profiler_drive.h"

struct drive d;
static int out = -1;
static char said[600], weakness[600], warning[300];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static size_t put_text(char *to, size_t size, const char *key, const char *text)
{
    size_t n = (size_t)snprintf(to, size, ", \"%s\": \"", key);
    for (; *text && n + 10 < size; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 32 || c > 126 || c == '"' || c == '\\')
            n += (size_t)sprintf(to + n, "\\u%04x", c);
        else
            to[n++] = (char)c;
    }
    to[n++] = '"';
    return n;
}

/* Also called by the fault handler: no lock, no allocation. */
static void report(const char *outcome, const char *kind, const char *text)
{
    static _Atomic int done;
    char line[6000];
    if (atomic_exchange(&done, 1)) _exit(1); /* another thread was first */
    size_t n = (size_t)snprintf(line, sizeof line,
                                "{\"check\": \"%s\", \"outcome\": \"%s\", \"kind\": \"%s\", \"events\": %" PRIu64
                                ", \"refused\": %" PRIu64 ", \"seconds\": %.6f",
                                d.check, outcome, kind, (uint64_t)d.starts, (uint64_t)d.nulls,
                                (double)(now_ns() - d.begun) * 1e-9);
    n += put_text(line + n, 3200, "text", text);
    n += put_text(line + n, 1600, "warning", warning);
    line[n++] = '}';
    line[n++] = '\n';
    for (size_t at = 0; at < n;) {
        ssize_t w = write(out, line + at, n - at);
        if (w <= 0) break;
        at += (size_t)w;
    }
}

_Noreturn void failed(const char *kind, const char *format, ...)
{
    char text[900];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    report("failed", kind, text);
    /* No destructors: the profiler is in the middle of a call. */
    _exit(0);
}

_Noreturn void skipped(const char *format, ...)
{
    char text[600];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    report("skipped", "", text);
    _exit(0);
}

void note(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(said, sizeof said, format, arguments);
    va_end(arguments);
}

void weak(const char *format, ...)
{
    if (weakness[0]) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(weakness, sizeof weakness, format, arguments);
    va_end(arguments);
}

void logger(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *format, ...)
{
    static const char *const words[] = {"NONE", "VERSION", "WARN", "INFO", "ABORT", "TRACE"};
    char text[sizeof warning];
    (void)flags;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "%s %s:%d %s\n", (unsigned)level < 6 ? words[level] : "?", file ? file : "?", line, text);
    if (level != NCCL_LOG_WARN) return;
    pthread_mutex_lock(&lock);
    memcpy(warning, text, sizeof warning);
    pthread_mutex_unlock(&lock);
}

/* The checker's breaches: those of the profiler fail the check; those of NCCL occur only where the check causes them.
 */
static void breach(void *unused, const struct contract_breach *b)
{
    (void)unused;
    if (b->note) return;
    if (b->by_plugin) failed("contract", "%s in %s: %s; event: %s", b->name, b->call, b->text, b->ancestry);
    if (b->rule == RULE_NEVER_STOPPED && d.open_at_end) return;
    if (!d.foreign_calls)
        failed("driver", "psm_profiler_drive broke the contract itself, %s in %s: %s; event: %s", b->name, b->call,
               b->text, b->ancestry);
}

void load_again(void)
{
    d.library = dlopen(d.path, RTLD_NOW | RTLD_LOCAL);
    if (!d.library) failed("contract", "it cannot be loaded: %s", dlerror());
    if (!table_find(d.version)) failed("contract", "dlsym finds no ncclProfiler_v%d", d.version);
}

/* The available versions, as a process that loads the library sees them. */
static int tables(const char *path)
{
    d.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!d.library) {
        printf("error %s\n", dlerror());
        return 0;
    }
    for (int v = PROFILER_VERSIONS; v >= 1; v--)
        if (table_find(v)) printf("table %d\n", v);
    printf("end\n");
    fflush(stdout);
    _exit(0);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--tables") == 0) return tables(argv[2]);
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (const struct check *c = checks; c->name; c++) printf("%s\n", c->name);
        return 0;
    }
    const char *timeout = getenv("PSM_DRIVE_TIMEOUT_MS");
    const struct check *check = checks;
    while (argc >= 4 && check->name && strcmp(check->name, argv[3]) != 0) check++;
    if (argc < 4 || !check->name || atoi(argv[2]) < 1 || atoi(argv[2]) > PROFILER_VERSIONS) {
        fprintf(stderr,
                "usage: psm_profiler_drive LIB VERSION CHECK [STREAM], with a version from 1 to %d and a check of "
                "--list. psmkit plugin drive starts this\n",
                PROFILER_VERSIONS);
        return 2;
    }
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    /* The profiler may print. */
    out = dup(1);
    dup2(2, 1);
    d.path = argv[1];
    d.version = atoi(argv[2]);
    d.check = check->name;
    d.stream = argc > 4 ? argv[4] : NULL;
    d.timeout_ns = (uint64_t)(timeout ? strtoull(timeout, NULL, 10) : 20000) * 1000000u;
    /* After a finalize that blocked, the other checks do not call it. */
    d.leave_open = getenv("PSM_DRIVE_LEAVE_OPEN") != NULL;
    d.begun = now_ns();
    d.contract = contract_new(d.version, breach, NULL);
    if (!d.contract || out < 0) return 2;
    watch_start();
    load_again();
    check->run();
    if (weakness[0])
        report("failed", "weak", weakness);
    else
        report("passed", "", said);
    /* As NCCL's process ends: what the profiler left to the exit happens. */
    return 0;
}
