/* An event that is open when its window is taken waits here for its end; one whose children arrived first collects
 * their transfers. Bounded: the oldest is dropped. */
#include <stdlib.h>
#include <string.h>

#include "consumer.h"

static uint32_t chain_of(const struct tel_holding *t, uint32_t comm, uint64_t handle)
{
    return (uint32_t)tel_mix(handle ^ (uint64_t)comm << 40) & (uint32_t)(sizeof t->heads / sizeof *t->heads - 1);
}

struct tel_held *tel_held_find(struct psm_tel *tel, const struct tel_comm *c, uint64_t handle)
{
    struct tel_holding *t = &tel->holding;
    if (!c->held) return NULL;
    for (uint32_t at = t->heads[chain_of(t, c->seen.id, handle)]; at; at = t->items[at - 1].next)
        if (t->items[at - 1].handle == handle && t->items[at - 1].comm == c->seen.id) return &t->items[at - 1];
    return NULL;
}

static bool more_room(struct tel_holding *t)
{
    uint32_t room = t->room ? t->room * 2 : 256;
    if (room > TEL_MOST_HELD) return false;
    struct tel_held *items = realloc(t->items, room * sizeof *items);
    if (!items) return false;
    t->items = items;
    for (uint32_t i = t->room; i < room; i++) {
        items[i].next = t->free;
        t->free = i + 1;
    }
    t->room = room;
    return true;
}

/* A fresh entry; NULL: all are in use, which is counted. */
struct tel_held *tel_hold(struct psm_tel *tel, struct tel_comm *c, uint64_t handle)
{
    struct tel_holding *t = &tel->holding;
    if (!t->free && !more_room(t)) {
        tel->losses.held++;
        return NULL;
    }
    uint32_t at = t->free, *head = &t->heads[chain_of(t, c->seen.id, handle)];
    struct tel_held *h = &t->items[at - 1];
    t->free = h->next;
    *h = (struct tel_held){.handle = handle, .comm = c->seen.id, .next = *head, .older = t->last};
    *head = at;
    if (t->last)
        t->items[t->last - 1].newer = at;
    else
        t->first = at;
    t->last = at;
    t->n++;
    c->held++;
    return h;
}

struct tel_early *tel_hold_early(struct psm_tel *tel, struct tel_comm *c, uint64_t handle)
{
    struct tel_holding *t = &tel->holding;
    uint32_t at = 0;
    while (at < TEL_MOST_EARLY && t->early_used[at]) at++;
    if (at == TEL_MOST_EARLY) {
        tel->losses.orphans++;
        return NULL;
    }
    struct tel_held *h = tel_hold(tel, c, handle);
    if (!h) return NULL;
    t->early_used[at] = 1;
    memset(&t->early[at], 0, sizeof t->early[at]);
    h->early = at + 1;
    h->deadline = tel_now() + TEL_HOLD_NS;
    c->early++;
    return &t->early[at];
}

void tel_held_drop(struct psm_tel *tel, struct tel_comm *c, struct tel_held *h)
{
    struct tel_holding *t = &tel->holding;
    uint32_t at = (uint32_t)(h - t->items) + 1, *link = &t->heads[chain_of(t, h->comm, h->handle)];
    while (*link != at) link = &t->items[*link - 1].next;
    *link = h->next;
    if (h->older)
        t->items[h->older - 1].newer = h->newer;
    else
        t->first = h->newer;
    if (h->newer)
        t->items[h->newer - 1].older = h->older;
    else
        t->last = h->older;
    if (h->early) {
        t->early_used[h->early - 1] = 0;
        c->early--;
    }
    h->next = t->free;
    t->free = at;
    t->n--;
    c->held--;
}

/* It will not end any more. */
static void give_up(struct psm_tel *tel, struct tel_comm *c, struct tel_held *h)
{
    if (h->early) {
        const struct tel_early *e = &tel->holding.early[h->early - 1];
        tel->losses.orphans += (uint64_t)e->transfers[0] + e->transfers[1];
    } else {
        bool incomplete = tel_is_open(&h->event);
        c->seen.incomplete += incomplete;
        if (tel_is_op(&h->event)) {
            uint32_t place;
            struct psm_tel_op *op = tel_op_of_key(tel, c, &h->event, &place);
            struct tel_times times = tel_times_held(c, h);
            tel_count_op(tel, c, op, &h->event, h->transfers, &times);
            if (!times.end_ns) tel_span_held(tel, c, h, TEL_INCOMPLETE);
        }
    }
    tel_held_drop(tel, c, h);
}

void tel_held_expire(struct psm_tel *tel, struct tel_comm *c, uint64_t now, bool ended)
{
    struct tel_holding *t = &tel->holding;
    for (uint32_t at = t->first, newer; at && c->held; at = newer) {
        struct tel_held *h = &t->items[at - 1];
        newer = h->newer;
        if (h->comm == c->seen.id && (ended || h->deadline < now)) give_up(tel, c, h);
    }
}

void tel_held_free(struct psm_tel *tel)
{
    free(tel->holding.items);
    free(tel->holding.early);
    tel->holding = (struct tel_holding){0};
}
