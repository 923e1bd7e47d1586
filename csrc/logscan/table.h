/* Growing arrays, a hash index of 32-bit entry numbers, and an arena of texts. */
#ifndef LOGSCAN_TABLE_H
#define LOGSCAN_TABLE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A scan cannot continue with half a table: if it runs out of memory it ends the process with a message. */
static inline void *ls_need(void *p)
{
    if (!p) {
        fputs("psmkit: out of memory while scanning logs\n", stderr);
        abort();
    }
    return p;
}

static inline void *ls_realloc(void *p, size_t size)
{
    return ls_need(realloc(p, size ? size : 1));
}

static inline void *ls_zalloc(size_t size)
{
    return ls_need(calloc(1, size ? size : 1));
}

/* Declares a growing array of T. */
#define LS_VEC(T)                                                                                                      \
    struct {                                                                                                           \
        T *at;                                                                                                         \
        uint32_t n, cap;                                                                                               \
    }

/* The function that gives a scan's table away: an array in its member, and its length. */
#define LS_TABLE(T, name, member)                                                                                      \
    const T *name(const ls_scan *scan, size_t *n)                                                                      \
    {                                                                                                                  \
        *n = scan->member.n;                                                                                           \
        return scan->member.at;                                                                                        \
    }

/* A new zeroed element at the end. */
#define ls_push(v)                                                                                                     \
    (ls_reserve((void **)&(v)->at, &(v)->cap, (v)->n, sizeof *(v)->at), memset(&(v)->at[(v)->n], 0, sizeof *(v)->at),  \
     &(v)->at[(v)->n++])

static inline void ls_reserve(void **at, uint32_t *cap, uint32_t n, size_t size)
{
    if (n < *cap) return;
    *cap = *cap ? *cap * 2 : 16;
    *at = ls_realloc(*at, *cap * size);
}

/* Frees an array and leaves it empty. */
#define ls_drop(v) (free((v)->at), memset((v), 0, sizeof *(v)))
/* Frees several blocks. */
#define LS_FREE(...) ls_free_all((void *[]){__VA_ARGS__}, sizeof (void *[]){__VA_ARGS__} / sizeof(void *))
static inline void ls_free_all(void *const *blocks, size_t n)
{
    for (size_t i = 0; i < n; i++) free(blocks[i]);
}

/* Maps hashes to entry numbers; the owner of the entries compares keys. A slot is hash << 32 | entry + 1. */
struct ls_index {
    uint64_t *slot;
    uint32_t mask, used;
};

#define LS_NONE UINT32_MAX

static inline uint64_t ls_mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9e3779b97f4a7c15ull;
    return h ^ (h >> 29);
}

/* Up to 7 bytes as a number; for equal lengths, equal numbers are equal bytes. */
static inline uint64_t ls_few_bytes(const unsigned char *p, size_t n)
{
    uint32_t low, high;
    if (n < 4) return n ? (uint64_t)p[0] | (uint64_t)p[n >> 1] << 8 | (uint64_t)p[n - 1] << 16 : 0;
    memcpy(&low, p, 4);
    memcpy(&high, p + n - 4, 4);
    return low | (uint64_t)high << 32;
}

static inline uint64_t ls_hash_bytes(uint64_t h, const void *data, size_t n)
{
    const unsigned char *p = data, *e = p + n;
    uint64_t v;
    h ^= (uint64_t)n << 56;
    if (n < 8) return ls_mix(h, ls_few_bytes(p, n));
    for (; e - p > 8; p += 8) {
        memcpy(&v, p, 8);
        h = ls_mix(h, v);
    }
    memcpy(&v, e - 8, 8);
    return ls_mix(h, v);
}

/* Short texts: a call of memcmp costs more than the comparison. */
static inline int ls_same_bytes(const void *x, const void *y, size_t n)
{
    const unsigned char *a = x, *b = y;
    uint64_t v, w;
    if (n < 8) return ls_few_bytes(a, n) == ls_few_bytes(b, n);
    for (size_t i = 0; i + 8 < n; i += 8) {
        memcpy(&v, a + i, 8);
        memcpy(&w, b + i, 8);
        if (v != w) return 0;
    }
    memcpy(&v, a + n - 8, 8);
    memcpy(&w, b + n - 8, 8);
    return v == w;
}

