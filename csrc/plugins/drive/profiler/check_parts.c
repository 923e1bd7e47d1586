/* What several checks do: communicators, and whole operations. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "profiler_drive.h"

struct comm check_comm(int number, int rank, int ranks)
{
    struct comm c = {.hash = UINT64_C(0x9f3c11d2a0b40000) + (uint64_t)number, .rank = rank, .ranks = ranks, .nodes = 1};
    snprintf(c.name, sizeof c.name, "comm-%d", number);
    c.unnamed = number % 2 != 0; /* most users set no name */
    return c;
}

struct comm check_opened(int number)
{
    struct comm c = check_comm(number, 0, 4);
    if (!p_init(&c)) failed("contract", "init returned an error: NCCL continues without the profiler");
    return c;
}

void check_need(uint64_t kinds, const char *what)
{
    for (int i = 0; i < EVENT_TYPES; i++)
        if (kinds >> i & 1 && asked((uint32_t)d.mask, i)) return;
    skipped("the mask, 0x%x, does not enable %s", (unsigned)d.mask, what);
}

struct op *check_room(void)
{
    static struct op *ops;
    if (!ops) ops = calloc(OPS, sizeof *ops);
    if (!ops) abort();
    return ops;
}

void check_whole(struct comm *c, int colls, int p2ps, struct op *ops)
{
    static _Thread_local struct plan plan;
    plan_begin(&plan, c);
    for (int i = 0; i < colls; i++) plan_coll(&plan, i % 3 ? "AllReduce" : "AllGather", (uint64_t)1 << (i % 20 + 4), 2);
    for (int i = 0; i < p2ps; i++) plan_p2p(&plan, i % 2 == 0, 1 + i % 3, 4096);
    if (d.version >= 6) plan_ce(&plan, 1 << 20);
    memset(ops, 0, sizeof *ops * OPS);
    int n = plan_launch(&plan, ops, OPS);
    plan_end(&plan);
    control(c, true, 0);
    control(c, false, n);
    ops_run(ops, n);
}
