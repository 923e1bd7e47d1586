/* psm_tuner_rules FILE: how the plugin reads a rule file, as lines of JSON.
 *
 * First {"rules": [...], "constants": N, "from_call": N}, or {"line": N, "error": "..."}, which ends the output. Then
 * an answer for each line of standard input: OP BYTES RANKS NODES DOMAINS PIPE_OPS REGISTERED, with -1 for unknown
 * numbers, followed by the available pairs: nothing for all, or pairs such as ring/simple. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rules.h"

static void put_text(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 32 || c == 127 || c == '"' || c == '\\')
            printf("\\u%04x", c);
        else
            putchar(c);
    }
    putchar('"');
}

static void put_range(const char *name, const struct tuner_range *r)
{
    printf(", \"%s\": [%llu, %llu]", name, (unsigned long long)r->low, (unsigned long long)r->high);
}

static void put_rule(const struct tuner_rule *r)
{
    printf("{\"line\": %u, \"ops\": [", r->line);
    const char *comma = "";
    for (int i = 0; i < TUNER_OPS; i++)
        if (r->ops >> i & 1) {
            printf("%s\"%s\"", comma, tuner_ops[i]);
            comma = ", ";
        }
    printf("]");
    put_range("bytes", &r->bytes);
    put_range("nodes", &r->nodes);
    put_range("ranks", &r->ranks);
    put_range("nvl_domains", &r->domains);
    put_range("pipe_ops", &r->pipe_ops);
    printf(", \"registered\": %d, \"algorithm\": \"%s\", \"protocol\": \"%s\", \"channels\": %d, \"chunk\": %llu, "
           "\"note\": ",
           r->registered, tuner_algorithm_name(r->algorithm), tuner_protocol_name(r->protocol), r->channels,
           (unsigned long long)r->chunk);
    put_text(r->note);
    printf("}");
}

static int index_of(const char *name, const char *const *names, int n)
{
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}

/* The costs that a query offers: 1 for each pair. false: a word is not a pair. */
static bool offer(char *words, float costs[NCCL_NUM_ALGORITHMS][NCCL_NUM_PROTOCOLS], bool *some)
{
    char *save = NULL;
    *some = false;
    for (int a = 0; a < NCCL_NUM_ALGORITHMS; a++)
        for (int p = 0; p < NCCL_NUM_PROTOCOLS; p++) costs[a][p] = NCCL_ALGO_PROTO_IGNORE;
    for (char *word = strtok_r(words, " \n", &save); word; word = strtok_r(NULL, " \n", &save)) {
        char *slash = strchr(word, '/');
        if (!slash) return false;
        *slash = 0;
        int a = index_of(word, tuner_algorithms, NCCL_NUM_ALGORITHMS);
        int p = index_of(slash + 1, tuner_protocols, NCCL_NUM_PROTOCOLS);
        if (a < 0 || p < 0) return false;
        costs[a][p] = 1;
        *some = true;
    }
    return true;
}

static bool answer(const struct tuner_rules *rules, char *line)
{
    static struct tuner_table *table;
    static struct tuner_shape last;
    char op[32];
    long long ranks, nodes, domains, pipe_ops;
    unsigned long long bytes;
    int registered, at = 0;
    if (sscanf(line, "%31s %llu %lld %lld %lld %lld %d%n", op, &bytes, &ranks, &nodes, &domains, &pipe_ops, &registered,
               &at) != 7)
        return false;
    float costs[NCCL_NUM_ALGORITHMS][NCCL_NUM_PROTOCOLS];
    bool some;
    struct tuner_query q = {.op = index_of(op, tuner_ops, TUNER_OPS),
                            .bytes = bytes,
                            .pipe_ops = pipe_ops,
                            .registered = registered,
                            .algorithms = NCCL_NUM_ALGORITHMS,
                            .protocols = NCCL_NUM_PROTOCOLS};
    if (q.op < 0 || !offer(line + at, costs, &some)) return false;
    if (some) q.costs = &costs[0][0];
    struct tuner_shape shape = {ranks, nodes, domains};
    if (!table || memcmp(&shape, &last, sizeof shape) != 0) {
        tuner_table_free(table);
        table = tuner_table_make(rules, &shape);
        last = shape;
        if (!table) return false;
    }
    struct tuner_choice choice;
    const struct tuner_rule *with_chunk;
    tuner_decide(table, &q, &choice);
    uint64_t chunk = tuner_chunk(table, q.op, bytes, choice.algorithm, choice.protocol, &with_chunk);
    printf("{\"line\": %u, \"passed\": %u, \"algorithm\": \"%s\", \"protocol\": \"%s\", \"channels\": %d, \"chunk\": "
           "%llu, \"note\": ",
           choice.rule ? choice.rule->line : 0, choice.passed ? choice.passed->line : 0,
           tuner_algorithm_name(choice.algorithm), tuner_protocol_name(choice.protocol),
           choice.rule ? choice.rule->channels : 0, (unsigned long long)chunk);
    put_text(choice.rule ? choice.rule->note : "");
    printf("}\n");
    return true;
}

int main(int argc, char **argv)
{
    struct tuner_rules rules;
    struct tuner_error error;
    if (argc != 2) {
        fprintf(stderr, "usage: psm_tuner_rules FILE < queries\n");
        return 2;
    }
    if (!tuner_rules_read(argv[1], &rules, &error)) {
        printf("{\"line\": %u, \"error\": ", error.line);
        put_text(error.text);
        printf("}\n");
        return 1;
    }
    printf("{\"rules\": [");
    for (uint32_t i = 0; i < rules.n; i++) {
        if (i) printf(", ");
        put_rule(&rules.rule[i]);
    }
    printf("], \"constants\": {");
    for (uint32_t i = 0; i < rules.nconstants; i++)
        printf("%s\"%u\": %.17g", i ? ", " : "", rules.constant[i].at, rules.constant[i].value);
    printf("}, \"from_call\": %llu}\n", (unsigned long long)rules.from_call);
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, stdin) > 0)
        if (!answer(&rules, line)) {
            fprintf(stderr, "not a query: %s", line);
            return 2;
        }
    free(line);
    tuner_rules_free(&rules);
    return fflush(stdout) == 0 ? 0 : 2;
}
