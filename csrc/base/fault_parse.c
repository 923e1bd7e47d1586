/* The fault grammar: parses text to rules and formats rules as text. */
#include "fault_parse.h"

#include <ctype.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAULTS = 256, BILLION = 1000000000 };

static const char *const actions[PSM_FAULT_ACTIONS] = {
    [PSM_FAULT_NONE] = "none",           [PSM_FAULT_ERROR] = "error",     [PSM_FAULT_HANG] = "hang",
    [PSM_FAULT_SLOW] = "slow",           [PSM_FAULT_LATE] = "late",       [PSM_FAULT_KILL] = "kill",
    [PSM_FAULT_DROP] = "drop",           [PSM_FAULT_SHORT] = "short",     [PSM_FAULT_CORRUPT] = "corrupt",
    [PSM_FAULT_DUPLICATE] = "duplicate", [PSM_FAULT_REORDER] = "reorder", [PSM_FAULT_CLOSE] = "close",
    [PSM_FAULT_STALL] = "stall",
};
/* Aliases that are common in networking. */
static const struct {
    const char *name;
    enum psm_fault_action action;
} also[] = {{"delay", PSM_FAULT_SLOW}, {"truncate", PSM_FAULT_SHORT}};

static const struct {
    const char *name;
    int number;
} signals[] = {{"KILL", SIGKILL}, {"TERM", SIGTERM}, {"SEGV", SIGSEGV}, {"ABRT", SIGABRT}, {"BUS", SIGBUS},
               {"INT", SIGINT},   {"STOP", SIGSTOP}, {"FPE", SIGFPE},   {"ILL", SIGILL},   {"HUP", SIGHUP},
               {"QUIT", SIGQUIT}, {"USR1", SIGUSR1}, {"USR2", SIGUSR2}};

static const struct {
    const char *name;
    int64_t ns;
} units[] = {{"ns", 1}, {"us", 1000}, {"ms", 1000000}, {"s", BILLION}};

struct parser {
    const char *text;
    struct psm_fault_error *error;
};

/* A slice of the text, without surrounding blanks. */
struct part {
    const char *s;
    size_t n;
};

static bool fail(const struct parser *p, const char *at, const char *format, ...)
{
    if (p->error) {
        p->error->position = (size_t)(at - p->text);
        va_list args;
        va_start(args, format);
        vsnprintf(p->error->text, sizeof p->error->text, format, args);
        va_end(args);
    }
    return false;
}

/* For "%.*s": a message quotes the start of the unexpected text and does not cut a UTF-8 character. */
static int shown(struct part part)
{
    size_t n = part.n > 40 ? 40 : part.n;
    while (n < part.n && n > 0 && ((unsigned char)part.s[n] & 0xc0) == 0x80) n--;
    return (int)n;
}

static struct part trim(const char *s, const char *end)
{
    while (s < end && isspace((unsigned char)*s)) s++;
    while (end > s && isspace((unsigned char)end[-1])) end--;
    return (struct part){s, (size_t)(end - s)};
}

static bool is(struct part part, const char *word)
{
    return strlen(word) == part.n && memcmp(part.s, word, part.n) == 0;
}

static bool read_digits(const char **s, const char *end, uint64_t *value)
{
    const char *p = *s;
    uint64_t v = 0;
    for (; p < end && isdigit((unsigned char)*p); p++) {
        uint64_t digit = (uint64_t)(*p - '0');
        if (v > (UINT64_MAX - digit) / 10) return false;
        v = v * 10 + digit;
    }
    if (p == *s) return false;
    *s = p;
    *value = v;
    return true;
}

static bool read_uint(struct part part, uint64_t most, uint64_t *value)
{
    const char *s = part.s, *end = part.s + part.n;
    return read_digits(&s, end, value) && s == end && *value <= most;
}

static bool read_name(const struct parser *p, struct part part, char *to, const char *what)
{
    if (part.n == 0) return fail(p, part.s, "expected %s, found nothing", what);
    if (part.n >= PSM_FAULT_NAME)
        return fail(p, part.s, "%s is longer than %d bytes: '%.*s...'", what, PSM_FAULT_NAME - 1, shown(part), part.s);
    for (size_t i = 0; i < part.n; i++)
        if (!isalnum((unsigned char)part.s[i]) && !strchr("_.-/", part.s[i]))
            return fail(p, part.s + i, "expected %s of letters, digits and _.-/, found '%.*s'", what, shown(part),
                        part.s);
    memcpy(to, part.s, part.n);
    to[part.n] = 0;
    return true;
}

