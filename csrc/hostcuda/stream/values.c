/* Values in memory that streams have waited for too long: a log line when that is noticed and one when the value comes,
 * and in between a row of the record, which shows what a process waited for when it was killed. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "base.h"
#include "psm_messages.h"
#include "record.h"
#include "stream/hc_stream.h"

enum { ROWS = 64, NO_ROW = 1, FIRST_ROW = 2 }; /* of hc_say_value_wait */

struct row {
    char kind[16], condition[24];
    uint64_t stream, seconds, address, offset, wanted, seen;
    int32_t device;
    uint32_t bits;
};
static const struct psm_field fields[] = {
    PSM_FIELDS(struct row, PSM_STR, kind, condition),
    PSM_FIELDS(struct row, PSM_HEX64, stream, address),
    PSM_FIELDS(struct row, PSM_U64, seconds, offset, wanted, seen),
    PSM_FIELDS(struct row, PSM_I32, device),
    PSM_FIELDS(struct row, PSM_U32, bits),
};
static const struct psm_record_message messages[] = {PSM_MESSAGE_HOSTCUDA_VALUE_WAIT};
static const struct psm_schema schema = PSM_SCHEMA("hostcuda.values", struct row, fields, messages);

static psm_section *table(void)
{
    const char *folder = getenv("PSM_RECORD_DIR");
    if (!folder || !*folder) return NULL;
    return psm_record_section(psm_record_self(), &schema, PSM_TABLE, ROWS);
}

uint32_t hc_say_value_wait(const struct hc_stream *stream, const struct hc_value_wait *wait)
{
    static const char *const conditions[] = {"reaches", "equals", "has-a-bit-of", "lacks-a-bit-beside"};
    const char *kind = hc_stream_kind_name(stream), *condition = conditions[wait->condition];
    uint64_t handle = atomic_load_explicit(&stream->handle, memory_order_relaxed);
    psm_log_set_device(stream->device);
    psm_msg_hostcuda_value_wait(kind, handle, stream->device, wait->seconds, wait->bits, wait->address, wait->offset,
                                condition, wait->wanted, wait->seen);
    uint32_t slot;
    struct row *row = psm_table_claim(table(), &slot);
    if (!row) return NO_ROW;
    *row = (struct row){.stream = handle,
                        .seconds = wait->seconds,
                        .address = wait->address,
                        .offset = wait->offset,
                        .wanted = wait->wanted,
                        .seen = wait->seen,
                        .device = stream->device,
                        .bits = (uint32_t)wait->bits};
    snprintf(row->kind, sizeof row->kind, "%s", kind);
    snprintf(row->condition, sizeof row->condition, "%s", condition);
    psm_table_publish(table(), slot);
    return FIRST_ROW + slot;
}

void hc_say_value_came(const struct hc_stream *stream, const struct hc_value_wait *wait, uint32_t said)
{
    psm_log_set_device(stream->device);
    psm_msg_hostcuda_value_came(wait->bits, wait->address, hc_stream_kind_name(stream),
                                atomic_load_explicit(&stream->handle, memory_order_relaxed), stream->device,
                                wait->seconds);
    if (said >= FIRST_ROW) psm_table_release(table(), said - FIRST_ROW);
}
