/* Counts calls in the record, where a reader finds them even after a kill. */
#define _GNU_SOURCE
#include "core/hc_calls.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/hc.h"
#include "record.h"

static const struct psm_field fields[] = {
    PSM_FIELDS(struct hc_calls_row, PSM_STR, function),
    PSM_FIELDS(struct hc_calls_row, PSM_U64, calls),
    PSM_FIELDS(struct hc_calls_row, PSM_U32, library, provided),
};
static const struct psm_schema schema = PSM_SCHEMA_SILENT("cuda.calls", struct hc_calls_row, fields);

struct hc_calls_row *hc_calls_record(int fn)
{
    const char *folder = getenv("PSM_RECORD_DIR");
    if (!folder || !*folder) return NULL;
    psm_section *section = psm_record_section(psm_record_self(), &schema, PSM_TABLE, 512);
    uint32_t slot;
    struct hc_calls_row *row = psm_table_claim(section, &slot);
    if (!row) return NULL;
    snprintf(row->function, sizeof row->function, "%s", hc_functions[fn].name);
    row->calls = 1;
    row->library = (uint32_t)hc_functions[fn].library;
    row->provided = (uint32_t)hc_functions[fn].provided;
    psm_table_publish(section, slot);
    return row;
}
