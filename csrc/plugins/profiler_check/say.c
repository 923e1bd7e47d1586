/* Log lines, formatted from the catalogue and passed to NCCL's logger if there is one (v4 and later), and the record.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>

#include "check.h"
#include "plugin_say.h"
#include "psm_profiler_check_messages.h"

enum { BREACHES = 1024 };

static _Atomic(ncclDebugLogger_t) the_logger;

void check_logger(ncclDebugLogger_t logger)
{
    the_logger = logger;
}

/* SAY(PSM_PROFILER_CHECK_USING, psm_profiler_check_using, arguments...) */
#define SAY(...) PSM_PLUGIN_SAY(the_logger, NCCL_INIT, __VA_ARGS__)

void check_say_begin(int version, const char *name)
{
    static _Atomic unsigned said;
    if (said & 1u << version) return;
    said |= 1u << version;
    if (check_wrapped(version))
        SAY(PSM_PROFILER_CHECK_USING, psm_profiler_check_using, name, version, check_path());
    else
        SAY(PSM_PROFILER_CHECK_ALONE, psm_profiler_check_alone, version);
}

void check_say_trouble(const char *why)
{
    SAY(PSM_PROFILER_CHECK_TROUBLE, psm_profiler_check_trouble, check_path(), why);
}

void check_say_no_stream(const char *path, const char *why)
{
    SAY(PSM_PROFILER_CHECK_NO_STREAM, psm_profiler_check_no_stream, path, why);
}

void check_say_end(int version, struct contract *c)
{
    char which[600] = "";
    size_t at = 0;
    for (int i = 0; i < RULES; i++) {
        uint64_t n = contract_count(c, (enum contract_rule)i);
        if (n && at < sizeof which)
            at += (size_t)snprintf(which + at, sizeof which - at, "%s%s %" PRIu64, at ? ", " : "",
                                   contract_rule_name((enum contract_rule)i), n);
    }
    SAY(PSM_PROFILER_CHECK_END, psm_profiler_check_end, contract_events(c), version, contract_open(c),
        contract_total(c), at ? which : "none");
}

/* ---- the record ---- */

/* which: index of the message, in the order of messages. */
struct breach_row {
    uint64_t comm;
    int32_t version, rank;
    uint32_t which;
    char rule[20], call[20], what[200], event[240];
};
static const struct psm_field fields[] = {
    PSM_FIELDS(struct breach_row, PSM_HEX64, comm),
    PSM_FIELDS(struct breach_row, PSM_I32, version, rank),
    PSM_FIELDS(struct breach_row, PSM_U32, which),
    PSM_FIELDS(struct breach_row, PSM_STR, rule, call, what, event),
};
static const struct psm_record_message messages[] = {
    PSM_MESSAGE_PSM_PROFILER_CHECK_CALLER, PSM_MESSAGE_PSM_PROFILER_CHECK_PLUGIN, PSM_MESSAGE_PSM_PROFILER_CHECK_NOTE};
static const struct psm_schema schema =
    PSM_SCHEMA_SELECTED("psm.profiler_check", struct breach_row, fields, messages, 3);

static void check_record(const struct contract_breach *b)
{
    psm_section *rows = psm_record_section(psm_record_self(), &schema, PSM_RING, BREACHES);
    uint64_t ticket;
    struct breach_row *row = psm_ring_begin(rows, &ticket);
    if (!row) return;
    row->comm = b->comm;
    row->version = b->version;
    row->rank = b->rank;
    row->which = b->note ? 2 : b->by_plugin;
    psm_record_text(row->rule, sizeof row->rule, b->name);
    psm_record_text(row->call, sizeof row->call, b->call);
    psm_record_text(row->what, sizeof row->what, b->text);
    psm_record_text(row->event, sizeof row->event, b->ancestry);
    psm_ring_commit(rows, ticket);
}

void check_say_breach(void *context, const struct contract_breach *b)
{
    (void)context;
    if (!b->first) return;
    check_record(b);
    if (b->note)
        SAY(PSM_PROFILER_CHECK_NOTE, psm_profiler_check_note, b->call, b->version, b->name, b->text, b->ancestry);
    else if (b->by_plugin)
        SAY(PSM_PROFILER_CHECK_PLUGIN, psm_profiler_check_plugin, b->call, b->version, b->name, b->text, b->ancestry);
    else
        SAY(PSM_PROFILER_CHECK_CALLER, psm_profiler_check_caller, b->call, b->version, b->name, b->text, b->ancestry);
}
