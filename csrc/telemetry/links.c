/* Transfers between two ranks: steps of proxy ops, of both ends. */
#include <math.h>
#include <string.h>

#include "consumer.h"

/* Time in each state: from entering it to entering the next one, or to the stop. */
static void add_waits(const struct psm_prof_event *e, uint64_t *wait)
{
    uint64_t at[4] = {e->u.proxy_step.gpu_ns, e->u.proxy_step.peer_ns, e->u.proxy_step.net_ns,
                      e->u.proxy_step.flush_ns};
    int order[4], n = 0;
    for (int i = 0; i < 4; i++) {
        if (!at[i]) continue;
        int k = n++;
        for (; k > 0 && at[order[k - 1]] > at[i]; k--) order[k] = order[k - 1];
        order[k] = i;
    }
    for (int k = 0; k < n; k++) {
        uint64_t end = k + 1 < n ? at[order[k + 1]] : e->stop_ns;
        if (end > at[order[k]]) wait[order[k]] += end - at[order[k]];
    }
}

static struct tel_key link_key(const struct tel_comm *c, int32_t peer, uint32_t channel, bool sends)
{
    return (struct tel_key){(uint64_t)c->seen.id << 32 | (uint32_t)peer, (uint64_t)channel << 1 | sends};
}

enum { ALL_CHANNELS = 0xffff };

static uint32_t place_link(struct psm_tel *tel, struct tel_comm *c, struct tel_key key, int32_t peer, int32_t channel,
                           bool sends, bool *fresh)
{
    uint32_t at = tel_table_place(&tel->links, key, fresh);
    if (at == TEL_NONE || !*fresh) return at;
    struct tel_link *l = tel_table_at(&tel->links, at);
    l->face.comm = c->seen.id;
    l->face.rank = c->head.rank;
    l->face.peer = peer;
    l->face.channel = channel;
    l->face.sends = sends;
    return at;
}

static uint32_t link_of(struct psm_tel *tel, struct tel_comm *c, const struct psm_prof_event *e)
{
    bool sends = e->flags & PSM_PROF_SENDS, fresh;
    int32_t peer = e->u.proxy_step.peer;
    if (peer < 0) return TEL_NONE; /* the row of its proxy op was lost */
    struct tel_key key = link_key(c, peer, e->u.proxy_step.channel, sends);
    if (tel->links.n && key.a == tel->last_link.a && key.b == tel->last_link.b && tel->last_link_at != TEL_NONE)
        return tel->last_link_at;
    /* The sum over all channels gets its item before the first of them, so that it is complete when there is no room.
     */
    uint32_t total = place_link(tel, c, link_key(c, peer, ALL_CHANNELS, sends), peer, -1, sends, &fresh);
    uint32_t at = total;
    if (total != TEL_NONE) {
        uint32_t own = place_link(tel, c, key, peer, e->u.proxy_step.channel, sends, &fresh);
        if (own != TEL_NONE) {
            at = own;
            ((struct tel_link *)tel_table_at(&tel->links, at))->total = total + 1;
        }
    }
    tel->last_link = key;
    tel->last_link_at = at;
    return at;
}

/* The least time of each size, over all channels of a link. */
static void note_least(struct psm_tel *tel, uint32_t place, struct tel_link *l, uint64_t bytes, uint64_t time)
{
    uint32_t link = l->total ? l->total - 1 : place;
    struct tel_least *least = l->least_at ? tel_table_at(&tel->leasts, l->least_at - 1) : NULL;
    if (!least || least->bytes != bytes) {
        bool fresh;
        uint32_t at = tel_table_place(&tel->leasts, (struct tel_key){link, bytes}, &fresh);
        if (at == TEL_NONE) {
            tel->losses.sizes++;
            return;
        }
        l->least_at = at + 1;
        least = tel_table_at(&tel->leasts, at);
        if (fresh) *least = (struct tel_least){bytes, time, link};
    }
    if (time < least->time) least->time = time;
}

