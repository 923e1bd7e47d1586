/* Rules as CSV: NVIDIA's columns in their order, or any columns with a first line that names them. */
#include <string.h>
#include <strings.h>

#include "rules.h"

enum { MAX_CELLS = TUNER_COLUMNS + 4 };

static bool blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Splits a line into cells, in place. # starts a comment, except in quotes. Returns the number of cells; 0: none, -1:
 * error. */
static int cells_of(char *p, char **cell, uint32_t line, struct tuner_error *error)
{
    int n = 0;
    for (;;) {
        while (blank(*p)) p++;
        if (n == 0 && (!*p || *p == '#')) return 0;
        if (n == MAX_CELLS) return tuner_fail(error, line, "more than %d cells", MAX_CELLS), -1;
        char *out = p, *end;
        if (*p == '"') {
            cell[n++] = end = out;
            for (p++; *p && (*p != '"' || p[1] == '"'); p++) {
                p += *p == '"';
                *end++ = *p;
            }
            if (!*p) return tuner_fail(error, line, "a quote has no end"), -1;
            p++;
            while (blank(*p)) p++;
            if (*p && *p != ',' && *p != '#') return tuner_fail(error, line, "text after a quoted cell"), -1;
        } else {
            cell[n++] = out;
            p += strcspn(p, ",#");
            end = p;
            while (end > out && blank(end[-1])) end--;
        }
        bool more = *p == ',';
        p += more;
        *end = 0;
        if (!more) return n;
    }
}

static bool header(char **cell, int n, int *column, uint32_t line, struct tuner_error *error)
{
    for (int i = 0; i < n; i++) {
        column[i] = tuner_column_of(cell[i]);
        if (column[i] < 0)
            return tuner_fail(error, line,
                              "unknown column %.40s; known: op, bytes, min_bytes, max_bytes, algorithm, protocol, "
                              "channels, nodes, ranks, pipe_ops, registered, nvl_domains, chunk, note",
                              cell[i]);
        for (int k = 0; k < i; k++)
            if (column[k] == column[i] ||
                (column[i] == TUNER_BYTES && column[k] <= TUNER_MAX_BYTES && column[k] > TUNER_OP) ||
                (column[k] == TUNER_BYTES && column[i] <= TUNER_MAX_BYTES && column[i] > TUNER_OP))
                return tuner_fail(error, line, "column %.40s repeats column %.40s", cell[i], cell[k]);
    }
    return true;
}

bool tuner_parse_csv(char *text, struct tuner_rules *rules, struct tuner_error *error)
{
    int column[MAX_CELLS], columns = 0; /* 0: NVIDIA's order */
    bool first = true;
    uint32_t line = 0;
    if (strncmp(text, "\xEF\xBB\xBF", 3) == 0) text += 3; /* spreadsheets write it */
    for (char *next; text; text = next) {
        line++;
        next = strchr(text, '\n');
        if (next) *next++ = 0;
        char *cell[MAX_CELLS];
        int n = cells_of(text, cell, line, error);
        if (n < 0) return false;
        if (n == 0) continue;
        if (strcasecmp(cell[0], "from_call") == 0) {
            if (rules->from_call) return tuner_fail(error, line, "from_call is set twice");
            if (n != 2 || !tuner_number(cell[1], &rules->from_call) || !rules->from_call)
                return tuner_fail(error, line, "from_call needs one number from 1 next to it");
            continue;
        }
        if (first && tuner_column_of(cell[0]) >= 0) {
            if (!header(cell, n, column, line, error)) return false;
            columns = n;
            first = false;
            continue;
        }
        first = false;
        if (columns ? n > columns : n < 8 || n > 10)
            return tuner_fail(error, line, "%d cells; %s", n,
                              columns ? "the first line names fewer columns"
                                      : "expected 8 to 10: op, min_bytes, max_bytes, algorithm, protocol, channels, "
                                        "nodes, ranks, pipe_ops, registered; or a first line that names columns");
        struct tuner_rule rule = tuner_rule_any(line);
        for (int i = 0; i < n; i++)
            if (!tuner_rule_set(&rule, columns ? column[i] : i, cell[i], line, error)) return false;
        if (!tuner_rule_add(rules, &rule, error)) return false;
    }
    return true;
}
