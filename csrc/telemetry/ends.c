/* When an event began and when it ended. Nothing else decides it: sums, spans, raw rows, recordings and pictures use
 * these times. */
#include <string.h>

#include "consumer.h"

#define DRIFT_PPM UINT64_C(200)       /* of the GPU's timer against CLOCK_MONOTONIC, at most */
#define STEP_NS   INT64_C(1000000000) /* a larger change is neither: the timer was set */

static bool is_timed(const struct psm_prof_event *e)
{
    return e->u.kernel_ch.gpu_begin_ns && e->u.kernel_ch.gpu_end_ns >= e->u.kernel_ch.gpu_begin_ns;
}
#define SAME_PLACE(member)                                                                                             \
    (offsetof(struct psm_prof_event, u.kernel_ch.member) == offsetof(struct psm_prof_event, u.kernel_phase.member))
_Static_assert(SAME_PLACE(gpu_begin_ns) && SAME_PLACE(gpu_end_ns), "is_timed takes both");

void tel_kernel_ended(struct tel_kernels *kernels, const struct psm_prof_event *e)
{
    if (e->type != PSM_PROF_KERNEL_CH || !tel_stopped(e) || !is_timed(e)) return;
    kernels->n++;
    if (e->u.kernel_ch.gpu_end_ns > kernels->gpu_end_ns) kernels->gpu_end_ns = e->u.kernel_ch.gpu_end_ns;
}

/* CLOCK_MONOTONIC minus the GPU's timer. The proxy thread notices both ends of a kernel late, by a varying delay: the
 * least difference is the best estimate. The clocks drift, so each window has its own. One in which all ends were
 * noticed later than drift explains keeps the estimate of an earlier window. */
static void pair_clocks(struct tel_comm *c, int64_t least, uint64_t at_ns)
{
    if (least == INT64_MAX) return;
    uint64_t since = at_ns > c->paired_ns ? at_ns - c->paired_ns : 0;
    int64_t most = c->gpu_offset + (int64_t)(since / 1000000 * DRIFT_PPM);
    if (c->paired && least > most && least - most < STEP_NS) return;
    c->paired = true;
    c->gpu_offset = least;
    c->paired_ns = at_ns;
}

void tel_kernels_of(struct tel_batch *b)
{
    int64_t least = INT64_MAX;
    uint64_t at_ns = 0;
    if (b->n) memset(b->side, 0, (size_t)b->n * sizeof *b->side);
    for (uint32_t i = 0; i < b->n; i++) {
        const struct psm_prof_event *e = &b->rows[i].event;
        if (e->type != PSM_PROF_KERNEL_CH || !tel_live(b, i)) continue;
        int64_t at = (int64_t)(b->rows[i].start_ns - e->u.kernel_ch.gpu_begin_ns);
        if (e->u.kernel_ch.gpu_begin_ns && at < least) least = at, at_ns = b->rows[i].start_ns;
        at = (int64_t)(e->stop_ns - e->u.kernel_ch.gpu_end_ns);
        if (tel_stopped(e) && e->u.kernel_ch.gpu_end_ns && at < least) least = at, at_ns = e->stop_ns;
        uint32_t op = tel_local(b, e->parent);
        if (op != TEL_NONE) tel_kernel_ended(&b->side[op].kernels, e);
    }
    pair_clocks(b->c, least, at_ns);
}

/* A time of the GPU by the host's clock, which noticed it no earlier; 0: the clocks are not paired. */
static uint64_t by_host(const struct tel_comm *c, uint64_t gpu_ns, uint64_t noticed_ns)
{
    if (!c || !c->paired) return 0;
    uint64_t at_ns = gpu_ns + (uint64_t)c->gpu_offset;
    return at_ns < noticed_ns ? at_ns : noticed_ns;
}

static struct tel_times times_of_op(const struct tel_comm *c, uint64_t start_ns, const struct psm_prof_event *e,
                                    const struct tel_kernels *kernels)
{
    struct tel_times t = {.begin_ns = start_ns, .by = PSM_TEL_BY_NOTHING};
    if (tel_is_open(e) || e->flags & PSM_PROF_CHILD_LOST) return t;
    bool coll = e->type == PSM_PROF_COLL, ce = e->type == PSM_PROF_CE_COLL;
    uint64_t done = ce ? e->u.ce.end_ns : coll ? e->u.coll.done_ns : e->u.p2p.done_ns;
    uint16_t ops = coll ? e->u.coll.ops_ended : e->u.p2p.ops_ended;
    uint16_t ended = coll ? e->u.coll.kernels_ended : e->u.p2p.kernels_ended;
    if (!done || !(ce || ops || ended)) {
        t.end_ns = e->stop_ns;
        t.by = PSM_TEL_BY_ENQUEUE;
        return t;
    }
    t.end_ns = done;
    t.by = ce ? PSM_TEL_BY_CE : ops ? PSM_TEL_BY_PROXY : PSM_TEL_BY_KERNEL;
    /* The stream goes on when the kernel has ended. The proxy thread looks later, at its own ops, too. */
    uint64_t gpu = !ce && kernels && kernels->n && kernels->n == ended ? by_host(c, kernels->gpu_end_ns, done) : 0;
    if (gpu > start_ns) {
        t.end_ns = gpu;
        t.by = PSM_TEL_BY_KERNEL;
    }
    return t;
}

struct tel_times tel_times_of(const struct tel_comm *c, uint64_t start_ns, const struct psm_prof_event *e,
                              const struct tel_kernels *kernels)
{
    if (tel_is_op(e)) return times_of_op(c, start_ns, e, kernels);
    struct tel_times t = {.begin_ns = start_ns, .end_ns = tel_stopped(e) ? e->stop_ns : 0};
    bool gpus = (e->type == PSM_PROF_KERNEL_CH || e->type == PSM_PROF_KERNEL_PHASE) && is_timed(e);
    uint64_t begin = gpus ? by_host(c, e->u.kernel_ch.gpu_begin_ns, start_ns) : 0;
    if (!begin || !t.end_ns) return t;
    t.begin_ns = begin;
    t.end_ns = by_host(c, e->u.kernel_ch.gpu_end_ns, t.end_ns);
    return t;
}

void psm_tel_row_times(struct psm_tel_row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct psm_prof_event e;
        memcpy(&e, rows[i].event, sizeof e);
        tel_set_times(&rows[i], tel_times_of(NULL, rows[i].start_ns, &e, NULL));
    }
}
