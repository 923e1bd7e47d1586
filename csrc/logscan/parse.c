/* What lines say by themselves: where they end, the hash of their prefix, the fields of their message. It depends on no
 * other line and on no state of a scan, so that the lines of several pieces of a log can be read at the same time. */
#define _GNU_SOURCE
#include "layout.h"
#include "lines.h"

void ls_cursor_at(struct ls_cursor *c, const char *s, const char *e)
{
    c->line = c->span = s;
    c->end = e;
    c->spanned = 0;
    c->marks.n = c->mark = 0;
    c->odd = false;
}

static uint32_t hash_plain(uint32_t stream, const char *s, uint32_t n)
{
    return ls_fold(ls_hash_bytes(stream, s, n));
}

/* A line that has no known layout: its message is one that is predicted, or stays unknown. Returns how many fields were
 * written. room: readable bytes behind the line. */
static __attribute__((noinline)) uint32_t predicted(const struct ls_parser *p, struct ls_line *to, size_t room,
                                                    bool odd, struct ls_capture *fields)
{
    const char *s = to->s;
    uint32_t low = to->tag + LS_INFO_TAG;
    /* Remembered prefixes do not begin with a spelled escape. */
    if (s[to->n - 1] == 'm' || (odd && (memchr(s, 0x1b, to->n) || memmem(s, to->n, LS_LINK, sizeof LS_LINK - 1)))) {
        to->tag = LS_NONE;
        return 0;
    }
    to->pattern = ls_expected(p->cat, p->guesses, s + low, to->end - low, room, p->lean, false, fields);
    return to->pattern ? p->cat->patterns.at[to->pattern - 1].room[p->lean] : 0;
}

/* A new line that ends at end. Returns whether it may be a common one. */
static inline bool begin_line(struct ls_line *to, const char *s, const char *end, uint32_t fields)
{
    size_t n = (size_t)(end - s);
    to->s = s;
    to->cut = n > LS_LINE_MAX;
    to->n = to->cut ? LS_LINE_MAX : (uint32_t)n;
    to->tag = LS_NONE;
    to->hash = to->pattern = to->call = 0;
    to->fields = fields;
    to->who.thread = -1;
    return n && !to->cut;
}

/* Marks the next bytes. false: there are none. */
static inline bool next_span(const struct ls_parser *p, struct ls_cursor *c)
{
    if (c->marks.n) c->odd = c->marks.odd; /* a line may have begun before its end */
    c->span += c->spanned;
    if (c->span == c->end) return false;
    c->spanned = ls_mark(p->marker, c->span, (size_t)(c->end - c->span), &c->marks);
    c->odd |= c->marks.odd;
    c->mark = 0;
    return true;
}

/* Which call the line of a known process is about. Without a branch: which message comes next is anybody's guess. */
static inline void find_call(const struct ls_catalogue *cat, struct ls_line *line, const struct ls_capture *fields)
{
    const struct ls_pattern *pat = &cat->patterns.at[line->pattern - 1];
    fields += line->fields;
    line->call = ls_rpc_hash(line->who.proc, fields[pat->call_op].value) & pat->call;
    line->type = (uint8_t)(fields[pat->call_type].value & pat->call);
}

/* Whose lines they are. Of thousands of processes, what is known of a prefix is rarely in a near cache: it is loaded
 * for all lines before the first is looked up, so that the processor waits once and not for each. */
static inline __attribute__((always_inline)) void recognize(int (*same)(const void *, const void *, size_t),
                                                            const struct ls_parser *p, uint32_t stream,
                                                            struct ls_line *lines, uint32_t n,
                                                            const struct ls_capture *fields)
{
    const struct ls_prefixes *all = p->prefixes;
    const struct ls_index *index = &all->index;
    bool many = all->at.n > LS_NEAR;
    if (!all->at.n) return;
    for (uint32_t i = 0; many && i < n; i++) __builtin_prefetch(&index->slot[lines[i].hash & index->mask]);
    for (uint32_t i = 0; many && i < n; i++) {
        uint32_t at = lines[i].hash & index->mask,
                 e = lines[i].pattern ? ls_index_find(index, lines[i].hash, &at) : LS_NONE;
        if (e == LS_NONE) continue;
        __builtin_prefetch(&all->at.at[e]);
        __builtin_prefetch((const char *)&all->at.at[e] + 64);
    }
    for (uint32_t i = 0; i < n; i++) {
        struct ls_line *line = &lines[i];
        if (!line->pattern) continue;
        const struct ls_remembered *known = ls_recall_by(same, all, stream, line->s, line->tag, line->hash);
        if (!known) continue;
        line->who = known->who;
        if (many) find_call(p->cat, line, fields);
    }
}

static uint32_t next_plain(const struct ls_parser *p, uint32_t stream, struct ls_cursor *c, struct ls_line *lines,
                           uint32_t most, struct ls_capture *fields)
{
    uint32_t n = 0, used = 0;
    for (;;) {
        for (; c->mark < c->marks.n && n < most; n++) {
            const char *s = c->line, *end = c->span + c->marks.end[c->mark++];
            struct ls_line *to = &lines[n];
            c->line = end + 1;
            if (!begin_line(to, s, end, used)) continue;
            to->tag = ls_find_info(s, to->n);
            if (to->tag == LS_NONE) continue;
            to->hash = hash_plain(stream, s, to->tag);
            to->end = ls_trim(s, to->tag + LS_INFO_TAG, to->n);
            used += predicted(p, to, (size_t)(c->end - end), c->odd, fields + used);
        }
        if (n) recognize(ls_same_bytes, p, stream, lines, n, fields);
        if (n || !next_span(p, c)) return n;
    }
}

