/* Rules as TOML: [[rule]] tables, [constants] and from_call. What is accepted here means the same to every reader of
 * TOML; TOML's other forms (dates, inline tables, multi-line strings, quoted keys) are not needed and are rejected. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rules.h"

enum { MAX_KEY = 64, MAX_VALUE = 256, MAX_KEYS = 160 };
enum kind { STRING, INTEGER, FLOAT, BOOLEAN, ARRAY };

struct reader {
    const char *p;
    uint32_t line;
    struct tuner_error *error;
};

static void blanks(struct reader *r)
{
    while (*r->p == ' ' || *r->p == '\t') r->p++;
}

/* Skips blanks and a comment up to the end of the line. */
static bool line_end(struct reader *r)
{
    blanks(r);
    if (*r->p == '#') r->p += strcspn(r->p, "\n");
    if (*r->p == '\r' && r->p[1] == '\n') r->p++;
    if (*r->p && *r->p != '\n')
        return tuner_fail(r->error, r->line, "unexpected \"%.20s\" before the end of the line", r->p);
    return true;
}

static bool bare(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

/* a.b.c; blanks around the dots are skipped. */
static bool key_of(struct reader *r, char *key, bool dots)
{
    size_t n = 0;
    for (;;) {
        size_t begin = n;
        while (bare(*r->p)) {
            if (n == MAX_KEY - 2) return tuner_fail(r->error, r->line, "a key of more than %d letters", MAX_KEY - 2);
            key[n++] = *r->p++;
        }
        if (n == begin) return tuner_fail(r->error, r->line, "expected a name, found \"%.20s\"", r->p);
        blanks(r);
        if (!dots || *r->p != '.') break;
        r->p++;
        blanks(r);
        key[n++] = '.';
    }
    key[n] = 0;
    return true;
}

static bool put(struct reader *r, char *value, size_t *n, char c)
{
    if (*n == MAX_VALUE - 1) return tuner_fail(r->error, r->line, "a value of more than %d bytes", MAX_VALUE - 1);
    value[(*n)++] = c;
    value[*n] = 0;
    return true;
}

static bool string_of(struct reader *r, char *value, size_t *n)
{
    char quote = *r->p++;
    if (*r->p == quote && r->p[1] == quote)
        return tuner_fail(r->error, r->line, "multi-line strings are not supported");
    for (; *r->p != quote; r->p++) {
        char c = *r->p;
        if (!c || c == '\n' || c == '\r') return tuner_fail(r->error, r->line, "a quote has no end");
        if (c == '\\' && quote == '"') {
            static const char from[] = "\"\\tn", to[] = "\"\\\t\n";
            const char *at = *++r->p ? strchr(from, *r->p) : NULL;
            if (!at) return tuner_fail(r->error, r->line, "the escape \\%.1s is not supported", r->p);
            c = to[at - from];
        }
        if (!put(r, value, n, c)) return false;
    }
    r->p++;
    return true;
}

/* TOML's digits: underscores between two of them, no leading zero. */
static bool digits(struct reader *r, char *value, size_t *n, bool zeros)
{
    const char *begin = r->p;
    while (*r->p >= '0' && *r->p <= '9') {
        if (!put(r, value, n, *r->p++)) return false;
        if (*r->p == '_') {
            if (r->p[1] < '0' || r->p[1] > '9') return false;
            r->p++;
        }
    }
    return r->p > begin && (zeros || *begin != '0' || r->p == begin + 1);
}

static bool number_of(struct reader *r, char *value, size_t *n, enum kind *kind)
{
    const char *begin = r->p;
    bool good = true;
    *kind = INTEGER;
    if (*r->p == '-' && !put(r, value, n, '-')) return false;
    if (*r->p == '-' || *r->p == '+') r->p++;
    good = digits(r, value, n, false);
    if (good && *r->p == '.') {
        *kind = FLOAT;
        r->p++;
        good = put(r, value, n, '.') && digits(r, value, n, true);
    }
    if (good && (*r->p == 'e' || *r->p == 'E')) {
        *kind = FLOAT;
        r->p++;
        if (!put(r, value, n, 'e')) return false;
        if (*r->p == '-' && !put(r, value, n, '-')) return false;
        if (*r->p == '-' || *r->p == '+') r->p++;
        good = digits(r, value, n, true);
    }
    good = good && !bare(*r->p) && *r->p != ':' && *r->p != '.';
    return good || tuner_fail(r->error, r->line, "\"%.20s\" is not a supported value: strings need quotes", begin);
}

static bool value_of(struct reader *r, char *value, size_t *n, enum kind *kind);

/* Strings are joined, with | between them. */
static bool array_of(struct reader *r, char *value, size_t *n)
{
    bool comma = true;
    for (r->p++;;) {
        blanks(r);
        if (*r->p == '#' || *r->p == '\n' || *r->p == '\r') {
            if (!line_end(r)) return false;
            if (!*r->p) return tuner_fail(r->error, r->line, "a list has no end");
            r->p++;
            r->line++;
            continue;
        }
        if (*r->p == ']') break;
        if (!comma) return tuner_fail(r->error, r->line, "expected a comma, found \"%.20s\"", r->p);
        if (*r->p != '"' && *r->p != '\'') return tuner_fail(r->error, r->line, "lists may only contain strings");
        if (*n && !put(r, value, n, '|')) return false;
        if (!string_of(r, value, n)) return false;
        blanks(r);
        comma = *r->p == ',';
        r->p += comma;
    }
    r->p++;
    return *n || tuner_fail(r->error, r->line, "an empty list");
}

static bool value_of(struct reader *r, char *value, size_t *n, enum kind *kind)
{
    value[*n] = 0;
    switch (*r->p) {
    case '"':
    case '\'':
        *kind = STRING;
        return string_of(r, value, n);
    case '[':
        *kind = ARRAY;
        return array_of(r, value, n);
    case 't':
    case 'f': {
        const char *word = *r->p == 't' ? "true" : "false";
        *kind = BOOLEAN;
        if (strncmp(r->p, word, strlen(word)) == 0 && !bare(r->p[strlen(word)])) {
            r->p += strlen(word);
            memcpy(value, word, strlen(word) + 1);
            return true;
        }
    } /* fall through */
    default:
        return number_of(r, value, n, kind);
    }
}

/* A rule may set a column once, although a column has several names. */
struct place {
    enum { TOP, RULE, CONSTANTS } table;
    struct tuner_rule rule;
    uint32_t set; /* bits of columns */
    bool has_constants, has_from;
};

static bool in_rule(struct reader *r, struct place *at, const char *key, const char *value, enum kind kind)
{
    int column = tuner_column_of(key);
    if (column < 0) return tuner_fail(r->error, r->line, "a rule has no %.40s", key);
    uint32_t bit = 1u << column, sizes = 1u << TUNER_MIN_BYTES | 1u << TUNER_MAX_BYTES;
    if (column == TUNER_BYTES) bit |= sizes;
    if (at->set & bit || (bit & sizes && at->set & 1u << TUNER_BYTES))
        return tuner_fail(r->error, r->line, "%.40s is set twice", key);
    at->set |= 1u << column;
    bool fits = kind == STRING || (kind == INTEGER && column != TUNER_OP && column != TUNER_NOTES) ||
                (kind == BOOLEAN && column == TUNER_REGISTERED) || (kind == ARRAY && column == TUNER_OP);
    if (!fits) return tuner_fail(r->error, r->line, "%.40s must be a string or a number", key);
    return tuner_rule_set(&at->rule, column, value, r->line, r->error);
}

static bool assignment(struct reader *r, struct place *at, struct tuner_rules *rules)
{
    char key[MAX_KEY], value[MAX_VALUE];
    size_t n = 0;
    enum kind kind;
    uint32_t line = r->line;
    if (!key_of(r, key, at->table == CONSTANTS)) return false;
    if (*r->p != '=') return tuner_fail(r->error, r->line, "expected = after %.40s", key);
    r->p++;
    blanks(r);
    if (!value_of(r, value, &n, &kind) || !line_end(r)) return false;
    if (at->table == RULE) return in_rule(r, at, key, value, kind);
    if (at->table == CONSTANTS)
        return (kind == INTEGER || kind == FLOAT) ? tuner_constant_add(rules, key, strtod(value, NULL), line, r->error)
                                                  : tuner_fail(r->error, line, "%.40s must be a number", key);
    if (strcmp(key, "from_call") != 0)
        return tuner_fail(r->error, line, "%.40s is in no table; start one with [[rule]]", key);
    if (at->has_from) return tuner_fail(r->error, line, "from_call is set twice");
    at->has_from = true;
    if (kind != INTEGER || !tuner_number(value, &rules->from_call) || !rules->from_call)
        return tuner_fail(r->error, line, "from_call must be a number from 1");
    return true;
}

static bool table_begins(struct reader *r, struct place *at, struct tuner_rules *rules)
{
    char name[MAX_KEY];
    bool list = r->p[1] == '[';
    r->p += 1 + list;
    blanks(r);
    if (!key_of(r, name, true)) return false;
    if (*r->p != ']' || (list && r->p[1] != ']')) return tuner_fail(r->error, r->line, "expected ] after %.40s", name);
    r->p += 1 + list;
    if (!line_end(r)) return false;
    if (at->table == RULE && !tuner_rule_add(rules, &at->rule, r->error)) return false;
    if (list && strcmp(name, "rule") == 0) {
        at->table = RULE;
        at->rule = tuner_rule_any(r->line);
        at->set = 0;
        return true;
    }
    if (list || strcmp(name, "constants") != 0)
        return tuner_fail(r->error, r->line, "unknown table %.40s; expected [[rule]] or [constants]", name);
    if (at->has_constants) return tuner_fail(r->error, r->line, "[constants] is given twice");
    at->has_constants = true;
    at->table = CONSTANTS;
    return true;
}

bool tuner_parse_toml(char *text, struct tuner_rules *rules, struct tuner_error *error)
{
    struct reader r = {text, 1, error};
    struct place at = {.table = TOP};
    for (;;) {
        blanks(&r);
        if (*r.p == '[') {
            if (!table_begins(&r, &at, rules)) return false;
        } else if (*r.p && *r.p != '#' && *r.p != '\n' && *r.p != '\r') {
            if (!assignment(&r, &at, rules)) return false;
        } else if (!line_end(&r)) {
            return false;
        }
        if (!*r.p) break;
        r.p++;
        r.line++;
    }
    return at.table != RULE || tuner_rule_add(rules, &at.rule, error);
}
