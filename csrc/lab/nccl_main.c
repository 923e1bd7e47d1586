/* psm_nccl_rank: reads cases from standard input, runs them on a NCCL library together with the other ranks, reports
 * each as a line of JSON.
 *
 *   PSM_LAB_SOCKET=FD PSM_RANK=R PSM_RANKS=N psm_nccl_rank LIBNCCL < CASES
 *
 * Exit status: 0 all cases good, 1 one failed, 2 it was called wrongly or the library cannot be used, 3 the runner is
 * gone. */
#define _GNU_SOURCE
#include <execinfo.h>
#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fault.h"
#include "nccl_rank.h"
#include "rank.h"

static void put_text(FILE *out, const char *key, const char *text)
{
    fprintf(out, ",\"%s\":\"", key);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c < 0x20 || c >= 0x7f)
            fprintf(out, "\\u%04x", c);
        else
            fputc(c, out);
    }
    fputc('"', out);
}

/* What became of a case, or what has failed in it so far. */
static void send_outcome(const char *word, const struct nccl_outcome *o)
{
    char *line = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&line, &n);
    if (!out) return;
    fprintf(out, "%s {\"protocol\":1", word);
    put_text(out, "name", o->c->name);
    fprintf(out, ",\"rank\":%d", o->rank);
    put_text(out, "status", o->status);
    put_text(out, "stage", o->stage);
    put_text(out, "by", o->by);
    put_text(out, "text", o->text);
    fprintf(out, ",\"wrong\":%llu,\"wrong_from\":%d,\"wrong_iter\":%llu,\"wrong_offset\":%llu",
            (unsigned long long)o->wrong, o->wrong_from, (unsigned long long)o->wrong_iter,
            (unsigned long long)o->wrong_offset);
    fprintf(out, ",\"bytes\":%llu,\"groups\":%llu", (unsigned long long)o->bytes, (unsigned long long)o->iters);
    fprintf(out, ",\"setup_seconds\":%.6f,\"move_seconds\":%.6f,\"seconds\":%.6f}\n", o->setup_seconds, o->move_seconds,
            o->seconds);
    if (fclose(out) == 0) lab_send_line(line, n);
    free(line);
}

void nccl_report(const struct nccl_outcome *o)
{
    send_outcome("report", o);
}

void nccl_trouble(const struct nccl_outcome *o)
{
    send_outcome("trouble", o);
}

/* ---- where it crashed ---- */

static int stacks = -1;

static void crashed(int signal_number)
{
    void *frames[64];
    int n = backtrace(frames, 64);
    backtrace_symbols_fd(frames + 1, n - 1, stacks);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

/* The runner names a file for the rank's own stack. */
static void tell_of_crashes(void)
{
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};
    const char *name = getenv("PSM_LAB_STACKS");
    char *copy = name ? strdup(name) : NULL;
    if (!copy) return;
    mkdir(dirname(copy), 0777);
    free(copy);
    stacks = open(name, O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND, 0666);
    if (stacks < 0) return;
    void *frame;
    (void)backtrace(&frame, 1); /* it loads a library when it is first called */
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        /* Once: a crash in the handler ends the process. A thread's stack may be small; NCCL's are not. */
        struct sigaction action = {.sa_handler = crashed, .sa_flags = SA_RESETHAND | SA_NODEFER};
        sigaction(numbers[i], &action, NULL);
    }
}

static int number(const char *name, int low)
{
    const char *text = getenv(name);
    char *end;
    long value = text ? strtol(text, &end, 10) : -1;
    if (text && *text && !*end && value >= low && value <= 1 << 20) return (int)value;
    fprintf(stderr, "psm_nccl_rank: %s is \"%s\"; expected a number from %d. `psmkit lab nccl` starts this program\n",
            name, text ? text : "", low);
    exit(2);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "psm_nccl_rank: expected the path of a libnccl.so. `psmkit lab nccl` starts this program\n");
        return 2;
    }
    int fd = number("PSM_LAB_SOCKET", 3), rank = number("PSM_RANK", 0), ranks = number("PSM_RANKS", 1);
    static struct nccl_api api;
    struct nccl_case c;
    char wrong[700];
    int more;
    /* A runner that is killed leaves no ranks behind; its debugger may look into this process. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    tell_of_crashes();
    lab_connect(fd, rank, ranks);
    if (!nccl_load(&api, argv[1], wrong, sizeof wrong)) {
        fprintf(stderr, "psm_nccl_rank: rank %d: %s\n", rank, wrong);
        return 2;
    }
    while ((more = nccl_case_read(&c, ranks, wrong, sizeof wrong)) > 0) {
        struct nccl_outcome outcome;
        char name[80];
        nccl_run(&api, &c, rank, ranks, &outcome);
        nccl_report(&outcome);
        if (outcome.stuck) {
            fflush(NULL);
            _Exit(1); /* the end of the process would wait for it, too */
        }
        if (strcmp(outcome.status, "PSM_OK") != 0) return 1;
        snprintf(name, sizeof name, "case-%.60s", c.name);
        if (lab_meet(name, false) > 0) return 0; /* the others' failure; what was asked of this one so far is done */
    }
    if (more < 0) {
        fprintf(stderr, "psm_nccl_rank: rank %d: %s\n", rank, wrong);
        return 2;
    }
    return 0;
}