static inline uint32_t ls_fold(uint64_t h)
{
    return (uint32_t)(h ^ (h >> 32));
}

static inline uint32_t ls_index_find(const struct ls_index *t, uint32_t hash, uint32_t *at)
{
    if (!t->slot) return LS_NONE;
    for (uint32_t i = *at;; i = (i + 1) & t->mask) {
        uint64_t s = t->slot[i];
        if (!s) return LS_NONE;
        if ((uint32_t)(s >> 32) == hash) {
            *at = (i + 1) & t->mask;
            return (uint32_t)s - 1;
        }
    }
}

/* Runs over the entries with this hash: for (LS_EACH(&index, hash, entry)) if (the key of entry is the one) ... */
#define LS_EACH(t, h, e)                                                                                               \
    uint32_t e##_at = (h) & (t)->mask, e = ls_index_find((t), (h), &e##_at);                                           \
    e != LS_NONE;                                                                                                      \
    e = ls_index_find((t), (h), &e##_at)

static inline void ls_index_put(struct ls_index *t, uint64_t s)
{
    uint32_t i = (uint32_t)(s >> 32) & t->mask;
    while (t->slot[i]) i = (i + 1) & t->mask;
    t->slot[i] = s;
}

static inline void ls_index_add(struct ls_index *t, uint32_t hash, uint32_t entry)
{
    if (!t->slot || t->used * 2 > t->mask) {
        struct ls_index old = *t;
        t->mask = old.slot ? old.mask * 2 + 1 : 63;
        t->slot = ls_zalloc((t->mask + 1) * sizeof *t->slot);
        if (old.slot) {
            for (uint32_t i = 0; i <= old.mask; i++)
                if (old.slot[i]) ls_index_put(t, old.slot[i]);
        }
        free(old.slot);
    }
    ls_index_put(t, (uint64_t)hash << 32 | (entry + 1));
    t->used++;
}

static inline void ls_index_del(struct ls_index *t, uint32_t hash, uint32_t entry)
{
    if (!t->slot) return;
    uint32_t i = hash & t->mask;
    while (t->slot[i] != ((uint64_t)hash << 32 | (entry + 1))) {
        if (!t->slot[i]) return;
        i = (i + 1) & t->mask;
    }
    /* Close the gap, so that no search ends too early. */
    for (uint32_t j = (i + 1) & t->mask; t->slot[j]; j = (j + 1) & t->mask) {
        uint32_t home = (uint32_t)(t->slot[j] >> 32) & t->mask;
        if (((j - home) & t->mask) >= ((j - i) & t->mask)) {
            t->slot[i] = t->slot[j];
            i = j;
        }
    }
    t->slot[i] = 0;
    t->used--;
}

static inline void ls_index_drop(struct ls_index *t)
{
    free(t->slot);
    *t = (struct ls_index){0};
}

#define LS_INDEX_DROP(...)                                                                                             \
    ls_index_drop_all((struct ls_index *[]){__VA_ARGS__}, sizeof (void *[]){__VA_ARGS__} / sizeof(void *))
static inline void ls_index_drop_all(struct ls_index *const *all, size_t n)
{
    for (size_t i = 0; i < n; i++) ls_index_drop(all[i]);
}

/* Texts one after another; a text is packed as offset << 20 | length. Offset 0 is never used, so 0 means none. */
struct ls_arena {
    char *at;
    size_t n, cap;
};

#define LS_TEXT_MAX ((1u << 20) - 1)

static inline uint64_t ls_keep_text(struct ls_arena *a, const char *s, size_t n)
{
    if (n > LS_TEXT_MAX) n = LS_TEXT_MAX;
    if (a->n + n + 1 > a->cap) {
        a->cap = (a->n + n + 1) * 2 + 256;
        a->at = ls_realloc(a->at, a->cap);
    }
    if (a->n == 0) a->at[a->n++] = 0;
    uint64_t packed = (uint64_t)a->n << 20 | n;
    if (n) memcpy(a->at + a->n, s, n);
    a->n += n;
    return packed;
}

static inline const char *ls_text_at(const struct ls_arena *a, uint64_t packed, size_t *n)
{
    *n = packed & LS_TEXT_MAX;
    return a->at + (packed >> 20);
}

#endif
