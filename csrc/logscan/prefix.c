/* The prefix of a message: host:pid:tid [dev], times, launcher tags, noise. */
#define _GNU_SOURCE
#include "scanner.h"

#include <ctype.h>
#include <strings.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

static inline bool digit(char c)
{
    return (unsigned char)(c - '0') < 10;
}

static bool host_char(char c)
{
    return isalnum((unsigned char)c) || c == '-' || c == '.' || c == '_';
}

static int read_level(const char *s, uint32_t n, uint32_t *len)
{
    static const struct {
        const char *word;
        uint8_t len, level;
    } levels[] = {{"INFO", 4, LS_INFO},   {"WARN", 4, LS_WARN},       {"TRACE", 5, LS_TRACE}, {"CALL", 4, LS_CALL},
                  {"ABORT", 5, LS_ABORT}, {"VERSION", 7, LS_VERSION}, {"ATTN", 4, LS_ATTN},   {"DIAG", 4, LS_DIAG}};
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        uint32_t len_i = levels[i].len;
        if (n >= len_i && memcmp(s, levels[i].word, len_i) == 0 && (n == len_i || s[len_i] == ' ')) {
            *len = n == len_i ? len_i : len_i + 1;
            return levels[i].level;
        }
    }
    return 0;
}

static int64_t find_word(const char *s, uint32_t from, uint32_t n, const char *word, uint32_t len, int *level,
                         uint32_t *body)
{
    const char *p = s + from, *e = s + n;
    while ((uint32_t)(e - p) >= len && (p = memchr(p, word[0], (size_t)(e - p) - len + 1)) != NULL) {
        uint32_t more;
        if (memcmp(p, word, len) == 0 && (*level = read_level(p + len, (uint32_t)(e - p) - len, &more)) != 0) {
            *body = (uint32_t)(p - s) + len + more;
            return p - s;
        }
        p++;
    }
    return -1;
}

uint32_t ls_find_info(const char *s, uint32_t n)
{
#ifdef __SSE2__
    const __m128i first = _mm_set1_epi8('N'), second = _mm_set1_epi8('C');
    for (uint32_t i = 0; i + 32 < n && i <= LS_PREFIX_MAX; i += 16) {
        __m128i a = _mm_loadu_si128((const __m128i *)(const void *)(s + i));
        __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(s + i + 1));
        int found = _mm_movemask_epi8(_mm_and_si128(_mm_cmpeq_epi8(a, first), _mm_cmpeq_epi8(b, second)));
        if (!found) continue;
        i += (uint32_t)__builtin_ctz((unsigned)found);
        return memcmp(s + i, "NCCL INF", 8) == 0 && memcmp(s + i + 8, "O ", 2) == 0 ? i : LS_NONE;
    }
#else
    (void)s, (void)n;
#endif
    return LS_NONE;
}

int64_t ls_find_tag(const char *s, uint32_t from, uint32_t n, bool forks, int *level, uint32_t *body)
{
    int64_t at = find_word(s, from, n, "NCCL ", 5, level, body);
    if (at >= 0 || !forks || n - from < 10) return at;
    /* Forks print their own name; their lines are rare compared to the cost of searching for it. */
    static const char *const others[] = {"RCCL ", "VCCL ", "FLAGCX ", "NCCLX "};
    if (!memmem(s + from, n - from, "CL ", 3) && !memmem(s + from, n - from, "CX ", 3) &&
        !memmem(s + from, n - from, "LX ", 3))
        return -1;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        at = find_word(s, from, n, others[i], (uint32_t)strlen(others[i]), level, body);
        if (at >= 0) return at;
    }
    return -1;
}

/* :pid:tid that ends at end; *colon is the place of its first colon. NCCL's diagnostics (numbers 1) print no thread. */
static bool read_ids(const char *s, uint32_t low, uint32_t end, int numbers, uint32_t *colon, int32_t *pid,
                     int32_t *tid)
{
    int64_t ids[2] = {0};
    uint32_t at = end;
    for (int i = 2 - numbers; i < 2; i++) {
        uint32_t last = at;
        int64_t v = 0, scale = 1;
        while (at > low && digit(s[at - 1]) && last - at < 10) {
            v += (s[--at] - '0') * scale;
            scale *= 10;
        }
        if (at == last || at == low || s[at - 1] != ':' || v > INT32_MAX) return false;
        ids[i] = v;
        at--;
    }
    *colon = at;
    *tid = (int32_t)ids[0];
    *pid = (int32_t)ids[1];
    return true;
}

