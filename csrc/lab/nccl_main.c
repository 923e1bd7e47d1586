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
#include <sys/stat.h>
#include <unistd.h>

#include "nccl_rank.h"

/* What became of a case, or what has failed in it so far. */
static void send_outcome(const char *word, const struct nccl_outcome *outcome)
{
    struct lab_report report;
    lab_report_begin(&report, word, &outcome->o, outcome->status, outcome->text);
    lab_report_end(&report);
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

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "psm_nccl_rank: expected the path of a libnccl.so. `psmkit lab nccl` starts this program\n");
        return 2;
    }
    struct lab_place here = lab_place("psm_nccl_rank", "psmkit lab nccl");
    static struct nccl_api api;
    struct nccl_case c;
    char wrong[700];
    int more;
    lab_tie_to_runner();
    tell_of_crashes();
    lab_connect(here.fd, here.rank, here.ranks);
    if (!nccl_load(&api, argv[1], wrong, sizeof wrong)) {
        fprintf(stderr, "psm_nccl_rank: rank %d: %s\n", here.rank, wrong);
        return 2;
    }
    while ((more = nccl_case_read(&c, here.ranks, wrong, sizeof wrong)) > 0) {
        struct nccl_outcome outcome;
        nccl_run(&api, &c, here.rank, here.ranks, &outcome);
        nccl_report(&outcome);
        nccl_tasks_free(&c);
        if (outcome.stuck) {
            fflush(NULL);
            _Exit(1); /* the end of the process would wait for it, too */
        }
        if (strcmp(outcome.status, "PSM_OK") != 0) return 1;
        if (lab_meet_after(&c.task) > 0) return 0; /* the others' failure; what was asked of this one so far is done */
    }
    if (more < 0) {
        fprintf(stderr, "psm_nccl_rank: rank %d: %s\n", here.rank, wrong);
        return 2;
    }
    return 0;
}
