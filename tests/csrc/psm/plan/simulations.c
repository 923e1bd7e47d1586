/* Simulations of task mixes that seeds make: what rules break, how often. Under sanitizers.
 *
 *   simulations VARIANT SCHEDULER SEEDS [abort=1] [wild=1] [ranks=N] [first=SEED]
 *
 * wild: steps that nobody would take, in any order; what hangs or is refused is one more end.
 *
 * Prints JSON: runs, stuck, events, and for each rule in how many runs it broke; "first": the first breach of all. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "psm/psm_plan.h"

enum { STEPS = 512, RULES = 64 };

static uint64_t state;
static uint64_t random_of(uint64_t n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (state >> 33) % n;
}

static struct psmPlanStep steps[STEPS];
static uint64_t nsteps;

static void add(int kind, int rank, int func, int peer, uint64_t count)
{
    if (nsteps == STEPS) abort();
    steps[nsteps] = (struct psmPlanStep){.kind = kind, .rank = rank};
    steps[nsteps].task = (struct psmPlanTask){.func = func, .peer = peer, .datatype = 7, .count = count};
    steps[nsteps].task.sendbuff = (void *)(0x1000000 + nsteps * 0x1000);
    steps[nsteps].task.recvbuff = (void *)(0x9000000 + nsteps * 0x1000);
    nsteps++;
}

static void group(int ranks, int tasks)
{
    static const uint64_t counts[] = {8, 1000, 100000, 1 << 20};
    for (int i = 0; i < tasks; i++)
        if (random_of(2))
            add(PSM_PLAN_STEP_TASK, -1, PSM_PLAN_ALLREDUCE, 0, counts[random_of(4)]);
        else {
            int from = (int)random_of((uint64_t)ranks), to = (int)random_of((uint64_t)ranks);
            uint64_t count = counts[random_of(3)];
            add(PSM_PLAN_STEP_TASK, from, PSM_PLAN_SEND, to, count);
            add(PSM_PLAN_STEP_TASK, to, PSM_PLAN_RECV, from, count);
        }
    add(PSM_PLAN_STEP_GROUP_END, -1, 0, 0, 0);
}

/* Groups, one of them in a graph that is launched twice, and one behind it while its plans live. */
static void make_steps(int ranks, int tasks, int abort_at)
{
    nsteps = 0;
    group(ranks, tasks);
    if (abort_at == 0) add(PSM_PLAN_STEP_ABORT, -1, 0, 0, 0);
    group(ranks, tasks);
    add(PSM_PLAN_STEP_POLL, -1, 0, 0, random_of(2));
    if (abort_at == 1) add(PSM_PLAN_STEP_ABORT, -1, 0, 0, 0);
    add(PSM_PLAN_STEP_CAPTURE, -1, 0, 0, 0);
    group(ranks, tasks);
    if (abort_at == 2) add(PSM_PLAN_STEP_ABORT, -1, 0, 0, 0);
    add(PSM_PLAN_STEP_CAPTURED, -1, 0, 0, 0);
    add(PSM_PLAN_STEP_REPLAY, -1, 0, 0, 2);
    if (abort_at == 3) add(PSM_PLAN_STEP_ABORT, -1, 0, 0, 0);
    group(ranks, tasks);
    add(PSM_PLAN_STEP_DROP_GRAPH, -1, 0, 0, 0);
    if (abort_at == 4) add(PSM_PLAN_STEP_ABORT, -1, 0, 0, 0);
    group(ranks, tasks);
    if (abort_at == 5) add(PSM_PLAN_STEP_ABORT, -1, 0, 0, 0);
}

static void wild_steps(int ranks)
{
    nsteps = 0;
    for (uint64_t i = 5 + random_of(60); i > 0; i--) {
        int kind = random_of(3) ? PSM_PLAN_STEP_TASK : (int)random_of(PSM_PLAN_STEP_ABORT + (random_of(20) == 0));
        int rank = random_of(4) ? -1 : (int)random_of((uint64_t)ranks), peer = (int)random_of((uint64_t)ranks);
        static const int funcs[] = {PSM_PLAN_BROADCAST, PSM_PLAN_REDUCE,    PSM_PLAN_ALLGATHER, PSM_PLAN_REDUCESCATTER,
                                    PSM_PLAN_ALLREDUCE, PSM_PLAN_ALLREDUCE, PSM_PLAN_SEND,      PSM_PLAN_RECV};
        uint64_t count = kind == PSM_PLAN_STEP_TASK ? random_of(3) * 100000 : random_of(3);
        int func = funcs[random_of(8)];
        if (func >= PSM_PLAN_SEND && random_of(50)) { /* to the own rank there have to be both, or it is refused */
            rank = (int)random_of((uint64_t)ranks);
            peer = (rank + 1 + (int)random_of((uint64_t)ranks - 1)) % ranks;
        }
        if (kind == PSM_PLAN_STEP_CAPTURE && random_of(10)) add(PSM_PLAN_STEP_GROUP_END, -1, 0, 0, 0);
        add(kind, rank, func, peer, count);
        if (random_of(10) == 0) add(PSM_PLAN_STEP_GROUP_END, -1, 0, 0, 0);
    }
}

