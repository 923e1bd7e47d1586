/* The meaning of a rule's cells, and reading of whole files. */
#define _GNU_SOURCE
#include "rules.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

const char *const tuner_ops[TUNER_OPS] = {"broadcast", "reduce", "allgather", "reducescatter", "allreduce"};
const char *const tuner_algorithms[NCCL_NUM_ALGORITHMS] = {
    "tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"};
const char *const tuner_protocols[NCCL_NUM_PROTOCOLS] = {"ll", "ll128", "simple"};

const char *tuner_algorithm_name(int algorithm)
{
    return algorithm >= 0 && algorithm < NCCL_NUM_ALGORITHMS ? tuner_algorithms[algorithm] : "default";
}

const char *tuner_protocol_name(int protocol)
{
    return protocol >= 0 && protocol < NCCL_NUM_PROTOCOLS ? tuner_protocols[protocol] : "default";
}

bool tuner_fail(struct tuner_error *error, uint32_t line, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->text, sizeof error->text, format, arguments);
    va_end(arguments);
    error->line = line;
    return false;
}

/* ---- columns ---- */

static const struct {
    const char *name;
    enum tuner_column column;
} columns[] = {
    {"op", TUNER_OP},
    {"collective_type", TUNER_OP},
    {"collective", TUNER_OP},
    {"min_bytes", TUNER_MIN_BYTES},
    {"max_bytes", TUNER_MAX_BYTES},
    {"bytes", TUNER_BYTES},
    {"algorithm", TUNER_ALGORITHM},
    {"protocol", TUNER_PROTOCOL},
    {"channels", TUNER_CHANNELS},
    {"nodes", TUNER_NODES},
    {"nNodes", TUNER_NODES},
    {"ranks", TUNER_RANKS},
    {"nRanks", TUNER_RANKS},
    {"pipe_ops", TUNER_PIPE_OPS},
    {"numPipeOps", TUNER_PIPE_OPS},
    {"registered", TUNER_REGISTERED},
    {"regBuff", TUNER_REGISTERED},
    {"nvl_domains", TUNER_DOMAINS},
    {"chunk", TUNER_CHUNK},
    {"note", TUNER_NOTES},
};

int tuner_column_of(const char *name)
{
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        if (strcasecmp(columns[i].name, name) == 0) return (int)columns[i].column;
    return -1;
}

struct tuner_rule tuner_rule_any(uint32_t line)
{
    return (struct tuner_rule){.ops = (1u << TUNER_OPS) - 1,
                               .bytes = TUNER_ALL,
                               .ranks = TUNER_ALL,
                               .nodes = TUNER_ALL,
                               .domains = TUNER_ALL,
                               .pipe_ops = TUNER_ALL,
                               .registered = -1,
                               .algorithm = -1,
                               .protocol = -1,
                               .line = line};
}

/* ---- cells ---- */

static bool is_any(const char *text)
{
    return !*text || strcmp(text, "*") == 0 || strcmp(text, "-1") == 0 || strcasecmp(text, "any") == 0 ||
           strcasecmp(text, "default") == 0;
}

/* Digits, then K, M, G or T with or without B or iB. Returns what follows, NULL: not a number, or too large. */
static const char *number_at(const char *p, uint64_t *value)
{
    static const char letters[] = "KMGT";
    uint64_t n = 0;
    if (*p < '0' || *p > '9') return NULL;
    for (; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(n, 10u, &n) || __builtin_add_overflow(n, (uint64_t)(*p - '0'), &n)) return NULL;
    const char *letter = *p ? strchr(letters, *p & ~0x20) : NULL;
    if (letter && *letter) {
        if (__builtin_mul_overflow(n, UINT64_C(1) << 10 * (letter - letters + 1), &n)) return NULL;
        p++;
        if (*p == 'i' && p[1] == 'B') p += 2;
    }
    if (*p == 'B') p++;
    *value = n;
    return p;
}

bool tuner_number(const char *text, uint64_t *value)
{
    const char *end = number_at(text, value);
    return end && !*end;
}

/* N, A..B, A-B, A.., ..B */
static bool range_of(const char *text, struct tuner_range *range)
{
    if (is_any(text)) return *range = TUNER_ALL, true;
    struct tuner_range r = TUNER_ALL;
    const char *p = text;
    if (strncmp(p, "..", 2) != 0) {
        p = number_at(p, &r.low);
        if (!p) return false;
        if (!*p) return *range = (struct tuner_range){r.low, r.low}, true;
    }
    if (strncmp(p, "..", 2) == 0)
        p += 2;
    else if (*p == '-' && p[1])
        p++;
    else
        return false;
    if (*p) {
        p = number_at(p, &r.high);
        if (!p || *p) return false;
    } else if (p - text == 2) {
        return false; /* ".." alone */
    }
    *range = r;
    return true;
}

