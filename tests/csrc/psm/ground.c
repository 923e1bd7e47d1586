/* The ground of libpsm, told what to do on standard input: a command a line, an answer a line. Answers begin with "ok",
 * or are "err STATUS|errno|cuda|rank|peer|op_id|stage|text". */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/internal.h"
#include "psm_cuda.h"
#include "psm_lib_messages.h"
#include "shm/header.h"
#include "shm/line.h"
#include "shm/segment.h"

enum { SEGMENTS = 64, WORDS = 8 };
static struct psm_segment segments[SEGMENTS];

static void say_error(void)
{
    const struct psm_error *e = psm_last_error();
    printf("err %s|%d|%d|%d|%d|%" PRIx64 "|%s|%s\n", psm_status_name(e->status), e->sys_errno, e->cuda, e->rank,
           e->peer, e->op_id, e->stage, e->text);
}

static void say_hex(const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) printf("%02x", ((const unsigned char *)bytes)[i]);
}

static size_t read_hex(const char *text, void *bytes, size_t size)
{
    size_t n = 0;
    unsigned value;
    for (; n < size && sscanf(text + 2 * n, "%2x", &value) == 1; n++)
        ((unsigned char *)bytes)[n] = (unsigned char)value;
    return n;
}

static int free_slot(void)
{
    for (int i = 0; i < SEGMENTS; i++)
        if (!segments[i].mapping) return i;
    abort();
}

static void create(char **w)
{
    int slot = free_slot();
    if (psm_segment_create(&segments[slot], atoi(w[1]), strtoull(w[2], NULL, 0), w[3]) != PSM_OK) {
        say_error();
        return;
    }
    struct psm_share share;
    psm_segment_share(&segments[slot], &share);
    printf("ok %d %d %016" PRIx64 " ", slot, segments[slot].fd, segments[slot].id);
    say_hex(&share, sizeof share);
    printf("\n");
}

static void attach(const char *share_text, int fd)
{
    struct psm_share share;
    memset(&share, 0, sizeof share);
    read_hex(share_text, &share, sizeof share);
    int slot = free_slot();
    psm_status status = psm_segment_attach(&segments[slot], &share, fd);
    if (status == PSM_OK)
        printf("ok %d %" PRIu64 "\n", slot, segments[slot].size);
    else
        say_error();
    if (status == PSM_OK && segments[slot].size) /* both ends must be there */
        ((volatile char *)segments[slot].data)[segments[slot].size - 1] += 0;
}

/* A file whose first bytes are anything: a memfd with these seals, or (name given) a file in the folder. */
static void forge(char **w)
{
    unsigned char head[PSM_SEGMENT_HEADER] = {0};
    size_t n = read_hex(w[1], head, sizeof head);
    off_t size = (off_t)strtoull(w[2], NULL, 0);
    int fd = memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, size) != 0) abort();
    if ((off_t)n > size) n = (size_t)size;
    if (pwrite(fd, head, n, 0) != (ssize_t)n || fcntl(fd, F_ADD_SEALS, atoi(w[3])) != 0) abort();
    attach(w[4], fd);
    close(fd);
}

static long count_lines(const char *path, const char *word)
{
    FILE *f = fopen(path, "r");
    char line[4096];
    long n = 0;
    while (f && fgets(line, sizeof line, f)) n += strstr(line, word) != NULL;
    if (f) fclose(f);
    return n;
}