static bool read_duration(const struct parser *p, struct part part, int64_t *ns)
{
    const char *s = part.s, *end = part.s + part.n;
    uint64_t number;
    if (read_digits(&s, end, &number))
        for (size_t i = 0; i < sizeof units / sizeof *units; i++)
            if (is((struct part){s, (size_t)(end - s)}, units[i].name) && number <= INT64_MAX / (uint64_t)units[i].ns) {
                *ns = (int64_t)number * units[i].ns;
                return true;
            }
    return fail(p, part.s, "expected a duration such as 10us, 5ms or 2s, found '%.*s'", shown(part), part.s);
}

static bool read_signal(const struct parser *p, struct part part, int64_t *value)
{
    uint64_t number;
    if (read_uint(part, 64, &number) && number > 0) {
        *value = (int64_t)number;
        return true;
    }
    struct part name = part;
    if (name.n > 3 && memcmp(name.s, "SIG", 3) == 0) name = (struct part){name.s + 3, name.n - 3};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (is(name, signals[i].name)) {
            *value = signals[i].number;
            return true;
        }
    return fail(p, part.s, "expected a signal such as 9, KILL or SIGSEGV, found '%.*s'", shown(part), part.s);
}

static bool read_error(const struct parser *p, struct part part, struct psm_rule *rule)
{
    bool minus = part.n > 1 && part.s[0] == '-';
    uint64_t number;
    if (read_uint((struct part){part.s + minus, part.n - minus}, INT32_MAX, &number)) {
        rule->value = minus ? -(int64_t)number : (int64_t)number;
        return true;
    }
    if (part.n && !isalpha((unsigned char)part.s[0]) && part.s[0] != '_')
        return fail(p, part.s, "expected an error number or name, found '%.*s'", shown(part), part.s);
    return read_name(p, part, rule->error, "an error number or name");
}

static bool read_action(const struct parser *p, struct part name, struct part value, bool has_value,
                        struct psm_rule *rule)
{
    int action = PSM_FAULT_NONE + 1;
    while (action < PSM_FAULT_ACTIONS && !is(name, actions[action])) action++;
    for (size_t i = 0; i < sizeof also / sizeof *also; i++)
        if (is(name, also[i].name)) action = also[i].action;
    if (action == PSM_FAULT_ACTIONS)
        return fail(
            p, name.s,
            "expected an action (error=, hang, slow=, late=, kill, drop, short=, corrupt, duplicate, reorder, close, "
            "stall), found '%.*s'",
            shown(name), name.s);
    rule->action = (enum psm_fault_action)action;
    bool wants =
        action == PSM_FAULT_ERROR || action == PSM_FAULT_SLOW || action == PSM_FAULT_LATE || action == PSM_FAULT_SHORT;
    if (wants && !has_value) return fail(p, name.s + name.n, "expected '=' and a value after %s", actions[action]);
    if (has_value && !wants && action != PSM_FAULT_KILL && action != PSM_FAULT_STALL)
        return fail(p, value.s, "%s takes no value, found '%.*s'", actions[action], shown(value), value.s);
    switch (rule->action) {
    case PSM_FAULT_ERROR:
        return read_error(p, value, rule);
    case PSM_FAULT_SLOW:
    case PSM_FAULT_LATE:
        return read_duration(p, value, &rule->value);
    case PSM_FAULT_STALL:
        return !has_value || read_duration(p, value, &rule->value);
    case PSM_FAULT_KILL:
        rule->value = SIGKILL;
        return !has_value || read_signal(p, value, &rule->value);
    case PSM_FAULT_SHORT: {
        uint64_t bytes;
        if (!read_uint(value, INT64_MAX, &bytes))
            return fail(p, value.s, "expected a number of bytes, found '%.*s'", shown(value), value.s);
        rule->value = (int64_t)bytes;
        return true;
    }
    default:
        return true;
    }
}