static uint64_t option(int argc, char **argv, const char *name, uint64_t otherwise)
{
    for (int i = 4; i < argc; i++)
        if (strncmp(argv[i], name, strlen(name)) == 0 && argv[i][strlen(name)] == '=')
            return strtoull(argv[i] + strlen(name) + 1, NULL, 10);
    return otherwise;
}

static const struct psmPlanRule *rules;
static size_t nrules;

/* Counts the rules that a simulation breaks, and keeps the first breach of all in text. */
static void count(const psmPlanResult *result, uint64_t seed, uint64_t *broken, char *text, size_t room)
{
    const struct psmPlanBreach *breaches;
    size_t n = psmPlanResultBreaches(result, &breaches);
    for (size_t k = 0; k < nrules; k++)
        for (size_t i = 0; i < n; i++)
            if (strcmp(breaches[i].rule, rules[k].name) == 0) {
                broken[k]++;
                break;
            }
    if (n > 0 && !*text)
        snprintf(text, room, "seed %" PRIu64 " rank %d: %s: %s", seed, breaches[0].rank, breaches[0].rule,
                 breaches[0].text);
}

int main(int argc, char **argv)
{
    if (argc < 4) return 2;
    nrules = psmPlanRules(&rules);
    uint64_t broken[RULES] = {0}, stuck = 0, events = 0, seeds = strtoull(argv[3], NULL, 10);
    uint64_t from = option(argc, argv, "first", 0), aborts = option(argc, argv, "abort", 0);
    uint64_t wild = option(argc, argv, "wild", 0), refused = 0;
    char first[400] = "";
    for (uint64_t seed = from; seed < from + seeds; seed++) {
        state = seed * 7919 + 1;
        int ranks = (int)option(argc, argv, "ranks", 2 + random_of(4));
        if (wild)
            wild_steps(ranks);
        else
            make_steps(ranks, 2 + (int)random_of(8), aborts ? (int)random_of(6) : -1);
        struct psmPlanSimulation what = {.size = sizeof what, .seed = seed, .steps = steps, .nsteps = nsteps};
        what.config = (struct psmPlanConfig){.size = sizeof what.config,
                                             .nRanks = ranks,
                                             .nNodes = 1,
                                             .scheduler = atoi(argv[2]),
                                             .nChannels = 1 + (int)random_of(4),
                                             .p2pnChannels = 4,
                                             .p2pnChannelsPerPeer = 2,
                                             .passSm = wild ? (int)random_of(2) : 1,
                                             .launchBlocking = (int)random_of(2),
                                             .workFifoDepth = 32,
                                             .workFifoBytes = 1024,
                                             .workArgsBytes = 256,
                                             .compCap = 90,
                                             .cgaClusterSize = 4,
                                             .variant = argv[1]};
        psmPlanResult *result;
        if (psmPlanSimulate(&what, &result) < 0) {
            refused++;
            if (wild && psm_last_error()->status == PSM_ERR_INVALID) continue;
            fprintf(stderr, "seed %" PRIu64 ": %s\n", seed, psm_last_error()->text);
            return 1;
        }
        count(result, seed, broken, first, sizeof first);
        stuck += (uint64_t)psmPlanResultStuck(result);
        events += psmPlanResultOrder(result, &(const int32_t *){NULL});
        psmPlanResultFree(result);
    }
    printf("{\"runs\": %" PRIu64 ", \"refused\": %" PRIu64 ", \"stuck\": %" PRIu64, seeds, refused, stuck);
    printf(", \"events\": %" PRIu64 ", \"broken\": {", events);
    const char *comma = "";
    for (size_t k = 0; k < nrules; k++)
        if (broken[k]) {
            printf("%s\"%s\": %" PRIu64, comma, rules[k].name, broken[k]);
            comma = ", ";
        }
    printf("}, \"first\": \"%s\"}\n", first);
    return 0;
}