/* 01:35:22 is a time and not a host with two numbers. */
static bool looks_like_time(const char *s, uint32_t host, uint32_t colon, uint32_t end)
{
    return colon - host == 2 && digit(s[host]) && digit(s[host + 1]) && end - colon == 6;
}

/* Where the host that ends at colon starts. In text that was glued to it the border is invisible: use hosts that were
 * seen before. */
static uint32_t host_start(const struct ls_scan *scan, const char *s, uint32_t low, uint32_t colon, bool glued)
{
    uint32_t h = colon;
    if (h > low && s[h - 1] == '>') {
        for (uint32_t k = h - 1; k > low && h - k < 64; k--) {
            if (s[k - 1] == '<') return k - 1;
            if (s[k - 1] == ' ') break;
        }
    }
    while (h > low && host_char(s[h - 1]) && colon - h < 255) h--;
    char before = h > low ? s[h - 1] : ' ';
    bool clean = !glued || before == ' ' || before == '\t' || before == ']';
    if (before == ':' && h - low > 1 && digit(s[h - 2])) clean = false; /* host:1:71host:1:9, an overwritten prefix */
    if (!glued && clean) return h;
    if (ls_host_id((struct ls_scan *)scan, s + h, colon - h, false) != LS_NONE) return h;
    /* a log may begin within the name of its host: the only name that is known is then no whole one */
    if (clean && ls_first_line(scan) && scan->hosts.n == 1 && isalpha((unsigned char)s[h])) return h;
    /* behind a blank inside a line, the start of a word may be the rest of the text before it: pod-worker-0 is a name
     */
    for (uint32_t k = h + 1; k < colon; k++)
        if ((!clean || isalnum((unsigned char)s[k - 1])) &&
            ls_host_id((struct ls_scan *)scan, s + k, colon - k, false) != LS_NONE)
            return k;
    if (scan->part) ls_part_asked((struct ls_scan *)scan, s + h, colon - h);
    if (clean) return h;
    uint32_t k = h;
    while (k < colon && digit(s[k])) k++;
    return k < colon ? k : h;
}

/* [1,12]<std at i: mpirun's tag with the word before it, such as the year of its time stamp, glued to it. */
static bool begins_mpi_tag(const char *s, uint32_t i, uint32_t high)
{
    uint32_t k = i + 1, commas = 0;
    while (k < high && k - i < 24 && (digit(s[k]) || s[k] == ',')) commas += s[k++] == ',';
    return commas == 1 && high - k > 5 && memcmp(s + k, "]<std", 5) == 0;
}

/* A launcher's tag in brackets at i: [1,12]<stdout>:   [rank2]:   [2]:   [pod/name/container]. Returns the place behind
 * it, or i if there is none. */
static uint32_t bracket_tag(const char *s, uint32_t i, uint32_t high, struct ls_prefix *out)
{
    uint32_t k = i + 1;
    while (k < high && k - i < 200 && s[k] != ']' && s[k] != ' ') k++;
    if (k >= high || s[k] != ']' || k <= i + 1) return i;
    bool mpi = k + 4 < high && s[k + 1] == '<' && memcmp(s + k + 2, "std", 3) == 0 && digit(s[i + 1]);
    bool role = k + 1 < high && s[k + 1] == ':' && digit(s[k - 1]);
    for (uint32_t q = i + 1; q < k; q++) {
        if (!digit(s[q]) && s[q] != ',') mpi = false;
        if (!isalnum((unsigned char)s[q]) && s[q] != '_') role = false;
    }
    if (!mpi && !role && !(k - i > 5 && memcmp(s + i, "[pod/", 5) == 0)) return i;
    out->tag = i;
    out->tag_len = k + 1 - i;
    i = k + 1;
    while (mpi && i < high && s[i] != ' ' && s[i] != ':') i++;
    if (i < high && s[i] == ':') i++;
    return i;
}

/* The same for (Worker pid=12, ip=10.0.0.1). */
static uint32_t worker_tag(const char *s, uint32_t i, uint32_t high, struct ls_prefix *out)
{
    const char *close = memchr(s + i, ')', high - i);
    if (!close || !memmem(s + i, (size_t)(close - s) - i, "pid=", 4)) return i;
    out->tag = i;
    out->tag_len = (uint32_t)(close - s) + 1 - i;
    return i + out->tag_len;
}

/* Whether the word is a time or a date. */
static bool is_time(const char *word, const char *end)
{
    uint32_t colons = 0, dashes = 0, digits = 0;
    if (*word == '[' || *word == '(') word++;
    for (const char *q = word; q < end; q++) {
        if (digit(*q))
            digits++;
        else if (*q == ':')
            colons++;
        else if (*q == '-' || *q == '/')
            dashes++;
        else if (!strchr("TZ.,+])", *q))
            return false;
    }
    return digits >= 4 && digit(*word) && (colons >= 2 || dashes == 2);
}