static bool like(const char *pattern, size_t n, const char *name)
{
    if (n == 0) return !*name;
    if (*pattern == '*') return like(pattern + 1, n - 1, name) || (*name && like(pattern, n, name + 1));
    return *name && (*pattern | 0x20) == *name && like(pattern + 1, n - 1, name + 1);
}

static bool ops_of(const char *text, uint32_t *ops)
{
    if (!*text || strcasecmp(text, "any") == 0) text = "*";
    *ops = 0;
    for (;;) {
        size_t n = strcspn(text, "|");
        const char *word = text, *rest = text + n;
        while (n && *word == ' ') word++, n--;
        while (n && word[n - 1] == ' ') n--;
        uint32_t found = 0;
        if (n && n < 32 && !memmem(word, n, "**", 2))
            for (int i = 0; i < TUNER_OPS; i++)
                if (like(word, n, tuner_ops[i])) found |= 1u << i;
        if (!found) return false;
        *ops |= found;
        if (!*rest) return true;
        text = rest + 1;
    }
}

static bool name_of(const char *text, const char *const *names, int n, int8_t *value)
{
    *value = -1;
    if (is_any(text)) return true;
    for (int i = 0; i < n; i++)
        if (strcasecmp(names[i], text) == 0) return *value = (int8_t)i, true;
    return false;
}

static bool truth_of(const char *text, int8_t *value)
{
    *value = -1;
    if (is_any(text)) return true;
    if (strcmp(text, "0") == 0 || strcasecmp(text, "false") == 0 || strcasecmp(text, "no") == 0)
        return *value = 0, true;
    if (strcmp(text, "1") == 0 || strcasecmp(text, "true") == 0 || strcasecmp(text, "yes") == 0)
        return *value = 1, true;
    return false;
}

static bool set_note(struct tuner_rule *rule, const char *text)
{
    size_t n = strlen(text);
    if (n >= TUNER_NOTE) {
        n = TUNER_NOTE - 1;
        while (n && ((unsigned char)text[n] & 0xC0) == 0x80) n--; /* no half character */
    }
    memcpy(rule->note, text, n);
    rule->note[n] = 0;
    return true;
}

bool tuner_rule_set(struct tuner_rule *rule, int column, const char *text, uint32_t line, struct tuner_error *error)
{
    uint64_t n = 0;
    const char *meant = "";
    bool good = false;
    switch ((enum tuner_column)column) {
    case TUNER_OP:
        good = ops_of(text, &rule->ops);
        meant = "broadcast, reduce, allgather, reducescatter, allreduce, several with | between them, or * in a name";
        break;
    case TUNER_MIN_BYTES:
        good = is_any(text) || tuner_number(text, &rule->bytes.low);
        meant = "bytes, such as 65536 or 64K";
        break;
    case TUNER_MAX_BYTES:
        good = is_any(text) || strcasecmp(text, "max") == 0 || tuner_number(text, &rule->bytes.high);
        meant = "bytes, such as 65536 or 64K, or max";
        break;
    case TUNER_BYTES:
    case TUNER_NODES:
    case TUNER_RANKS:
    case TUNER_DOMAINS:
    case TUNER_PIPE_OPS: {
        struct tuner_range *r = column == TUNER_BYTES     ? &rule->bytes
                                : column == TUNER_NODES   ? &rule->nodes
                                : column == TUNER_RANKS   ? &rule->ranks
                                : column == TUNER_DOMAINS ? &rule->domains
                                                          : &rule->pipe_ops;
        good = range_of(text, r);
        meant = "N, A..B, A.., ..B or *";
        break;
    }
    case TUNER_ALGORITHM:
        good = name_of(text, tuner_algorithms, NCCL_NUM_ALGORITHMS, &rule->algorithm);
        meant = "tree, ring, collnet_direct, collnet_chain, nvls, nvls_tree, pat or *";
        break;
    case TUNER_PROTOCOL:
        good = name_of(text, tuner_protocols, NCCL_NUM_PROTOCOLS, &rule->protocol);
        meant = "ll, ll128, simple or *";
        break;
    case TUNER_CHANNELS:
        good = is_any(text) || (tuner_number(text, &n) && n <= TUNER_MAX_CHANNELS);
        rule->channels = (int32_t)n;
        meant = "1 to 64, or -1 for NCCL's";
        break;
    case TUNER_REGISTERED:
        good = truth_of(text, &rule->registered);
        meant = "0, 1 or -1";
        break;
    case TUNER_CHUNK:
        /* NCCL rounds down to a multiple of the protocol's grain, 512 and 1920 among them, and divides by the result.
         */
        good = is_any(text) || (tuner_number(text, &n) && n >= 4096 && n <= 1 << 30);
        rule->chunk = n;
        meant = "bytes from 4K to 1G, or * for NCCL's";
        break;
    case TUNER_NOTES:
        good = set_note(rule, text);
        break;
    case TUNER_COLUMNS:
        break;
    }
    if (good) return true;
    const char *name = "";
    for (size_t i = 0; i < sizeof columns / sizeof *columns && !*name; i++)
        if ((int)columns[i].column == column) name = columns[i].name;
    return tuner_fail(error, line, "%s is \"%.40s\"; expected %s", name, text, meant);
}

