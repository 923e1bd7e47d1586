#include "stream.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum type { INT, BYTE, FLAG, U64, HEX, I64, WORD };

struct member {
    const char *key;
    enum type type;
    size_t offset, size;
    unsigned of; /* bits of enum stream_what */
};
#define MEMBER(key, type, member, of)                                                                                  \
    {key, type, offsetof(struct stream_line, member), sizeof(((struct stream_line *)0)->member), 1u << (of)}
#define OF_START(key, type, field) MEMBER(key, type, e.field, STREAM_START),
#define OF_STATE(key, type, field) MEMBER(key, type, args.field, STREAM_STATE),
static const struct member members[] = {
    MEMBER("parent", U64, parent, STREAM_START),
    MEMBER("group", U64, group, STREAM_START),
    MEMBER("foreign", FLAG, foreign, STREAM_START),
    PSM_ABI_PROFILER_FIELDS_RECORDED(OF_START) MEMBER("none", FLAG, args.none, STREAM_STATE),
    PSM_ABI_PROFILER_ARGS_RECORDED(OF_STATE) MEMBER("comm", HEX, hash, STREAM_INIT),
    MEMBER("nodes", INT, nodes, STREAM_INIT),
    MEMBER("ranks", INT, ranks, STREAM_INIT),
    MEMBER("rank", INT, rank, STREAM_INIT),
    MEMBER("name", WORD, name, STREAM_INIT),
};
static const char *const words[] = {"init", "start", "state", "stop", "finalize"};

static size_t put_member(const struct member *m, const struct stream_line *line, char *out, size_t size)
{
    const char *at = (const char *)line + m->offset;
    static const char zero[STREAM_NAME];
    if (m->type == WORD ? !at[0] : memcmp(at, zero, m->size) == 0) return 0;
    int n = snprintf(out, size, " %s=", m->key);
    int v = 0;
    uint64_t wide = 0;
    switch (m->type) {
    case INT:
        memcpy(&v, at, sizeof v);
        return (size_t)(n + snprintf(out + n, size - (size_t)n, "%d", v));
    case BYTE:
    case FLAG:
        return (size_t)(n + snprintf(out + n, size - (size_t)n, "%d", *(const uint8_t *)at));
    case WORD:
        n += snprintf(out + n, size - (size_t)n, "%s", at);
        /* NCCL's names have no blanks; that of a communicator is chosen by the user. */
        for (char *c = strchr(out, '=') + 1; *c; c++)
            if (*c <= ' ' || *c > '~') *c = '_';
        return (size_t)n;
    default:
        break;
    }
    memcpy(&wide, at, sizeof wide);
    const char *format = m->type == HEX ? "%" PRIx64 : m->type == I64 ? "%" PRId64 : "%" PRIu64;
    return (size_t)(n + snprintf(out + n, size - (size_t)n, format, wide));
}

size_t stream_put(const struct stream_line *line, char *out, size_t size)
{
    int n = snprintf(out, size, "%s %d", words[line->what], line->thread);
    if (line->what != STREAM_STATE && line->what != STREAM_STOP)
        n += snprintf(out + n, size - (size_t)n, " %" PRIu64, line->comm);
    if (line->what == STREAM_START || line->what == STREAM_STATE || line->what == STREAM_STOP)
        n += snprintf(out + n, size - (size_t)n, " %" PRIu64, line->id);
    if (line->what == STREAM_START)
        n += snprintf(out + n, size - (size_t)n, " %s", event_kind_name(event_kind(line->e.type)));
    if (line->what == STREAM_STATE) n += snprintf(out + n, size - (size_t)n, " %d", line->state);
    size_t at = (size_t)n;
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        if (members[i].of & 1u << line->what) at += put_member(&members[i], line, out + at, size - at - 1);
    out[at++] = '\n';
    out[at] = 0;
    return at;
}

/* ---- reading ---- */

static bool number(const char **at, uint64_t *to, int base)
{
    char *end;
    *to = **at == '-' ? (uint64_t)strtoll(*at, &end, base) : strtoull(*at, &end, base);
    bool good = end != *at && (*end == 0 || *end == ' ' || *end == '\n');
    *at = *end == ' ' ? end + 1 : end;
    return good;
}

static const char *get_member(const char **at, struct stream_line *line)
{
    size_t n = strcspn(*at, "= \n");
    const struct member *m = NULL;
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        if (members[i].of & 1u << line->what && strlen(members[i].key) == n && memcmp(members[i].key, *at, n) == 0)
            m = &members[i];
    if (!m || (*at)[n] != '=') return "a member that this line must not have";
    *at += n + 1;
    char *to = (char *)line + m->offset;
    if (m->type == WORD) {
        n = strcspn(*at, " \n");
        if (n >= m->size) return "a word that is too long";
        memcpy(to, *at, n);
        to[n] = 0;
        *at += n + ((*at)[n] == ' ');
        return NULL;
    }
    uint64_t value;
    if (!number(at, &value, m->type == HEX ? 16 : 10)) return "expected a number after =";
    if (m->type == INT) {
        int v = (int)value;
        memcpy(to, &v, sizeof v);
    } else if (m->type == BYTE) {
        *(uint8_t *)to = (uint8_t)value;
    } else if (m->type == FLAG) {
        *(bool *)to = value != 0;
    } else {
        memcpy(to, &value, sizeof value);
    }
    return NULL;
}

const char *stream_get(const char *text, struct stream_line *line)
{
    memset(line, 0, sizeof *line);
    size_t n = strcspn(text, " \n");
    int what = 0;
    while (what < 5 && (strlen(words[what]) != n || memcmp(words[what], text, n) != 0)) what++;
    if (what == 5) return "expected init, start, state, stop or finalize first";
    line->what = (enum stream_what)what;
    const char *at = text + n + (text[n] == ' ');
    uint64_t value;
    if (!number(&at, &value, 10) || value > 255) return "expected the number of a thread, up to 255";
    line->thread = (int)value;
    if (what != STREAM_STATE && what != STREAM_STOP && !number(&at, &line->comm, 10))
        return "expected the number of a communicator";
    if (what != STREAM_INIT && what != STREAM_FINALIZE && !number(&at, &line->id, 10))
        return "expected the number of an event";
    if (what == STREAM_START) {
        n = strcspn(at, " \n");
        int kind = 0;
        while (kind < EVENT_TYPES && (strlen(event_kind_name(kind)) != n || memcmp(event_kind_name(kind), at, n) != 0))
            kind++;
        if (kind == EVENT_TYPES) return "expected a kind of event, such as Coll";
        line->e.type = UINT64_C(1) << kind;
        at += n + (at[n] == ' ');
    }
    if (what == STREAM_STATE) {
        if (!number(&at, &value, 10) || value >= EVENT_STATES) return "expected the number of a state";
        line->state = (int)value;
    }
    while (*at && *at != '\n') {
        const char *wrong = get_member(&at, line);
        if (wrong) return wrong;
    }
    return NULL;
}
