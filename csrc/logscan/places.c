/* The places in lines where names of people and machines may stand. */
#include "scanner.h"

enum { LINE, HEAD, STRIDE = LS_FIELDS + 1 };

struct places {
    uint32_t *at, n;
};

static void put(struct places *p, uint32_t start, uint32_t end, uint32_t kind)
{
    uint32_t *at = p->at + 3 * (size_t)p->n++;
    at[0] = start;
    at[1] = end;
    at[2] = kind;
}

/* The fields of a match that starts at byte at, in their order. */
static void put_fields(struct places *p, const struct ls_match *m, const uint8_t *kinds, uint32_t at)
{
    uint32_t first = p->n;
    for (int i = 0; i < m->message->fields; i++) {
        if (!(m->present & 1ull << i) || !kinds[i] || !m->field[i].length) continue;
        uint32_t start = at + m->field[i].start, end = start + m->field[i].length, kind = kinds[i], k = p->n;
        put(p, start, end, kind);
        for (; k > first && p->at[3 * (k - 1)] > start; k--)
            memcpy(p->at + 3 * (size_t)k, p->at + 3 * (size_t)(k - 1), 3 * sizeof *p->at);
        p->at[3 * k] = start;
        p->at[3 * k + 1] = end;
        p->at[3 * k + 2] = kind;
    }
}

static void put_line(struct places *p, const ls_catalogue *cat, const uint8_t *kinds, const char *s, uint32_t low,
                     uint32_t high)
{
    struct ls_match m;
    int level;
    uint32_t body, n = ls_trim(s, low, high) - low;
    const char *line = s + low;
    while (high > low && s[high - 1] == '\r') high--;
    if (high == low) return;
    if (n < 9 || ls_find_tag(line, 0, n, true, &level, &body) < 0 || body >= n ||
        !ls_match(cat, LS_WHERE_NCCL, line + body, n - body, false, &m) ||
        kinds[m.index * (size_t)STRIDE + LS_FIELDS]) {
        put(p, low, high, LINE);
        return;
    }
    put(p, low, low + body, HEAD);
    put_fields(p, &m, kinds + m.index * (size_t)STRIDE, low + body);
}

size_t ls_places(const ls_catalogue *cat, const uint8_t *kinds, const char *text, size_t low, size_t n,
                 uint32_t *places, uint32_t most, uint32_t *count)
{
    struct places p = {.at = places};
    while (low < n && p.n + STRIDE < most) {
        const char *nl = memchr(text + low, '\n', n - low);
        size_t high = nl ? (size_t)(nl - text) : n;
        put_line(&p, cat, kinds, text, (uint32_t)low, (uint32_t)high);
        low = high + (nl != NULL);
    }
    *count = p.n;
    return low;
}
