/* psm_net_drive LIB VERSION CHECK...: a rank. Its runner is psmkit, through PSM_LAB_SOCKET; the ranks map the file
 * PSM_DRIVE_STATE.
 * --list names the checks, --tables LIB the versions that the library has. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base.h"
#include "bootstrap.h"
#include "drive.h"
#include "psm_abi_versions.h"

struct driver d;
static char said[800]; /* of the check that runs: a note, or why it was skipped */
static bool skipping;

/* ---- reports ---- */

static char *put_text(char *out, char *limit, const char *text)
{
    *out++ = '"';
    for (; *text && out < limit - 8; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 32 || c > 126 || c == '"' || c == '\\')
            out += sprintf(out, "\\u%04x", c);
        else
            *out++ = (char)c;
    }
    *out++ = '"';
    return out;
}

static void send_report(const char *outcome, const char *kind, const char *text, uint64_t took)
{
    char line[8192], *limit = line + sizeof line - 256, *at = line;
    struct slot *slot = d.slots + d.rank;
    at += sprintf(at, "report {\"check\": \"%s\", \"outcome\": \"%s\", \"kind\": \"%s\", \"seconds\": %.6f, \"call\": ",
                  slot->check, outcome, kind, (double)took * 1e-9);
    at = put_text(at, limit, slot->call);
    /* An error after another rank has gone is usually its consequence. */
    bool after = false;
    for (int r = 0; r < d.ranks; r++) after |= r != d.rank && atomic_load(&d.slots[r].failed);
    at += sprintf(at, ", \"after\": %s, \"host\": %s, \"text\": ", after ? "true" : "false",
                  d.devices && !(d.props.ptrSupport & NCCL_PTR_CUDA) ? "true" : "false");
    at = put_text(at, limit, text);
    at += sprintf(at, "}\n");
    lab_send_line(line, (size_t)(at - line));
}

_Noreturn void failed(const char *kind, const char *format, ...)
{
    char text[1000];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    /* First this: ranks that wait for this one then stop waiting. */
    atomic_store(&d.slots[d.rank].failed, 1);
    send_report("failed", kind, text, 0);
    /* No destructors and no exit handlers: the plugin is in the middle of a call. */
    _exit(1);
}

_Noreturn void left(void)
{
    send_report("left", "", "another rank failed", 0);
    _exit(1);
}

void skipped(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(said, sizeof said, format, arguments);
    va_end(arguments);
    skipping = true;
}

void note(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(said, sizeof said, format, arguments);
    va_end(arguments);
}

static void report_check(uint64_t begun)
{
    send_report(skipping ? "skipped" : "passed", "", said, psm_clock_ns() - begun);
    skipping = false;
    said[0] = 0;
}

const char *result_name(ncclResult_t result)
{
    static const char *const names[] = {PSM_ABI_RESULT_NAMES};
    static char other[32];
    if ((unsigned)result < sizeof names / sizeof names[0]) return names[result];
    snprintf(other, sizeof other, "result %d", (int)result);
    return other;
}

void ok(ncclResult_t result, const char *call)
{
    if (result != ncclSuccess) failed("contract", "%s returned %s", call, result_name(result));
}

/* ---- the other ranks ---- */

void meet(void)
{
    if (lab_meet(d.slots[d.rank].check, false) > 0) left();
}

/* Ends the process if another rank has failed or died; called while waiting for it. */
static void look_at_others(void)
{
    for (int r = 0; r < d.ranks; r++)
        if (r != d.rank && (atomic_load(&d.slots[r].failed) || (kill(d.slots[r].pid, 0) != 0 && errno == ESRCH)))
            left();
}

struct patience patience(void)
{
    return (struct patience){.last = psm_clock_ns()};
}

bool too_long(struct patience *p)
{
    sched_yield();
    if (++p->turns % 64 != 0) return false;
    look_at_others();
    return psm_clock_ns() - p->last > d.timeout_ns;
}

/* ---- start ---- */

