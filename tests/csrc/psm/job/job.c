#define _GNU_SOURCE
#include "job/job.h"

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct job job = {
    .ranks = 2, .iters = 2, .lone = -1, .aborts = -1, .differ = -1, .stream = "nonblocking", .differs = ""};
struct job_meeting *job_meeting;

const char *job_value(const char *argument, const char *name)
{
    size_t n = strlen(name);
    return strncmp(argument, name, n) == 0 && argument[n] == '=' ? argument + n + 1 : NULL;
}

void job_argument(char *argument)
{
    static const struct {
        const char *name;
        int *value;
    } numbers[] = {{"ranks", &job.ranks}, {"iters", &job.iters},  {"one_way", &job.one_way},
                   {"lone", &job.lone},   {"abort", &job.aborts}, {"differ", &job.differ}};
    const char *value;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if ((value = job_value(argument, numbers[i].name))) *numbers[i].value = atoi(value);
    if ((value = job_value(argument, "stream"))) job.stream = value;
    if ((value = job_value(argument, "variant"))) job.variant = value;
    if ((value = job_value(argument, "differ"))) job.differs = strchr(value, ':') + 1;
    if (!job_value(argument, "sizes")) return;
    for (char *at = strtok(strchr(argument, '=') + 1, ","); at && job.nsizes < JOB_SIZES; at = strtok(NULL, ","))
        job.sizes[job.nsizes++] = strtoull(at, NULL, 0);
}

void *job_share(size_t size)
{
    job_meeting = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (job_meeting == MAP_FAILED) exit(3);
    return job_meeting;
}

void job_say(const struct job_rank *r, const char *what, psm_status status)
{
    const struct psm_error *e = psm_last_error();
    printf("rank %d %s %s|%s|%s\n", r->rank, what, psm_status_name(status), status ? e->stage : "",
           status ? e->text : "");
    fflush(stdout);
}

bool job_meet(void)
{
    static _Thread_local int number;
    uint64_t end = psm_clock_ns() + 60000000000u;
    atomic_fetch_add(&job_meeting->arrived, 1);
    for (number += job.ranks; atomic_load(&job_meeting->arrived) < number; sched_yield())
        if (atomic_load(&job_meeting->failed) || psm_clock_ns() > end) return false;
    return true;
}

bool job_pair(int from, int to)
{
    return from != to && (!job.one_way || from == 0);
}

bool job_differs(const struct job_rank *r, const char *what)
{
    return r->rank == job.differ && strcmp(job.differs, what) == 0;
}

/* ---- data ---- */

static uint8_t byte_of(int from, int to, int iter, uint64_t at)
{
    uint64_t x = at * 0x9e3779b97f4a7c15u ^ (uint64_t)(from * 131 + to * 17 + iter * 7919);
    return (uint8_t)(x >> 32 ^ x >> 11);
}

uint64_t job_largest(void)
{
    uint64_t most = 1;
    for (int i = 0; i < job.nsizes; i++) most = job.sizes[i] > most ? job.sizes[i] : most;
    return most + job.around;
}

void job_fill(const struct job_rank *r, int to, uint8_t *out, uint8_t *in, int iter, uint64_t offset, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++) r->check[i] = byte_of(r->rank, to, iter, i);
    if (bytes) JOB_CUDA(r, cudaMemcpy(out + offset, r->check, bytes, cudaMemcpyDefault));
    /* It does not wait, and other streams do not wait for it. */
    JOB_CUDA(r, cudaMemset(in, JOB_UNTOUCHED, job_largest()));
    JOB_CUDA(r, cudaStreamSynchronize(NULL));
}

psm_status job_compare(const struct job_rank *r, int from, const uint8_t *in, int iter, uint64_t offset, uint64_t bytes)
{
    uint64_t all = job_largest();
    JOB_CUDA(r, cudaMemcpy(r->check, in, all, cudaMemcpyDefault));
    for (uint64_t i = 0; i < all; i++) {
        bool inside = i >= offset && i - offset < bytes;
        uint8_t meant = inside ? byte_of(from, r->rank, iter, i - offset) : JOB_UNTOUCHED;
        if (r->check[i] == meant) continue;
        printf("rank %d WRONG DATA from %d, iter %d, %llu bytes: byte %llu is %02x, expected %02x\n", r->rank, from,
               iter, (unsigned long long)bytes, (unsigned long long)i, r->check[i], meant);
        return PSM_ERR_INTERNAL;
    }
    return PSM_OK;
}