void tel_count_step(struct psm_tel *tel, struct tel_comm *c, const struct psm_prof_event *e, uint64_t *time)
{
    uint32_t place = link_of(tel, c, e);
    struct tel_link *l = place == TEL_NONE ? &tel->other_link : tel_table_at(&tel->links, place);
    struct psm_tel_link *f = &l->face;
    add_waits(e, f->wait);
    uint64_t begin = e->u.proxy_step.net_ns, bytes = e->u.proxy_step.bytes;
    *time = UINT64_MAX;
    if (place == TEL_NONE) tel->losses.other++;
    if (!begin || e->stop_ns < begin) return;
    *time = e->stop_ns - begin;
    double x = (double)bytes, y = (double)*time;
    f->count++;
    f->bytes += bytes;
    f->time += *time;
    f->sx += x;
    f->sy += y;
    f->sxx += x * x;
    f->sxy += x * y;
    f->syy += y * y;
    tel_stat_add(&f->latency, *time);
    if (place != TEL_NONE) note_least(tel, place, l, bytes, *time);
}

static void add_link(struct psm_tel_link *to, const struct psm_tel_link *from)
{
    to->count += from->count;
    to->bytes += from->bytes;
    to->time += from->time;
    to->sx += from->sx;
    to->sy += from->sy;
    to->sxx += from->sxx;
    to->sxy += from->sxy;
    to->syy += from->syy;
    for (int i = 0; i < 4; i++) to->wait[i] += from->wait[i];
    tel_stat_merge(&to->latency, &from->latency);
}

/* Called once before links are taken: computes the sums over channels, and those over the least times. */
void tel_links_total(struct psm_tel *tel)
{
    for (uint32_t i = 0; i < tel->links.n; i++) {
        const struct tel_link *l = tel_table_at(&tel->links, i);
        if (l->total) add_link(&((struct tel_link *)tel_table_at(&tel->links, l->total - 1))->face, &l->face);
    }
    for (uint32_t i = 0; i < tel->leasts.n; i++) {
        const struct tel_least *least = tel_table_at(&tel->leasts, i);
        struct psm_tel_link *f = &((struct tel_link *)tel_table_at(&tel->links, least->link))->face;
        double x = (double)least->bytes, y = (double)least->time;
        f->mcount++;
        f->mx += x;
        f->my += y;
        f->mxx += x * x;
        f->mxy += x * y;
        f->myy += y * y;
    }
}

/* No link between two GPUs is faster: NVLink 6 has 1.8 TB/s in each direction. */
#define MOST_RATE 4000.0 /* bytes/ns */
#define LEAST_R2  0.5

static int why_not(const struct psm_tel_fit *fit)
{
    return !isfinite(fit->rate) || !isfinite(fit->latency) ? PSM_TEL_FIT_ONE_SIZE
           : fit->rate <= 0                                ? PSM_TEL_FIT_FALLING
           : fit->rate > MOST_RATE                         ? PSM_TEL_FIT_RATE
           : fit->r2 < LEAST_R2                            ? PSM_TEL_FIT_SCATTER
           : fit->latency < 0                              ? PSM_TEL_FIT_LATENCY
                                                           : PSM_TEL_FIT_GOOD;
}

void psm_tel_fit(double n, double sx, double sy, double sxx, double sxy, double syy, struct psm_tel_fit *fit)
{
    double across = n * sxx - sx * sx, up = n * syy - sy * sy, both = n * sxy - sx * sy;
    *fit = (struct psm_tel_fit){.why = PSM_TEL_FIT_ONE_SIZE};
    /* All of one size: the remaining difference is rounding. */
    if (!(n > 0) || !(across > 1e-12 * n * sxx)) return;
    fit->latency = (sy - both / across * sx) / n;
    fit->rate = both > 0 ? across / both : 0;
    fit->r2 = up > 0 ? fmin(both * both / (across * up), 1) : 1;
    fit->why = why_not(fit);
    if (fit->why == PSM_TEL_FIT_ONE_SIZE) *fit = (struct psm_tel_fit){.why = PSM_TEL_FIT_ONE_SIZE};
}