/* 3: the third; 3+: from the third on; 3/5: every fifth from the third on. */
static bool read_nth(const struct parser *p, struct part part, struct psm_rule *rule)
{
    const char *s = part.s, *end = part.s + part.n;
    bool good = read_digits(&s, end, &rule->nth) && rule->nth > 0;
    if (good && s < end && *s == '+') {
        rule->every = 1;
        s++;
    } else if (good && s < end && *s == '/') {
        s++;
        good = read_digits(&s, end, &rule->every) && rule->every > 0;
    }
    if (good && s == end) return true;
    return fail(p, part.s, "expected nth=3, nth=3+ or nth=3/5 (counted from 1), found '%.*s'", shown(part), part.s);
}

static bool read_p(const struct parser *p, struct part part, struct psm_rule *rule)
{
    const char *s = part.s, *end = part.s + part.n;
    uint64_t whole = 0, billionths = 0;
    bool good = read_digits(&s, end, &whole) && whole <= 1;
    if (good && s < end && *s == '.') {
        s++;
        uint64_t weight = BILLION;
        good = s < end;
        for (; s < end && isdigit((unsigned char)*s); s++) {
            weight /= 10;
            billionths += (uint64_t)(*s - '0') * weight;
        }
    }
    billionths += whole * BILLION;
    if (!good || s != end || billionths > BILLION)
        return fail(p, part.s, "expected a probability from 0 to 1 such as 0.25, found '%.*s'", shown(part), part.s);
    rule->has_p = true;
    rule->p_billionths = (uint32_t)billionths;
    return true;
}

enum key { KEY_RANK, KEY_PEER, KEY_COMM, KEY_NTH, KEY_P, KEY_SEED, KEY_OP, KEYS };
static const char *const keys[KEYS] = {"rank", "peer", "comm", "nth", "p", "seed", "op"};

static bool read_key(const struct parser *p, struct part name, struct part value, bool has_value, unsigned *seen,
                     struct psm_rule *rule)
{
    int key = 0;
    while (key < KEYS && !is(name, keys[key])) key++;
    if (key == KEYS)
        return fail(p, name.s, "expected a key (rank=, peer=, comm=, nth=, p=, seed=, op=), found '%.*s'", shown(name),
                    name.s);
    if (*seen & 1u << key) return fail(p, name.s, "%s= is given twice", keys[key]);
    *seen |= 1u << key;
    if (!has_value) return fail(p, name.s + name.n, "expected '=' and a value after %s", keys[key]);
    uint64_t number;
    switch ((enum key)key) {
    case KEY_RANK:
    case KEY_PEER:
        if (!read_uint(value, INT32_MAX, &number))
            return fail(p, value.s, "expected the number of a rank, found '%.*s'", shown(value), value.s);
        *(key == KEY_RANK ? &rule->rank : &rule->peer) = (int)number;
        return true;
    case KEY_COMM:
        if (!read_uint(value, INT32_MAX, &number))
            return fail(p, value.s, "expected the number of a communicator, from 0, found '%.*s'", shown(value),
                        value.s);
        rule->comm = (int)number;
        return true;
    case KEY_SEED:
        if (!read_uint(value, UINT64_MAX, &rule->seed))
            return fail(p, value.s, "expected a number as seed, found '%.*s'", shown(value), value.s);
        return true;
    case KEY_NTH:
        return read_nth(p, value, rule);
    case KEY_P:
        return read_p(p, value, rule);
    default:
        return read_name(p, value, rule->op, "an operation");
    }
}