#ifdef __x86_64__
LS_AVX2_INLINE uint32_t hash_of(uint32_t stream, const char *s, uint32_t n)
{
    uint64_t h = (uint64_t)n << 32 | stream, v;
    if (n < 8) return (uint32_t)_mm_crc32_u64(h, ls_few_bytes((const unsigned char *)s, n));
    const char *last = s + n - 8;
    for (; s < last; s += 8) {
        memcpy(&v, s, 8);
        h = _mm_crc32_u64(h, v);
    }
    memcpy(&v, last, 8);
    h = _mm_crc32_u64(h, v);
    return (uint32_t)h;
}

LS_AVX2 static uint32_t hash_avx2(uint32_t stream, const char *s, uint32_t n)
{
    return hash_of(stream, s, n);
}

LS_AVX2_INLINE int same_avx2(const void *x, const void *y, size_t n)
{
    enum { LANE = 32, HALF = 16 };
    const char *a = x, *b = y;
    if (n < HALF) return ls_same_bytes(a, b, n);
    if (n < LANE) {
        __m128i first = _mm_xor_si128(_mm_loadu_si128((const __m128i *)(const void *)a),
                                      _mm_loadu_si128((const __m128i *)(const void *)b));
        __m128i last = _mm_xor_si128(_mm_loadu_si128((const __m128i *)(const void *)(a + n - HALF)),
                                     _mm_loadu_si128((const __m128i *)(const void *)(b + n - HALF)));
        __m128i differ = _mm_or_si128(first, last);
        return _mm_testz_si128(differ, differ);
    }
    __m256i differ = _mm256_setzero_si256();
    for (size_t i = 0;; i += LANE) {
        if (i + LANE > n) i = n - LANE;
        __m256i p = _mm256_loadu_si256((const __m256i *)(const void *)(a + i));
        __m256i q = _mm256_loadu_si256((const __m256i *)(const void *)(b + i));
        differ = _mm256_or_si256(differ, _mm256_xor_si256(p, q));
        if (i + LANE == n) return _mm256_testz_si256(differ, differ);
    }
}

/* As ls_find_info; room: readable bytes from s on. */
LS_AVX2_INLINE uint32_t find_info(const char *s, uint32_t n, size_t room)
{
    enum { LANE = 32 };
    const __m256i first = _mm256_set1_epi8('N'), second = _mm256_set1_epi8('C');
    for (uint32_t i = 0; i + LANE < room && i < n && i <= LS_PREFIX_MAX; i += LANE) {
        __m256i a = _mm256_cmpeq_epi8(_mm256_loadu_si256((const __m256i *)(const void *)(s + i)), first);
        __m256i b = _mm256_cmpeq_epi8(_mm256_loadu_si256((const __m256i *)(const void *)(s + i + 1)), second);
        uint32_t found = (uint32_t)_mm256_movemask_epi8(_mm256_and_si256(a, b));
        if (!found) continue;
        uint64_t name;
        uint16_t end;
        i += _tzcnt_u32(found);
        if (i + LS_INFO_TAG > n) return LS_NONE;
        memcpy(&name, s + i, 8);
        memcpy(&end, s + i + 8, 2);
        return name == 0x464e49204c43434eu /* NCCL INF */ && end == 0x204f ? i : LS_NONE;
    }
    return LS_NONE;
}

LS_AVX2 static __attribute__((noinline)) void recognize_avx2(const struct ls_parser *p, uint32_t stream,
                                                             struct ls_line *lines, uint32_t n,
                                                             const struct ls_capture *fields)
{
    recognize(same_avx2, p, stream, lines, n, fields);
}

LS_AVX2 static uint32_t next_avx2(const struct ls_parser *p, uint32_t stream, struct ls_cursor *c,
                                  struct ls_line *lines, uint32_t most, struct ls_capture *fields)
{
    uint32_t n = 0, used = 0;
    for (;;) {
        for (; c->mark < c->marks.n && n < most; n++) {
            const char *s = c->line, *end = c->span + c->marks.end[c->mark++];
            struct ls_line *to = &lines[n];
            size_t room = (size_t)(c->end - end);
            c->line = end + 1;
            if (!begin_line(to, s, end, used)) continue;
            to->tag = find_info(s, to->n, (size_t)(c->end - s));
            if (to->tag == LS_NONE) continue;
            to->hash = hash_of(stream, s, to->tag);
            uint32_t low = to->tag + LS_INFO_TAG, high = ls_trim(s, low, to->n);
            to->end = high;
            const struct ls_layout *l = NULL;
            if (high - low >= 8 && room >= LS_LAYOUT_BEHIND)
                l = ls_fit_avx2(p->guesses->layouts, s + low, high - low, fields + used);
            if (l) {
                to->pattern = l->pattern;
                used += l->room;
            } else
                used += predicted(p, to, room, c->odd, fields + used);
        }
        if (n) recognize_avx2(p, stream, lines, n, fields);
        if (n || !next_span(p, c)) return n;
    }
}
#endif

void ls_parser_begin(struct ls_parser *p, const struct ls_catalogue *cat, const struct ls_prefixes *prefixes, bool lean)
{
    *p = (struct ls_parser){.cat = cat,
                            .marker = ls_best_marker(true),
                            .next = next_plain,
                            .hash = hash_plain,
                            .prefixes = prefixes,
                            .lean = lean};
#ifdef __x86_64__
    if (ls_has_avx2()) {
        p->next = next_avx2;
        p->hash = hash_avx2;
    }
#endif
}

void ls_parser_plain(struct ls_parser *p)
{
    p->marker = ls_mark_plain;
    p->next = next_plain;
    p->hash = hash_plain;
    p->guesses->fitter = NULL;
}