bool tuner_rule_add(struct tuner_rules *rules, const struct tuner_rule *rule, struct tuner_error *error)
{
    const struct tuner_range *ranges[] = {&rule->bytes, &rule->nodes, &rule->ranks, &rule->domains, &rule->pipe_ops};
    static const char *const names[] = {"bytes", "nodes", "ranks", "nvl_domains", "pipe_ops"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (ranges[i]->low > ranges[i]->high)
            return tuner_fail(error, rule->line, "%s: the range %llu..%llu is empty", names[i],
                              (unsigned long long)ranges[i]->low, (unsigned long long)ranges[i]->high);
    if (rules->n == TUNER_MAX_RULES) return tuner_fail(error, rule->line, "more than %d rules", TUNER_MAX_RULES);
    if ((rules->n & (rules->n - 1)) == 0) {
        struct tuner_rule *more = realloc(rules->rule, sizeof *more * (rules->n ? 2 * (size_t)rules->n : 1));
        if (!more) return tuner_fail(error, rule->line, "no memory");
        rules->rule = more;
    }
    rules->rule[rules->n++] = *rule;
    return true;
}

/* ---- constants of NCCL's model, v5 and later ---- */

static int word_at(const char **text, const char *const *words, int n)
{
    size_t size = strcspn(*text, ".");
    for (int i = 0; i < n; i++)
        if (strlen(words[i]) == size && strncasecmp(words[i], *text, size) == 0) {
            *text += size + ((*text)[size] == '.');
            return i;
        }
    return -1;
}

static int constant_place(const char *name)
{
    static const char *const tables[] = {"baseLatencies",        "hwLatencies",          "llMaxBws",
                                         "perChMaxRingLL128Bws", "perChMaxTreeLL128Bws", "perChMaxTreeBws",
                                         "perChMaxNVLSTreeBws"};
    static const char *const links[] = {"nvlink", "pci", "net"};
    static const char *const gpus[] = {"volta", "ampere", "hopper", "blackwell"};
    static const char *const scales[] = {"1node", "2nodes", "4nodes"};
    enum { PAIRS = NCCL_NUM_ALGORITHMS_V5 * NCCL_NUM_PROTOCOLS_V5 };
    const char *p = name;
    int table = word_at(&p, tables, 7), place = 0, last;
    if (table < 0) return -1;
    if (table < 2) {
        int link = table == 0 ? 0 : word_at(&p, links, 3);
        int algorithm = word_at(&p, tuner_algorithms, NCCL_NUM_ALGORITHMS_V5);
        last = word_at(&p, tuner_protocols, NCCL_NUM_PROTOCOLS_V5);
        if (link < 0 || algorithm < 0) return -1;
        place = (table == 0 ? 0 : PAIRS * (1 + link)) + algorithm * NCCL_NUM_PROTOCOLS_V5;
    } else {
        int gpu = word_at(&p, gpus, 4);
        last = word_at(&p, scales, 3);
        if (gpu < 0) return -1;
        place = PAIRS * 4 + ((table - 2) * 4 + gpu) * 3;
    }
    return last < 0 || *p || name[strlen(name) - 1] == '.' ? -1 : place + last;
}

bool tuner_constant_add(struct tuner_rules *rules, const char *name, double value, uint32_t line,
                        struct tuner_error *error)
{
    int at = constant_place(name);
    if (at < 0)
        return tuner_fail(error, line,
                          "no constant %.60s; expected a name such as baseLatencies.ring.simple, "
                          "hwLatencies.net.tree.ll, llMaxBws.hopper.1node",
                          name);
    if (!isfinite(value) || value < 0) return tuner_fail(error, line, "%.60s: expected a number from 0", name);
    for (uint32_t i = 0; i < rules->nconstants; i++)
        if (rules->constant[i].at == at) return tuner_fail(error, line, "%.60s is set twice", name);
    struct tuner_constant *more = realloc(rules->constant, sizeof *more * (rules->nconstants + 1));
    if (!more) return tuner_fail(error, line, "no memory");
    rules->constant = more;
    more[rules->nconstants++] = (struct tuner_constant){(uint16_t)at, line, value};
    return true;
}

/* ---- files ---- */

/* Editors and other readers agree about the contents of a file only if it is text. */
static bool is_text(const char *text, size_t n, struct tuner_error *error)
{
    uint32_t line = 1;
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)text[i];
        size_t more = c < 0x80                ? 0
                      : c >= 0xC2 && c < 0xE0 ? 1
                      : c >= 0xE0 && c < 0xF0 ? 2
                      : c >= 0xF0 && c < 0xF5 ? 3
                                              : 9;
        if ((c < 0x20 && c != '\t' && c != '\n' && !(c == '\r' && i + 1 < n && text[i + 1] == '\n')) || c == 0x7F)
            return tuner_fail(error, line, "the control character 0x%02x", c);
        if (more == 9 || more >= n - i) return tuner_fail(error, line, "the byte 0x%02x is not UTF-8", c);
        for (size_t k = 1; k <= more; k++)
            if (((unsigned char)text[i + k] & 0xC0) != 0x80)
                return tuner_fail(error, line, "the byte 0x%02x is not UTF-8", c);
        unsigned char second = more ? (unsigned char)text[i + 1] : 0;
        if ((c == 0xE0 && second < 0xA0) || (c == 0xED && second > 0x9F) || (c == 0xF0 && second < 0x90) ||
            (c == 0xF4 && second > 0x8F))
            return tuner_fail(error, line, "the byte 0x%02x is not UTF-8", c);
        line += c == '\n';
        i += more + 1;
    }
    return true;
}