/* Times are taken whole, from the date to the zone. */
static void add_time(struct ls_prefix *out, uint32_t begin, uint32_t end)
{
    if (!out->time_len || begin - (out->time + out->time_len) > 1) out->time = begin;
    out->time_len = end - out->time;
}

/* A tag that is a word: "12: " of srun, and "worker-0:", "worker-0 |", "worker-0 " of kubectl and compose. */
static bool word_tag(const char *s, uint32_t begin, uint32_t end, struct ls_prefix *out)
{
    uint32_t k = begin, name = 0;
    while (k < end && (isalnum((unsigned char)s[k]) || s[k] == '-' || s[k] == '_' || s[k] == '.' || s[k] == '/')) {
        if (!digit(s[k])) name++;
        k++;
    }
    bool colon = k + 1 == end && s[k] == ':';
    bool task = !name && colon && k - begin <= 6;
    uint32_t q = k;
    while (q > begin && digit(s[q - 1])) q--;
    bool pod = name && q < k && q > begin && s[q - 1] == '-' && (colon || k == end) && isalpha((unsigned char)s[begin]);
    if (out->tag_len || !(task || pod)) return false;
    out->tag = begin;
    out->tag_len = k - begin;
    return true;
}

/* Text before the host: a launcher's tag, a time, or anything. */
void ls_parse_noise(const char *s, uint32_t low, uint32_t high, struct ls_prefix *out)
{
    uint32_t i = low, letters = 0;
    out->tag_len = out->time_len = 0;
    out->dirty = false;
    while (i < high) {
        uint32_t b = i;
        if (s[i] == ' ' || s[i] == '\t' || s[i] == '>' || s[i] == '|' || s[i] == '\r') {
            i++;
            continue;
        }
        if (s[i] == '[' && !out->tag_len && (i = bracket_tag(s, i, high, out)) > b) continue;
        if (s[i] == '(' && !out->tag_len && (i = worker_tag(s, i, high, out)) > b) continue;
        while (i < high && s[i] != ' ' && s[i] != '\t' && (s[i] != '[' || out->tag_len || !begins_mpi_tag(s, i, high)))
            i++;
        if (is_time(s + b, s + i)) {
            add_time(out, b, i);
            continue;
        }
        if ((b == low || (i < high && !letters)) && word_tag(s, b, i, out)) continue;
        for (const char *q = s + b; q < s + i; q++) letters += isalpha((unsigned char)*q) != 0;
        if (letters >= 3) out->dirty = true;
    }
    if (out->time_len) { /* without brackets */
        if (s[out->time] == '[' || s[out->time] == '(') {
            out->time++;
            out->time_len--;
        }
        while (out->time_len && strchr("])", s[out->time + out->time_len - 1])) out->time_len--;
    }
}

/* No host has more devices. NCCL prints what happens to be in memory where a process fails before it knows its device.
 */
enum { MOST_DEVICES = 1024 };

/* [3] or [-1] at k. Returns the place behind it, or k if there is none. */
static uint32_t read_device(const char *s, uint32_t k, uint32_t e, int32_t *device)
{
    if (k >= e || s[k] != '[') return k;
    uint32_t q = k + 1;
    bool minus = q < e && s[q] == '-';
    int32_t v = 0;
    uint32_t first = q += minus;
    while (q < e && digit(s[q]) && q - first < 9) v = v * 10 + (s[q++] - '0');
    if (q == first || q == e || s[q] != ']') return k;
    *device = v >= MOST_DEVICES ? INT32_MIN : minus ? -v : v;
    return q + 1;
}

int32_t ls_bare_device(const char *s, uint32_t tag, int level)
{
    /* a source position, and perhaps a function, stand between the two in warnings */
    uint32_t end = tag, most = level == LS_INFO || level == LS_CALL ? 1 : 3;
    bool adjacent = true;
    for (uint32_t words = 0; words < most; words++) {
        while (end > 0 && s[end - 1] == ' ') end--;
        uint32_t begin = end;
        while (begin > 0 && s[begin - 1] != ' ' && end - begin < 256) begin--;
        int32_t device = INT32_MIN;
        if (begin < end && read_device(s, begin, end, &device) == end) return adjacent ? device : INT32_MIN;
        adjacent = begin < end && memchr(s + begin, ':', end - begin);
        end = begin;
    }
    return INT32_MIN;
}