static bool read_fault(const struct parser *p, struct part fault, struct psm_rule *rule)
{
    const char *s = fault.s, *end = fault.s + fault.n;
    unsigned seen = 0;
    *rule = (struct psm_rule){.position = (size_t)(fault.s - p->text),
                              .rank = PSM_FAULT_UNKNOWN,
                              .peer = PSM_FAULT_UNKNOWN,
                              .comm = PSM_FAULT_UNKNOWN};
    for (int number = 0; number == 0 || s <= end; number++) {
        const char *e = s;
        while (e < end && *e != ':' && *e != ',') e++;
        struct part part = trim(s, e);
        if (number == 0) {
            if (e < end && *e == ',') return fail(p, e, "expected ':' after the site, found ','");
            if (part.n && part.s[part.n - 1] == '*') {
                rule->prefix = true;
                part.n--;
            }
            if (!(rule->prefix && part.n == 0) && !read_name(p, part, rule->site, "a site")) return false;
        } else {
            const char *sign = memchr(part.s, '=', part.n), *stop = part.s + part.n;
            struct part name = trim(part.s, sign ? sign : stop), value = trim(sign ? sign + 1 : stop, stop);
            if (!(number == 1 ? read_action(p, name, value, sign != NULL, rule)
                              : read_key(p, name, value, sign != NULL, &seen, rule)))
                return false;
        }
        s = e + 1;
    }
    if (rule->action == PSM_FAULT_NONE)
        return fail(p, end, "expected ':' and an action after the site '%.*s'", shown(fault), fault.s);
    if ((seen & 1u << KEY_SEED) && !rule->has_p) return fail(p, fault.s, "seed= has no effect without p=");
    return true;
}

struct psm_fault_set *psm_fault_parse(const char *text, struct psm_fault_error *error)
{
    struct parser p = {text, error};
    size_t most = 1;
    for (const char *s = text; *s; s++) most += *s == ';';
    if (most > FAULTS) {
        fail(&p, text, "more than %d faults", FAULTS);
        return NULL;
    }
    struct psm_fault_set *set = calloc(1, sizeof *set + most * sizeof *set->rules);
    if (!set) {
        fail(&p, text, "out of memory");
        return NULL;
    }
    for (const char *s = text;; s++) {
        const char *e = s + strcspn(s, ";");
        struct part fault = trim(s, e);
        if (fault.n && !read_fault(&p, fault, &set->rules[set->n++])) {
            free(set);
            return NULL;
        }
        if (!*e) return set;
        s = e;
    }
}

void psm_fault_set_free(struct psm_fault_set *set)
{
    free(set);
}

size_t psm_fault_set_size(const struct psm_fault_set *set)
{
    return set->n;
}

const char *psm_fault_action_name(enum psm_fault_action action)
{
    return (unsigned)action < PSM_FAULT_ACTIONS ? actions[action] : "?";
}

size_t psm_fault_format(const struct psm_fault_set *set, size_t i, char *buffer, size_t size)
{
    char text[512];
    const struct psm_rule *r = &set->rules[i];
    size_t n = 0;
    /* All parts are bounded: the longest form takes about 360 bytes. */
#define ADD(...) n += (size_t)snprintf(text + n, sizeof text - n, __VA_ARGS__)
    ADD("%s%s:%s", r->site, r->prefix ? "*" : "", actions[r->action]);
    if (r->action == PSM_FAULT_ERROR && *r->error)
        ADD("=%s", r->error);
    else if (r->action == PSM_FAULT_ERROR || r->action == PSM_FAULT_SHORT || r->action == PSM_FAULT_KILL)
        ADD("=%lld", (long long)r->value);
    else if (r->action == PSM_FAULT_SLOW || r->action == PSM_FAULT_LATE || (r->action == PSM_FAULT_STALL && r->value)) {
        size_t unit = sizeof units / sizeof *units - 1;
        while (unit && r->value % units[unit].ns) unit--;
        ADD("=%lld%s", (long long)(r->value / units[unit].ns), units[unit].name);
    }
    if (r->rank >= 0) ADD(":rank=%d", r->rank);
    if (r->peer >= 0) ADD(":peer=%d", r->peer);
    if (r->comm >= 0) ADD(":comm=%d", r->comm);
    if (*r->op) ADD(":op=%s", r->op);
    if (r->nth) ADD(":nth=%llu", (unsigned long long)r->nth);
    if (r->every == 1) ADD("+");
    if (r->every > 1) ADD("/%llu", (unsigned long long)r->every);
    if (r->has_p) {
        ADD(":p=%u.%09u", r->p_billionths / BILLION, r->p_billionths % BILLION);
        if (r->seed) ADD(":seed=%llu", (unsigned long long)r->seed);
    }
#undef ADD
    return (size_t)snprintf(buffer, size, "%s", text);
}