static long descriptors(void)
{
    long n = 0;
    for (int fd = 0; fd < 1024; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void list(void)
{
    struct psm_segment_info info[16];
    size_t count;
    if (psm_segments_list(info, 16, &count) != PSM_OK) {
        say_error();
        return;
    }
    printf("ok %zu", count);
    for (size_t i = 0; i < count && i < 16; i++)
        printf(" %s,%s,%" PRIu64 ",%" PRIu32 ",%" PRIu32, info[i].name, info[i].label, info[i].size, info[i].owner_pid,
               info[i].owner);
    printf("\n");
}

static void settings(void)
{
    struct psm_settings s = {.size = sizeof s};
    if (psm_settings_read(&s) != PSM_OK)
        say_error();
    else
        printf("ok %u %u %u %" PRIu64 " %u %u %u %u\n", s.timeout_ms, s.stall_report_ms, s.steps, s.buffer_size,
               s.share, s.zero_copy, s.channels, s.spin_us);
}

/* A caller built when the struct ended behind its third field. */
static void old_settings(void)
{
    struct psm_settings s;
    memset(&s, 0x5a, sizeof s);
    s.size = 12;
    psm_status status = psm_settings_read(&s);
    const unsigned char *behind = (const unsigned char *)&s + 12;
    size_t kept = 0;
    while (kept < sizeof s - 12 && behind[kept] == 0x5a) kept++;
    printf("ok %s %u %u %d\n", psm_status_name(status), s.size, s.timeout_ms, kept == sizeof s - 12);
}

static void *other_thread(void *arg)
{
    psm_fail(PSM_ERR_TIMEOUT, "other", 1, 2, 3, "of the other thread");
    *(struct psm_error *)arg = *psm_last_error();
    return NULL;
}

static void errors(void)
{
    pthread_t thread;
    struct psm_error theirs;
    psm_fail(PSM_ERR_MISMATCH, "connect", 3, 4, 0x12, "steps %d and %d", 8, 16);
    if (pthread_create(&thread, NULL, other_thread, &theirs) != 0) abort();
    pthread_join(thread, NULL);
    say_error();
    psm_fail_again(&theirs);
    say_error();
    psm_fail(PSM_ERR_SYSTEM, "", -1, -1, 0, "again: %s", psm_last_error()->text);
    psm_fail_at("getfd", 7, 8, 9);
    say_error();
    char text[600];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    psm_fail_errno(EMFILE, "init", -1, -1, "%s", text);
    say_error();
}

static void names(void)
{
    printf("ok");
    for (int status = -64; status <= 8; status++)
        printf(" %s", psm_status_name((psm_status)status)[0] == 'u' ? "-" : psm_status_name((psm_status)status));
    printf("\n");
}

static void cuda(void)
{
    const struct psm_cuda *table = psm_cuda_get();
    if (!table) {
        say_error();
        return;
    }
    void *memory = NULL;
    int count = 0;
    cudaError_t rc = table->cudaGetDeviceCount(&count);
    if (rc == 0) rc = table->cudaMalloc(&memory, 4096);
    if (rc == 0) rc = table->cudaFree(memory);
    printf("ok %s %d %d %d %d %d\n", table->path, table->runtime_version, table->driver_version, rc,
           table->cuMemCreate != NULL, table == psm_cuda_get());
}

static void in_child(char **w)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        psm_segment_close(&segments[atoi(w[1])]);
        _exit(0);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    printf("ok %d\n", status);
}

static void deadline(char **w)
{
    struct psm_deadline never = {0}, past = {1}, soon = psm_deadline_in((uint32_t)strtoul(w[1], NULL, 10));
    printf("ok %d %d %d %d %d %d\n", psm_deadline_left_ms(never), psm_deadline_passed(never),
           psm_deadline_left_ms(past), psm_deadline_passed(past), psm_deadline_left_ms(soon),
           psm_deadline_passed(soon));
}

/* Threads that make segments, attach each other's and give them up, all at once. */
enum { THREADS = 4, ROUNDS = 200 };
static struct psm_share common;

static void *busy(void *failed)
{
    for (int i = 0; i < ROUNDS; i++) {
        struct psm_segment own, theirs, again;
        struct psm_share share;
        psm_status status = psm_segment_create(&own, i % 2 ? PSM_SHARE_MEMFD : PSM_SHARE_POSIX, 64, "busy");
        if (status == PSM_OK) {
            psm_segment_share(&own, &share);
            status = psm_segment_attach(&again, &share, -1);
            if (status == PSM_OK) psm_line_store(again.data, (uint64_t)i);
            if (status == PSM_OK && psm_line_load(own.data) != (uint64_t)i) abort();
        }
        if (status == PSM_OK) status = psm_segment_attach(&theirs, &common, -1);
        if (status != PSM_OK) {
            *(psm_status *)failed = status;
            return NULL;
        }
        psm_line_swap(theirs.data, psm_random64());
        psm_segment_close(&own);
        psm_segment_close(&theirs);
        psm_segment_close(&again);
        if (psm_settings_read(&(struct psm_settings){.size = sizeof(struct psm_settings)}) != PSM_OK) abort();
    }
    return NULL;
}

static void threads(void)
{
    struct psm_segment segment;
    pthread_t thread[THREADS];
    psm_status failed[THREADS] = {PSM_OK};
    if (psm_segment_create(&segment, PSM_SHARE_MEMFD, 64, "common") != PSM_OK) abort();
    psm_segment_share(&segment, &common);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&thread[i], NULL, busy, &failed[i]) != 0) abort();
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    psm_segment_close(&segment);
    for (int i = 0; i < THREADS; i++)
        if (failed[i] != PSM_OK) {
            printf("err a thread failed: %s\n", psm_status_name(failed[i]));
            return;
        }
    printf("ok\n");
}

