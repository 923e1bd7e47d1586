/* The variants: the right one, the wrong ones of the issue, and small wrong ones, so that no rule is a check that
 * cannot fail. */
#include <pthread.h>
#include <string.h>

#include "plan/plan.h"

#define LEGACY 1
#define BOTH   3

static const struct plan_variant all[] = {
    {.name = {"coll-first", "collectives are planned first, p2p when none is left: the right one", "", 0, BOTH}},
    {.name = {"p2p-first", "p2p is planned first, so that plans are cut where p2p ends, which differs between ranks",
              "p2p.first", 1, BOTH},
     .order = PLAN_P2P_FIRST},
    {.name = {"prescheduled-p2p",
              "p2p is taken out before the first plan (preScheduleP2pUseNokernel): with collectives "
              "in the group nobody launches it, nobody posts its ops, nobody takes it back",
              "reclaim.never", 1, BOTH},
     .order = PLAN_P2P_PRESCHEDULED},
    {.name = {"reclaim-early", "a plan is freed as soon as its reclaimer is polled, whatever still runs",
              "reclaim.early", 1, BOTH},
     .reclaim_early = true},
    {.name = {"reclaim-twice", "LaunchKernelAfter enqueues the reclaimer, and hostStreamPlanTask does, too",
              "reclaim.twice", 1, BOTH},
     .reclaim_twice = true},
    {.name = {"lost-callback", "the host function of a PassSM plan is not launched: its ops never get ready",
              "callback.lost", 1, BOTH},
     .lose_callback = true},
    {.name = {"count-all-ops", "the sync condition counts all ops, those of collectives too, which never count it off",
              "count.mismatch", 1, BOTH},
     .count_all_ops = true},
    {.name = {"free-in-callback", "the host function frees the sync condition: a graph that is launched again meets it",
              "freed.touched", 1, BOTH},
     .free_in_callback = true},
    {.name = {"cuda-in-barrier", "streams are asked for between the barrier and the launch", "barrier.cuda", 1, BOTH},
     .cuda_in_barrier = true},
    {.name = {"keep-scope", "launch finish does not pop the scoped stack", "scope.kept", 1, BOTH}, .keep_scope = true},
    {.name = {"unbalanced-refs", "a persistent plan is reclaimed without its reference", "refs.unbalanced", 1, BOTH},
     .unbalanced_refs = true},
    {.name = {"lose-ops", "a reclaimed plan does not give its ops back to their pool", "pool.lost", 1, BOTH},
     .lose_ops = true},
    {.name = {"lose-reclaimer", "hostStreamPlanTask does not enqueue the reclaimer", "reclaim.never", 1, BOTH},
     .lose_reclaimer = true},
    {.name = {"after-enqueues", "LaunchKernelAfter enqueues reclaimers of plans that have proxy ops",
              "reclaim.enqueuer", 1, BOTH},
     .after_enqueues = true},
    {.name = {"leave-early", "the host function comes back without waiting for the count", "count.left", 1, BOTH},
     .leave_early = true},
    {.name = {"count-twice", "an op counts the sync condition off twice", "count.below", 1, BOTH}, .count_twice = true},
    {.name = {"newest-first", "callbacks run in the order of the queue's list: last come first", "fifo.order", 1, BOTH},
     .newest_first = true},
    {.name = {"keep-opcount", "the history of p2p opCounts is not advanced behind a plan", "op.order", 1, BOTH},
     .keep_opcount = true},
    {.name = {"keep-holds", "registrations of buffers that a plan holds are not given back with it", "hold.lost", 1,
              BOTH},
     .keep_holds = true},
    {.name = {"no-device-wait", "the launch stream does not wait for the device stream: kernels of two groups overlap",
              "stream.before", 1, BOTH},
     .no_device_wait = true},
    {.name = {"no-user-wait",
              "nothing waits for the other user streams of a group: the kernel reads buffers that are being written",
              "stream.before", 1, BOTH},
     .no_user_wait = true},
    {.name = {"no-host-wait",
              "the launch stream does not wait for the host stream: kernels run before their ops are posted",
              "stream.before", 1, BOTH},
     .no_host_wait = true},
    {.name = {"no-wait-after", "nothing waits for the launch stream behind a launch", "stream.after", 1, BOTH},
     .no_wait_after = true},
    {.name = {"odd-cluster", "the size of clusters is kept where it does not divide the grid: the launch fails",
              "launch.attributes", 1, BOTH},
     .odd_cluster = true},
    {.name = {"no-last", "the last slot of a channel has no isLast: the kernel runs on into other slots", "work.header",
              1, LEGACY},
     .no_last = true},
    {.name = {"no-in-fifo", "the last slot of a channel has no inFifo: the kernel never gives the slots back",
              "work.header", 1, LEGACY},
     .no_in_fifo = true},
};
enum { NVARIANTS = sizeof all / sizeof *all };

const struct plan_variant *psm_plan_find_variant(const char *name)
{
    if (!name) return &all[0];
    for (size_t i = 0; i < NVARIANTS; i++)
        if (strcmp(all[i].name.name, name) == 0) return &all[i];
    return NULL;
}

static struct psmPlanVariant names[NVARIANTS];

static void make_names(void)
{
    for (size_t i = 0; i < NVARIANTS; i++) names[i] = all[i].name;
}

size_t psmPlanVariants(const struct psmPlanVariant **variants)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_names);
    *variants = names;
    return NVARIANTS;
}