/* ---- a rank ---- */

void job_open(struct job_rank *r)
{
    struct psm_settings settings = {.size = sizeof settings};
    psm_status status = psm_settings_read(&settings);
    r->cuda = psm_cuda_get();
    if (status != PSM_OK || !r->cuda) {
        job_say(r, "settings", psm_last_error()->status);
        exit(3);
    }
    JOB_CUDA(r, cudaSetDevice(r->device));
    status = end_open(r->rank, job.ranks, r->device, &settings, &job_meeting->places[r->rank], &r->end);
    if (status != PSM_OK || !job_meet()) exit(3);
    end_meet(&r->end, job_meeting->places, job.ranks);
}

void job_prepare(struct job_rank *r)
{
    unsigned flags = strcmp(job.stream, "nonblocking") == 0 ? cudaStreamNonBlocking : 0;
    if (strcmp(job.stream, "legacy") != 0) JOB_CUDA(r, cudaStreamCreateWithFlags(&r->stream, flags));
    r->check = malloc(job_largest());
}

void job_close(struct job_rank *r)
{
    if (r->stream) JOB_CUDA(r, cudaStreamDestroy(r->stream));
    free(r->check);
    end_close(&r->end);
}

psm_status job_group(struct job_rank *r, const struct psmGroupOp *ops, size_t n)
{
    psmGroup *group;
    JOB_OK(r, "launch", psmGroupLaunch(r->end.state, r->stream, ops, n, &group));
    if (r->rank == job.aborts) end_abort(&r->end);
    psm_status status = psmGroupWait(group);
    if (status != PSM_OK) job_say(r, "group", status);
    psm_status freed = psmGroupFree(group);
    if (freed != PSM_OK) job_say(r, "groupfree", freed);
    JOB_CUDA(r, cudaStreamSynchronize(r->stream));
    return status;
}

void job_over(psm_status status)
{
    if (status != PSM_OK)
        atomic_store(&job_meeting->failed, 1);
    else
        job_meet();
}

/* ---- processes ---- */

/* hostcuda has descriptors and mappings of its own. */
static bool ours(const char *what)
{
    return (strstr(what, "memfd:") && !strstr(what, "hostcuda")) || strstr(what, "socket:");
}

static int left_descriptors(void)
{
    int n = 0;
    char line[300], target[300];
    DIR *d = opendir("/proc/self/fd");
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(line, sizeof line, "/proc/self/fd/%s", e->d_name);
        ssize_t got = readlink(line, target, sizeof target - 1);
        target[got > 0 ? got : 0] = 0;
        n += ours(target);
    }
    if (d) closedir(d);
    return n;
}

static int left_mappings(void)
{
    int n = 0;
    char line[512];
    FILE *f = fopen("/proc/self/maps", "r");
    while (f && fgets(line, sizeof line, f)) n += ours(line);
    if (f) fclose(f);
    return n;
}

void job_say_left(void)
{
    printf("left %d descriptors, %d mappings\n", left_descriptors(), left_mappings());
    fflush(stdout);
}

int job_fork(int (*work)(int rank))
{
    pid_t pids[END_RANKS];
    int worst = 0;
    for (int i = 0; i < job.ranks; i++) {
        pids[i] = fork();
        if (pids[i] < 0) return 3;
        if (pids[i] == 0) exit(work(i)); /* CUDA begins here */
    }
    for (int i = 0; i < job.ranks; i++) {
        int status;
        waitpid(pids[i], &status, 0);
        if (WIFSIGNALED(status)) {
            printf("rank %d killed by signal %d\n", i, WTERMSIG(status));
            atomic_store(&job_meeting->failed, 1);
        } else if (WEXITSTATUS(status) > worst) {
            worst = WEXITSTATUS(status);
        }
    }
    return worst;
}
