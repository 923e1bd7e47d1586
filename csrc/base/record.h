/* The record container: a mapped file of this process that outlives it. docs/records.md describes the format. */
#ifndef PSM_RECORD_H
#define PSM_RECORD_H

#include "base.h"

typedef struct psm_record psm_record;
typedef struct psm_section psm_section;

enum psm_field_type {
    PSM_U8 = 1,
    PSM_U16,
    PSM_U32,
    PSM_U64,
    PSM_I32,
    PSM_I64,
    PSM_F64,
    PSM_HEX64, /* a u64 printed as 0x... */
    PSM_STR,   /* size bytes; ends at the first NUL or at the size */
    PSM_TIME   /* u64, ns of CLOCK_MONOTONIC; a reader shows it as wall time */
};

struct psm_field {
    const char *name;
    enum psm_field_type type;
    uint32_t offset, size;
};
/* PSM_FIELD(struct handle, PSM_HEX64, value) */
#define PSM_FIELD(type, field_type, member)                                                                            \
    {#member, field_type, (uint32_t)offsetof(type, member), (uint32_t)sizeof(((type *)0)->member)}
/* PSM_FIELDS(struct handle, PSM_HEX64, value, owner): several members of one type, 39 at the most. */
#define PSM_FIELDS(type, field_type, ...) PSM_EXPAND_(PSM_FIELDS_(type, field_type, __VA_ARGS__))
#define PSM_FIELDS_(type, field_type, member, ...)                                                                     \
    PSM_FIELD(type, field_type, member)                                                                                \
    __VA_OPT__(, PSM_FIELDS_AGAIN_ PSM_NO_ARGUMENTS_(type, field_type, __VA_ARGS__))
#define PSM_FIELDS_AGAIN_() PSM_FIELDS_
#define PSM_NO_ARGUMENTS_   ()
#define PSM_EXPAND_(...)    PSM_EXPAND_3_(PSM_EXPAND_3_(PSM_EXPAND_3_(__VA_ARGS__)))
#define PSM_EXPAND_3_(...)  PSM_EXPAND_2_(PSM_EXPAND_2_(PSM_EXPAND_2_(__VA_ARGS__)))
#define PSM_EXPAND_2_(...)  PSM_EXPAND_1_(PSM_EXPAND_1_(PSM_EXPAND_1_(__VA_ARGS__)))
#define PSM_EXPAND_1_(...)  __VA_ARGS__

/* The log line that a record represents: name, level and pattern of a catalogue message (PSM_MESSAGE_<NAME> of
 * psm_messages.h is such a triple). The fields of the pattern are fields of the record. */
struct psm_record_message {
    const char *name;
    int level; /* enum psm_level */
    const char *pattern;
};

/* What the records of a section contain. selector is the index of the integer field that selects the message of a
 * record, counted from 0; a value out of range: no line. selector -1: always the first message. Without messages,
 * records give no lines. */
struct psm_schema {
    const char *name; /* up to 31 bytes */
    uint32_t version;
    uint32_t record_size;
    const struct psm_field *fields;
    uint32_t nfields;
    const struct psm_record_message *messages;
    uint32_t nmessages;
    int selector;
};
/* Of an array of fields: records give no lines. */
#define PSM_SCHEMA_SILENT(called, row_type, fields_)                                                                   \
    {.name = (called),                                                                                                 \
     .version = 1,                                                                                                     \
     .record_size = sizeof(row_type),                                                                                  \
     .fields = (fields_),                                                                                              \
     .nfields = sizeof(fields_) / sizeof *(fields_),                                                                   \
     .selector = -1}
/* Of arrays of fields and messages. selector: none. */
#define PSM_SCHEMA(called, row_type, fields_, messages_) PSM_SCHEMA_SELECTED(called, row_type, fields_, messages_, -1)
/* The same, where a field names the message of a row. */
#define PSM_SCHEMA_SELECTED(called, row_type, fields_, messages_, selector_)                                           \
    {.name = (called),                                                                                                 \
     .version = 1,                                                                                                     \
     .record_size = sizeof(row_type),                                                                                  \
     .fields = (fields_),                                                                                              \
     .nfields = sizeof(fields_) / sizeof *(fields_),                                                                   \
     .messages = (messages_),                                                                                          \
     .nmessages = sizeof(messages_) / sizeof *(messages_),                                                             \
     .selector = (selector_)}

enum psm_section_kind { PSM_RING = 1, PSM_TABLE = 2 };

/* The record of this process, created at the first call. NULL if it cannot be created (a warning says why, once), or in
 * a signal handler that interrupted its creation. After fork the child gets its own. */
psm_record *psm_record_self(void);
const char *psm_record_path(const psm_record *record);

/* An additional file of this process, of at most so many bytes, for something that ends before the process does. NULL
 * as above, and with PSM_RECORD_MAX=0. psm_record_keep: a reader will read it later, so a clean end does not remove it.
 * psm_record_end ends it as an exit does: the file is marked, and removed unless psm_record_keep was called. Calls in
 * flight write nowhere. Do not make new calls after it: a later record may reuse the memory. */
psm_record *psm_record_more(uint64_t most);
void psm_record_keep(psm_record *record, bool keep);
void psm_record_end(psm_record *record);

/* The section of this schema, created at the first call with room for capacity records (a ring rounds up to a power of
 * two); later calls return the same one. NULL: no room, or no record; psm_ring_* and psm_table_* accept NULL. Keep the
 * pointer: it stays valid, and in a child of fork it drops records. */
psm_section *psm_record_section(psm_record *record, const struct psm_schema *schema, enum psm_section_kind kind,
                                uint32_t capacity);

/* A table whose slots have no blocks on the disk until psm_section_take allocates them. Other slots read as zeros,
 * which is a free slot, and must not be written. take returns 0 or an error number (ENOSPC: the disk is full); any
 * thread may call it, repeatedly. psm_section_rows is slot 0 (record_format.h: struct rec_slot) for callers that manage
 * the slots themselves. */
psm_section *psm_record_sparse(psm_record *record, const struct psm_schema *schema, uint32_t capacity);
int psm_section_take(psm_section *section, uint32_t first, uint32_t count);
void *psm_section_rows(psm_section *section, size_t *slot_size);

/* Rings keep the last records. begin returns the place to write to (NULL: none, or the slot is still being written);
 * then commit. Any thread, signal handlers too. begin stores time, thread and device. */
void *psm_ring_begin(psm_section *section, uint64_t *ticket);
void psm_ring_commit(psm_section *section, uint64_t ticket);

/* Tables hold what exists now. claim returns a slot (NULL: full), publish makes it visible to readers, release frees
 * it. update hides a published record until the next publish; only the owner of the slot may call these. */
void *psm_table_claim(psm_section *section, uint32_t *slot);
void psm_table_publish(psm_section *section, uint32_t slot);
void *psm_table_update(psm_section *section, uint32_t slot);
void psm_table_release(psm_section *section, uint32_t slot);
/* For objects that come and go often: readers see the slot as free, but the caller keeps it. claim_aside returns the
 * same slot with its contents; the caller passes time, thread and device. */
void psm_table_set_aside(psm_section *section, uint32_t slot);
void *psm_table_claim_aside(psm_section *section, uint32_t slot, uint64_t time_ns, int tid, int device);
/* Fills a PSM_STR field: the text, as far as there is room, and zeros. */
void psm_record_text(char *to, size_t size, const char *from);
/* Number of records dropped for lack of room since the start. */
uint64_t psm_section_lost(const psm_section *section);

/* ---- records of other processes ---- */

enum psm_owner { PSM_OWNER_ALIVE, PSM_OWNER_DEAD, PSM_OWNER_UNKNOWN /* of another host, boot or pid namespace */ };

typedef struct psm_view psm_view;

/* Calls back for each valid record file of this user in the record directory except our own, until the callback returns
 * non-zero; returns that value. Skips files that are damaged, or whose owner or mode is wrong. The view is valid during
 * the callback. */
int psm_record_foreach_process(int (*each)(const psm_view *view, void *context), void *context);

/* The process of a view: rank, uid and everything else as that process wrote it. */
const struct psm_proc *psm_view_proc(const psm_view *view);
enum psm_owner psm_view_owner(const psm_view *view);
bool psm_view_clean_exit(const psm_view *view);
const char *psm_view_name(const psm_view *view); /* of the file, without the directory */

/* Calls back for the complete records of a section, in no order. Name, version and record size must match. record is a
 * copy. Stops when the callback returns non-zero, and returns that value. */
struct psm_slot {
    uint64_t time_ns; /* CLOCK_MONOTONIC of that boot */
    int tid, device;
    const void *record;
    uint64_t place; /* of the slot in its section, from 0 */
};
int psm_view_foreach(const psm_view *view, const char *name, uint32_t version, uint32_t record_size,
                     int (*each)(const struct psm_slot *slot, void *context), void *context);
/* The same from slot `first` on, for tables whose records stay: a reader that comes again reads what is new. */
int psm_view_foreach_from(const psm_view *view, const char *name, uint32_t version, uint32_t record_size,
                          uint64_t first, int (*each)(const struct psm_slot *slot, void *context), void *context);

/* Remove the files of dead owners. Returns their number, or -1 if the directory cannot be read. */
int psm_record_prune(void);

#endif