/* toml: otherwise CSV. false: error says where and what; out is empty. */
static bool tuner_rules_parse(const char *text, size_t n, bool toml, struct tuner_rules *out, struct tuner_error *error)
{
    *out = (struct tuner_rules){0};
    *error = (struct tuner_error){0};
    if (n > TUNER_MAX_FILE) return tuner_fail(error, 0, "it has more than %d bytes", TUNER_MAX_FILE);
    if (!is_text(text, n, error)) return false;
    char *copy = malloc(n + 1);
    if (!copy) return tuner_fail(error, 0, "no memory for %zu bytes", n);
    memcpy(copy, text, n);
    copy[n] = 0;
    bool good = toml ? tuner_parse_toml(copy, out, error) : tuner_parse_csv(copy, out, error);
    free(copy);
    if (!good) tuner_rules_free(out);
    return good;
}

bool tuner_rules_read(const char *path, struct tuner_rules *out, struct tuner_error *error)
{
    *out = (struct tuner_rules){0};
    *error = (struct tuner_error){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe is not a rule file and must not block */
    if (fd < 0) return tuner_fail(error, 0, "cannot open it: %s", strerror(errno));
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return tuner_fail(error, 0, "it is not a regular file");
    }
    char *text = malloc(TUNER_MAX_FILE + 1);
    size_t n = 0;
    ssize_t got = text ? 1 : -1;
    while (text && n <= TUNER_MAX_FILE && (got = read(fd, text + n, TUNER_MAX_FILE + 1 - n)) != 0) {
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) break;
        n += (size_t)got;
    }
    int number = errno;
    close(fd);
    const char *dot = strrchr(path, '.');
    bool good = got < 0 ? tuner_fail(error, 0, "cannot read it: %s", text ? strerror(number) : "no memory")
                        : tuner_rules_parse(text, n, dot && strcasecmp(dot, ".toml") == 0, out, error);
    free(text);
    return good;
}

void tuner_rules_free(struct tuner_rules *rules)
{
    free(rules->rule);
    free(rules->constant);
    *rules = (struct tuner_rules){0};
}
