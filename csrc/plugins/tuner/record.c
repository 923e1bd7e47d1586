/* The recorder: the last decisions, each with the line of the file that caused it. */
#include <string.h>

#include "tuner.h"
#include "tuner_say.h"

enum { DECISIONS = 4096 };

/* line 0: no rule; passed: the line of the first rule that matched but was not available. */
struct decision_row {
    uint64_t comm_id, call, bytes;
    uint32_t ranks, nodes, line, passed;
    int32_t pipe_ops, registered, channels, version;
    char op[16], algorithm[16], protocol[8], note[TUNER_NOTE];
};
static const struct psm_field fields[] = {
    PSM_FIELDS(struct decision_row, PSM_HEX64, comm_id),
    PSM_FIELDS(struct decision_row, PSM_U64, call, bytes),
    PSM_FIELDS(struct decision_row, PSM_U32, ranks, nodes, line, passed),
    PSM_FIELDS(struct decision_row, PSM_I32, pipe_ops, registered, channels, version),
    PSM_FIELDS(struct decision_row, PSM_STR, op, algorithm, protocol, note),
};
static const struct psm_record_message lines[] = {PSM_MESSAGE_PSM_TUNER_RECORD};
static const struct psm_schema schema = PSM_SCHEMA("psm.tuner", struct decision_row, fields, lines);

psm_section *tuner_record(void)
{
    return psm_record_section(psm_record_self(), &schema, PSM_RING, DECISIONS);
}

void tuner_record_decision(const struct tuner_context *c, uint64_t call, const struct tuner_query *q,
                           const struct tuner_choice *choice)
{
    uint64_t ticket;
    struct decision_row *row = psm_ring_begin(c->rows, &ticket);
    if (!row) return;
    const struct tuner_rule *rule = choice->rule;
    row->comm_id = c->comm_id;
    row->call = call;
    row->bytes = q->bytes;
    row->ranks = (uint32_t)c->ranks;
    row->nodes = (uint32_t)c->nodes;
    row->line = rule ? rule->line : 0;
    row->passed = choice->passed ? choice->passed->line : 0;
    row->pipe_ops = (int32_t)q->pipe_ops;
    row->registered = q->registered;
    row->channels = rule ? rule->channels : 0;
    row->version = c->version;
    psm_record_text(row->op, sizeof row->op, q->op >= 0 && q->op < TUNER_OPS ? tuner_ops[q->op] : "other");
    psm_record_text(row->algorithm, sizeof row->algorithm, tuner_algorithm_name(choice->algorithm));
    psm_record_text(row->protocol, sizeof row->protocol, tuner_protocol_name(choice->protocol));
    if (rule)
        memcpy(row->note, rule->note, sizeof row->note);
    else
        row->note[0] = 0;
    psm_ring_commit(c->rows, ticket);
}