static const struct check *const all_checks[] = {setup_checks, data_checks, device_checks, coll_checks, more_checks};

static const struct check *find(const char *name)
{
    for (size_t i = 0; i < sizeof all_checks / sizeof all_checks[0]; i++)
        for (const struct check *c = all_checks[i]; c->name; c++)
            if (strcmp(c->name, name) == 0) return c;
    return NULL;
}

static long setting(const char *name, long low, long high)
{
    const char *text = getenv(name);
    char *rest;
    long value = text ? strtol(text, &rest, 10) : -1;
    if (!text || !*text || *rest || value < low || value > high) {
        fprintf(stderr,
                "psm_net_drive: %s is %s; expected a number from %ld to %ld. psmkit plugin drive starts this program\n",
                name, text ? text : "not set", low, high);
        exit(2);
    }
    return value;
}

static void map_state(void)
{
    const char *path = getenv("PSM_DRIVE_STATE");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *at =
        fd < 0 ? MAP_FAILED : mmap(NULL, (size_t)d.ranks * SLOT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) {
        fprintf(stderr, "psm_net_drive: PSM_DRIVE_STATE, %s: %s\n", path ? path : "not set", strerror(errno));
        exit(2);
    }
    close(fd);
    d.slots = at;
}

/* The available versions, as a process that loads the library sees them. */
static int tables(const char *path)
{
    d.path = path;
    d.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!d.library) {
        printf("error %s\n", dlerror());
        return 0;
    }
    for (d.version = PSM_ABI_NET_LAST; d.version >= PSM_ABI_NET_FIRST; d.version--)
        if (table_find()) printf("table %d\n", d.version);
    printf("end\n");
    fflush(stdout);
    _exit(0);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < sizeof all_checks / sizeof all_checks[0]; i++)
            for (const struct check *c = all_checks[i]; c->name; c++) printf("%s %d\n", c->name, c->since);
        return 0;
    }
    if (argc == 3 && strcmp(argv[1], "--tables") == 0) return tables(argv[2]);
    if (argc < 4) {
        fprintf(stderr, "usage: psm_net_drive LIB VERSION CHECK... (psmkit plugin drive starts this program)\n");
        return 2;
    }
    _Static_assert(sizeof(struct slot) == SLOT_BYTES, "psmkit reads slots of this size, without gaps");
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    d.path = argv[1];
    d.version = atoi(argv[2]);
    d.cuda = getenv("PSM_DRIVE_CUDA");
    d.rank = (int)setting("PSM_RANK", 0, MAX_RANKS - 1);
    d.ranks = (int)setting("PSM_RANKS", 2, MAX_RANKS);
    d.timeout_ns = (uint64_t)setting("PSM_DRIVE_TIMEOUT_MS", 1, 3600000) * 1000000u;
    int fd = (int)setting("PSM_LAB_SOCKET", 0, 1 << 20);
    unsetenv("PSM_LAB_SOCKET"); /* for processes that the plugin may start */
    map_state();
    lab_connect(fd, d.rank, d.ranks);
    d.slots[d.rank].pid = getpid();
    watch_start();
    lab_meet("start", false);
    for (int i = 3; i < argc; i++) {
        const struct check *c = find(argv[i]);
        struct slot *slot = d.slots + d.rank;
        if (!c) {
            fprintf(stderr, "psm_net_drive: there is no check %s\n", argv[i]);
            return 2;
        }
        strncpy(slot->check, c->name, sizeof slot->check - 1);
        memset(slot->call, 0, sizeof slot->call);
        lab_stage(c->name);
        fprintf(stderr, "CHECK %s\n", c->name);
        uint64_t begun = psm_clock_ns();
        if (d.version < c->since)
            skipped("from version %d on", c->since);
        else
            c->run();
        forget_requests();
        report_check(begun);
        meet();
    }
    memset(d.slots[d.rank].check, 0, sizeof d.slots[d.rank].check);
    return 0;
}