static struct psm_line *line_of(char **w)
{
    return (struct psm_line *)segments[atoi(w[1])].data + atoi(w[2]);
}

static void obey(int n, char **w)
{
    const char *what = w[0];
    if (!strcmp(what, "create") && n == 4) {
        create(w);
    } else if (!strcmp(what, "attach") && n == 3) {
        int fd = *w[2] == '-' ? -1 : open(w[2], O_RDWR | O_CLOEXEC);
        attach(w[1], fd);
        if (fd >= 0) close(fd);
    } else if (!strcmp(what, "forge") && n == 5) {
        forge(w);
    } else if (!strcmp(what, "close") && n == 2) {
        psm_segment_close(&segments[atoi(w[1])]);
        printf("ok\n");
    } else if (!strcmp(what, "close-in-child") && n == 2) {
        in_child(w);
    } else if (!strcmp(what, "store") && n == 4) {
        psm_line_store(line_of(w), strtoull(w[3], NULL, 0));
        printf("ok\n");
    } else if (!strcmp(what, "load") && n == 3) {
        printf("ok %" PRIu64 "\n", psm_line_load(line_of(w)));
    } else if (!strcmp(what, "swap") && n == 4) {
        printf("ok %" PRIu64 "\n", psm_line_swap(line_of(w), strtoull(w[3], NULL, 0)));
    } else if (!strcmp(what, "threads")) {
        threads();
    } else if (!strcmp(what, "list")) {
        list();
    } else if (!strcmp(what, "prune")) {
        size_t removed;
        if (psm_segments_prune(&removed) == PSM_OK)
            printf("ok %zu\n", removed);
        else
            say_error();
    } else if (!strcmp(what, "held")) {
        printf("ok %ld %ld\n", descriptors(), count_lines("/proc/self/maps", "psm-"));
    } else if (!strcmp(what, "setenv") && n >= 2) {
        printf("ok %d\n", n == 3 ? setenv(w[1], w[2], 1) : unsetenv(w[1]));
    } else if (!strcmp(what, "settings")) {
        settings();
    } else if (!strcmp(what, "old-settings")) {
        old_settings();
    } else if (!strcmp(what, "errors")) {
        errors();
    } else if (!strcmp(what, "names")) {
        names();
    } else if (!strcmp(what, "cuda")) {
        cuda();
    } else if (!strcmp(what, "cuda-error") && n == 2) {
        psm_cuda_fail(atoi(w[1]), "send", 2, 3, "cudaMemcpyAsync(%d)", 5);
        say_error();
    } else if (!strcmp(what, "deadline") && n == 2) {
        deadline(w);
    } else if (!strcmp(what, "random")) {
        printf("ok %016" PRIx64 "\n", psm_random64());
    } else if (!strcmp(what, "filter")) {
        uint32_t filter = psm_log_read_filter();
        printf("ok %u %u\n", filter >> 16, filter & 0xffff);
    } else if (!strcmp(what, "trace")) {
        psm_log_read_filter();
        if (psm_log_on(PSM_LEVEL_TRACE, PSM_SUB_P2P)) psm_log_put(PSM_LEVEL_TRACE, "a trace", 7);
        printf("ok\n");
    } else {
        printf("err unknown command %s\n", what);
    }
}

int main(void)
{
    static char line[65536];
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        char *words[WORDS], *rest = line;
        int n = 0;
        while (n < WORDS && (words[n] = strtok_r(rest, " \n", &rest))) n++;
        if (n) obey(n, words);
        fflush(stdout);
    }
    for (int i = 0; i < SEGMENTS; i++) psm_segment_close(&segments[i]);
    return 0;
}
