#include "known.h"

#include <stdlib.h>

struct entry **known_bucket(struct known *k, const void *handle)
{
    uint64_t h = (uint64_t)(uintptr_t)handle * UINT64_C(0x9e3779b97f4a7c15);
    return &k->buckets[h >> (64 - 14)];
}

struct entry *known_find(struct known *k, const void *handle)
{
    struct entry *e = *known_bucket(k, handle);
    while (e && e->handle != handle) e = e->next;
    return e;
}

void known_release(struct known *k, struct entry *e)
{
    while (e && --e->refs == 0) {
        struct entry *parent = e->parent;
        if (e->member) e->member->refs--;
        e->next = k->spare;
        k->spare = e;
        e = parent;
    }
}

void known_forget(struct known *k, struct entry *e)
{
    struct entry **at = known_bucket(k, e->handle);
    while (*at != e) at = &(*at)->next;
    *at = e->next;
    if (e->kept) {
        *(e->older ? &e->older->younger : &k->oldest) = e->younger;
        *(e->younger ? &e->younger->older : &k->youngest) = e->older;
        e->kept = false;
        k->stopped--;
    }
    known_release(k, e);
}

void known_keep(struct known *k, struct entry *e)
{
    e->kept = true;
    e->younger = NULL;
    e->older = k->youngest;
    *(k->youngest ? &k->youngest->younger : &k->oldest) = e;
    k->youngest = e;
    if (++k->stopped > KEPT) {
        k->forgotten++;
        known_forget(k, k->oldest);
    }
}

struct member *known_member(struct member *m, const void *context)
{
    while (m && m->context != context) m = m->next;
    return m;
}

void known_end(struct known *k, struct member *m)
{
    struct member **at = &k->members;
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    m->next = k->ended;
    k->ended = m;
    int n = 0;
    for (at = &k->ended; *at;) {
        struct member *one = *at;
        if (++n <= ENDED || one->refs) {
            at = &one->next;
        } else {
            *at = one->next;
            free(one);
        }
    }
}