/* "node7 :12:13 [0]", as people leave it when they replace the name of a host: where the word that begins the line
 * starts, else colon. */
static uint32_t word_before(const char *s, uint32_t low, uint32_t colon)
{
    uint32_t k = colon, letters = 0;
    if (k == low || s[k - 1] != ' ') return colon;
    while (--k > low && colon - k < 255 && host_char(s[k - 1])) letters += isalpha((unsigned char)s[k - 1]) != 0;
    return k == low && letters ? k : colon;
}

bool ls_parse_prefix(const struct ls_scan *scan, const char *s, uint32_t low, uint32_t tag, int level, bool glued,
                     struct ls_prefix *out)
{
    uint32_t colon = 0, end = tag, words = 0;
    bool found = false;
    /* host:pid:tid is the last such word before the tag; WARN and TRACE have a source position between the two. */
    while (end > low && tag - end < 400 && words++ < 12 && !found) {
        while (end > low && s[end - 1] == ' ') end--;
        found = read_ids(s, low, end, level == LS_DIAG ? 1 : 2, &colon, &out->pid, &out->tid);
        if (found) break;
        while (end > low && s[end - 1] != ' ') end--;
    }
    if (!found) return false;
    uint32_t h = host_start(scan, s, low, colon, glued);
    if (looks_like_time(s, h, colon, end)) return false;
    out->host = h;
    out->host_len = colon - h;
    if (h == colon && (h = word_before(s, low, colon)) < colon) {
        out->host = h;
        out->host_len = colon - 1 - h;
    }
    if (level == LS_DIAG) { /* the whole name of the host, where other lines have it up to its first dot */
        const char *dot = memchr(s + h, '.', colon - h);
        if (h == colon || end < tag - 1) return false;
        if (dot && !digit(s[h])) out->host_len = (uint32_t)(dot - s) - h;
    }
    out->start = h;
    out->device = INT32_MIN;
    out->where_len = 0;
    uint32_t k = end, e = tag;
    while (k < e && s[k] == ' ') k++;
    while (e > k && s[e - 1] == ' ') e--;
    uint32_t behind = read_device(s, k, e, &out->device);
    if (behind > k) {
        k = behind;
        while (k < e && s[k] == ' ') k++;
    }
    if (k < e) {
        if (level == LS_INFO || level == LS_CALL) return false;
        if (level == LS_TRACE && digit(s[k])) { /* milliseconds */
            while (k < e && s[k] != ' ') k++;
            while (k < e && s[k] == ' ') k++;
        }
        out->where = k;
        while (k < e && s[k] != ' ') k++;
        out->where_len = k - out->where;
    }
    ls_parse_noise(s, low, h, out);
    if (out->time_len && h - (out->time + out->time_len) <= 2)
        out->start = out->time - (out->time > low && s[out->time - 1] == '[');
    return true;
}

/* Whether s is "node7 [0] misc/ibvwrap.cu:12", as people leave the prefix of an early warning when they cut its
 * numbers. */
static bool early_place(const char *s, uint32_t n)
{
    uint32_t k = 0, letters = 0;
    while (k < n && host_char(s[k])) letters += isalpha((unsigned char)s[k++]) != 0;
    if (!letters || k == n || s[k++] != ' ') return false;
    int32_t device = INT32_MIN;
    uint32_t file = read_device(s, k, n, &device);
    if (file == k || device < 0 || file == n || s[file++] != ' ') return false;
    const char *line = memmem(s + file, n - file, ".cu:", 4);
    if (!line || memchr(s + file, ' ', n - file)) return false;
    for (line += 4; line < s + n && digit(*line); line++) {
    }
    return line == s + n && digit(line[-1]);
}

/* NCCL 2.0 to 2.2 print no name: host:pid:tid [dev] INFO text, host:pid:tid [dev] file.cu:12 WARN text. */
int64_t ls_find_nameless(const struct ls_scan *scan, const char *s, uint32_t n, int *level, uint32_t *body)
{
    static const struct {
        const char *word;
        uint32_t len, level;
    } forms[] = {{"] INFO ", 7, LS_INFO}, {" WARN ", 6, LS_WARN}};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const char *p = memmem(s, n, forms[i].word, forms[i].len);
        if (!p) continue;
        uint32_t end = (uint32_t)(p - s) + forms[i].len, tag = end - 5;
        struct ls_prefix pre = {0};
        if (forms[i].level == LS_WARN && early_place(s, (uint32_t)(p - s))) {
            *level = LS_WARN;
            *body = end;
            return tag;
        }
        /* without a name, everything else has to be there */
        if (!ls_parse_prefix(scan, s, 0, tag, (int)forms[i].level, false, &pre) || pre.device < 0) continue;
        if (forms[i].level == LS_WARN && !memchr(s + pre.where, ':', pre.where_len)) continue;
        *level = (int)forms[i].level;
        *body = end;
        return tag;
    }
    return -1;
}

