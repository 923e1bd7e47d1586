/* How plans are launched: the order of streams, the attributes of kernels, and the headers by which they find their
 * works.
 */
#include <inttypes.h>

#include "rule_table.h"

void plan_rules_group_begins(struct plan_rules *rules)
{
    for (int i = 0; i < STREAMS; i++) rules->behind[i] = UINT64_C(1) << i;
    rules->streams = rules->behindLaunch = 0;
}

void plan_rules_ordered(struct plan_rules *rules, const struct psmPlanEvent *e)
{
    if (e->a < 0 || e->a >= STREAMS || e->b < 0 || e->b >= STREAMS) return;
    rules->behind[e->a] |= rules->behind[e->b];
    if (rules->behindLaunch >> e->b & 1) rules->behindLaunch |= UINT64_C(1) << e->a;
}

/* The group has n user streams: 0 or very many are not judged. */
void plan_rules_group_has(struct plan_rules *rules, int64_t n)
{
    if (n > 0 && n <= STREAMS - PSM_PLAN_ON_LAUNCH - 1)
        rules->streams = (UINT64_C(1) << PSM_PLAN_ON_DEVICE) | ((UINT64_C(1) << n) - 1) << PSM_PLAN_ON_LAUNCH;
}

static const char *stream_of(uint64_t streams)
{
    return streams >> PSM_PLAN_ON_DEVICE & 1 ? "the device stream" : "another user stream of the group";
}

void plan_rules_host_stream(struct plan_rules *rules, const struct state *s, const struct psmPlanEvent *e)
{
    if (s->onHost && s->overtakesHost)
        plan_rules_broken(rules, STREAM_BEFORE, e,
                          "the host stream runs the host task of plan %" PRIu64
                          ", and the launch stream does not wait for it",
                          e->plan);
}

static void launch_attributes(struct plan_rules *rules, const struct psmPlanEvent *e)
{
    int64_t cluster = e->c & 0xff, grid = e->c >> PSM_PLAN_ATTR_GRID & 0xffff;
    int64_t capability = e->c >> PSM_PLAN_ATTR_CAPABILITY & 0xffff;
    bool spread = e->c & PSM_PLAN_ATTR_SPREAD, remote = e->c & PSM_PLAN_ATTR_REMOTE, modern = capability >= 90;
    if (!capability || !(e->a & 1)) return;
    if (cluster && modern && (cluster > 8 || grid % cluster))
        plan_rules_broken(rules, LAUNCH_ATTRIBUTES, e,
                          "the kernel of plan %" PRIu64 " has clusters of %" PRId64 " blocks and a grid of %" PRId64
                          ": CUDA refuses the launch",
                          e->plan, cluster, grid);
    else if (remote != modern || (cluster && !modern) || spread != (cluster != 0))
        plan_rules_broken(rules, LAUNCH_ATTRIBUTES, e,
                          "the kernel of plan %" PRIu64 " has clusters of %" PRId64
                          " blocks%s and the %s memory domain on compute "
                          "capability %" PRId64 ".%" PRId64,
                          e->plan, cluster, spread ? ", spread," : "", remote ? "remote" : "default", capability / 10,
                          capability % 10);
}

void plan_rules_launched(struct plan_rules *rules, struct state *s, const struct psmPlanEvent *e)
{
    uint64_t missing = rules->streams & ~rules->behind[PSM_PLAN_ON_LAUNCH];
    s->launched = (uint8_t)e->a;
    s->overtakesHost = rules->streams && !(rules->behind[PSM_PLAN_ON_LAUNCH] >> PSM_PLAN_ON_HOST & 1);
    if (missing)
        plan_rules_broken(rules, STREAM_BEFORE, e,
                          "plan %" PRIu64 " is launched, and the launch stream does not wait for %s", e->plan,
                          stream_of(missing));
    else
        plan_rules_host_stream(rules, s, e);
    launch_attributes(rules, e);
    rules->behindLaunch = UINT64_C(1) << PSM_PLAN_ON_LAUNCH;
}

void plan_rules_group_ends(struct plan_rules *rules, const struct psmPlanEvent *e)
{
    uint64_t missing = rules->behindLaunch && e->b == 0 ? rules->streams & ~rules->behindLaunch : 0;
    if (missing)
        plan_rules_broken(rules, STREAM_AFTER, e, "%s does not wait for the launch stream after the launch",
                          stream_of(missing));
    plan_rules_group_begins(rules);
}

void plan_rules_uploaded(struct plan_rules *rules, const struct psmPlanEvent *e)
{
    int64_t found = e->c >> PSM_PLAN_HEADER_SLOTS;
    bool last = e->c & PSM_PLAN_HEADER_LAST, in_fifo = e->c & PSM_PLAN_HEADER_IN_FIFO;
    if (found != e->b || !last)
        plan_rules_broken(rules, WORK_HEADER, e,
                          "a kernel comes to %" PRId64 " of the %" PRId64 " slots of plan %" PRIu64
                          " on channel %" PRId64 "%s",
                          found, e->b, e->plan, e->a, last ? "" : ", and finds no isLast");
    else if (in_fifo != !!(e->c & PSM_PLAN_HEADER_STORED) || !(e->c & PSM_PLAN_HEADER_ACKS))
        plan_rules_broken(
            rules, WORK_HEADER, e,
            "the last slot of plan %" PRIu64 " on channel %" PRId64 " has inFifo %d%s, and the plan is in %s: %s",
            e->plan, e->a, in_fifo, e->c & PSM_PLAN_HEADER_ACKS ? "" : " and the doneAcks of another slot",
            e->c & PSM_PLAN_HEADER_STORED ? "the FIFO" : "memory of its own",
            in_fifo ? "its kernel gives back what is in use" : "its kernel never gives its slots back");
}
