/* A program with the macros of plan_trace.h and nothing else of psmkit, for test_plan_trace.py. C and C++. */
#include "psm/plan_trace.h"

#include <signal.h>
#include <sys/wait.h>

enum { THREADS = 2, GROUPS = 500 };

struct comm {
    int rank;
    char plans[4];
};

/* A group with one plan. wrong: its reclaimer is enqueued twice. */
static void group(struct comm *comm, char *plan, int wrong)
{
    static int posted;
    PSM_TRACE_PREPARE(comm, comm->rank, 0x1234, 1, 1, 0);
    PSM_TRACE_NEW_PLAN(comm, plan);
    PSM_TRACE_MADE(comm, plan, 15, 1, 0);
    PSM_TRACE_ORDERED(comm, PSM_TRACE_ON_LAUNCH, PSM_TRACE_ON_DEVICE);
    PSM_TRACE_PREPARED(comm, 1, 1, 1);
    PSM_TRACE_BARRIER(comm);
    PSM_TRACE_LAUNCHED(comm, plan, 1, 0, 0);
    PSM_TRACE_HOST_TASK(comm, plan, 0);
    PSM_TRACE_OP_POSTED(comm, plan, 2 * posted++, 0, PSM_TRACE_COPIED);
    PSM_TRACE_RECLAIMER(comm, plan, PSM_TRACE_BY_HOST_TASK);
    if (wrong) PSM_TRACE_RECLAIMER(comm, plan, PSM_TRACE_BY_HOST_TASK);
    PSM_TRACE_ORDERED(comm, PSM_TRACE_ON_DEVICE, PSM_TRACE_ON_LAUNCH);
    PSM_TRACE_FINISH(comm, 1, 0);
    PSM_TRACE_RECLAIM(comm, plan);
}

/* Groups over the same plan's memory, as a pool gives it out again and again. */
static void *groups(void *of)
{
    struct comm *comm = (struct comm *)of;
    for (int i = 0; i < GROUPS; i++) {
        PSM_TRACE_PREPARE(comm, comm->rank, 0x1234, 1, 1, 0);
        PSM_TRACE_NEW_PLAN(comm, comm->plans);
        PSM_TRACE_MADE(comm, comm->plans, 15, 0, 1);
        PSM_TRACE_PREPARED(comm, 1, 1, 0);
        PSM_TRACE_LAUNCHED(comm, comm->plans, 1, 0, 0);
        PSM_TRACE_HOST_TASK(comm, comm->plans, 0);
        PSM_TRACE_RECLAIMER(comm, comm->plans, PSM_TRACE_BY_HOST_TASK);
        PSM_TRACE_RECLAIM(comm, comm->plans);
        PSM_TRACE_FINISH(comm, 1, 0);
    }
    PSM_TRACE_DESTROY(comm, 0, 0, 0);
    return NULL;
}

static int evaluated;
static int counted(void)
{
    return ++evaluated;
}

int main(int argc, char **argv)
{
    struct comm comms[THREADS] = {{0, {0}}, {1, {0}}};
    const char *mode = argc > 1 ? argv[1] : "";
    if (strcmp(mode, "off") == 0) {
        PSM_TRACE_ABORT((counted(), &comms[0]));
        printf("%d\n", evaluated);
        return 0;
    }
    if (strcmp(mode, "threads") == 0) {
        pthread_t threads[THREADS];
        for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, groups, &comms[i]);
        for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
        return 0;
    }
    group(&comms[0], &comms[0].plans[0], 0);
    group(&comms[0], &comms[0].plans[1], strcmp(mode, "wrong") == 0);
    group(&comms[0], &comms[0].plans[0], 0);
    if (strcmp(mode, "killed") == 0) raise(SIGKILL);
    if (strcmp(mode, "fork") == 0) {
        pid_t child = fork();
        if (child == 0) {
            group(&comms[0], &comms[0].plans[2], 0);
            exit(0);
        }
        waitpid(child, NULL, 0);
    }
    if (strcmp(mode, "freed") == 0) PSM_TRACE_TOUCHED(&comms[0], &comms[0].plans[1], 2);
    if (strcmp(mode, "unknown") == 0) { /* a plan that nobody made, and a communicator without a group */
        PSM_TRACE_NEW_PLAN(&comms[0], &comms[0].plans[0]);
        PSM_TRACE_CANCELLED(&comms[0], &comms[0].plans[0]);
        PSM_TRACE_RECLAIM(&comms[0], &comms[0].plans[3]);
        PSM_TRACE_DESTROY(&comms[1], 1, 1, 1);
    }
    PSM_TRACE_DESTROY(&comms[0], 0, 0, 0);
    return 0;
}