/* Tests of aws-ofi-nccl print the plugin's lines without NCCL: "WARN: Function: main Line: 34: NET/OFI text". */
int64_t ls_find_ofi(const char *s, uint32_t n, int *level, uint32_t *body)
{
    static const char function[] = ": Function: ", line[] = " Line: ", text[] = ": NET/OFI ";
    const char *e = s + n, *p = memmem(s, n, function, sizeof function - 1);
    if (!p) return -1;
    const char *word = p;
    while (word > s && isupper((unsigned char)word[-1])) word--;
    uint32_t more;
    *level = read_level(word, (uint32_t)(p - word), &more);
    if (!*level || more != (uint32_t)(p - word)) return -1;
    /* the name of a function may have blanks */
    while ((p = memmem(p, (size_t)(e - p), line, sizeof line - 1))) {
        p += sizeof line - 1;
        const char *number = p;
        while (p < e && digit(*p)) p++;
        if (p == number || (size_t)(e - p) < sizeof text - 1 || memcmp(p, text, sizeof text - 1) != 0) continue;
        *body = (uint32_t)(p - s) + 2;
        return word - s;
    }
    return -1;
}

/* The end of the link that an issue tracker makes of a name that looks like an address,
 * [net.cc:1137](http://net.cc:1137/): its text is s[1, *close). 0 if s[0] begins none. */
static uint32_t link_end(const char *s, uint32_t n, uint32_t *close)
{
    static const char *const schemes[] = {"(http://", "(https://"};
    uint32_t k = 1;
    while (k < n && s[k] != ']' && s[k] != '[' && s[k] != ' ') k++;
    if (k == n || s[k] != ']' || k == 1) return 0;
    *close = k++;
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        uint32_t len = (uint32_t)strlen(schemes[i]), end = k + len + *close - 1;
        if (end >= n || memcmp(s + k, schemes[i], len) != 0) continue;
        if (strncasecmp(s + k + len, s + 1, *close - 1) != 0) return 0; /* the author's own link */
        if (s[end] == '/') end++;
        return end < n && s[end] == ')' ? end + 1 : 0;
    }
    return 0;
}

uint32_t ls_unlink(char *to, const char *s, uint32_t n)
{
    uint32_t out = 0, close = 0;
    for (uint32_t i = 0; i < n;) {
        uint32_t end = s[i] == '[' ? link_end(s + i, n - i, &close) : 0;
        if (!end) {
            to[out++] = s[i++];
            continue;
        }
        memmove(to + out, s + i + 1, close - 1);
        out += close - 1;
        i += end;
    }
    return out;
}

/* Copies s without escape sequences; literal also takes ESC[..m, ^[[..m, \x1b[..m, \033[..m and \u001b[..m. */
uint32_t ls_strip_ansi(char *to, const char *s, uint32_t n, bool literal)
{
    static const char *const spelled[] = {"ESC[", "^[[", "\\x1b[", "\\033[", "\\e[", "\\u001b[", "\\x1B["};
    uint32_t out = 0;
    for (uint32_t i = 0; i < n;) {
        uint32_t skip = 0;
        if (s[i] == 0x1b) {
            skip = i + 1 < n && s[i + 1] == '[' ? 2 : 1;
            if (skip == 1 && i + 1 < n && s[i + 1] == ']') { /* a title: to BEL */
                const char *bel = memchr(s + i, 7, n - i);
                skip = bel ? (uint32_t)(bel - (s + i)) + 1 : 2;
                i += skip;
                continue;
            }
        } else if (literal && (s[i] == 'E' || s[i] == '^' || s[i] == '\\')) {
            for (size_t k = 0; k < sizeof spelled / sizeof *spelled; k++) {
                uint32_t len = (uint32_t)strlen(spelled[k]);
                if (n - i >= len && memcmp(s + i, spelled[k], len) == 0) skip = len;
            }
        }
        if (!skip) {
            to[out++] = s[i++];
            continue;
        }
        uint32_t k = i + skip;
        if (skip > 1) {
            while (k < n && (digit(s[k]) || s[k] == ';' || s[k] == '?')) k++;
            if (k < n && isalpha((unsigned char)s[k]))
                k++;
            else if (s[i] != 0x1b) { /* not a sequence after all */
                to[out++] = s[i++];
                continue;
            }
        }
        i = k;
    }
    return out;
}
