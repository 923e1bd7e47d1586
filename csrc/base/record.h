/* The record container: a file of this process, mapped, that outlives its death. docs/records.md describes the format.
 */
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
    PSM_HEX64, /* a u64 that is written 0x... */
    PSM_STR,   /* size bytes, ended by the first NUL or by the size */
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

/* The log line that a record stands for: name, level and pattern of a catalogue message (the PSM_MESSAGE_<NAME> of
 * psm_messages.h is such a triple). The fields of the pattern are fields of the record. */
struct psm_record_message {
    const char *name;
    int level; /* enum psm_level */
    const char *pattern;
};

/* What the records of a section are. selector is the number of the (integer) field that tells which of the messages a
 * record stands for, from 0; a number beyond them: no line. selector -1: the first. Without messages records are no
 * lines. */
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

enum psm_section_kind { PSM_RING = 1, PSM_TABLE = 2 };

/* The record of this process, made at the first call; NULL when there can be none (then one warning told why), or in a
 * signal handler that interrupted its making. After fork the child gets its own. */
psm_record *psm_record_self(void);
const char *psm_record_path(const psm_record *record);

/* A further file of this process, of at most so many bytes: for what has an end before the process has. NULL as above,
 * and with PSM_RECORD_MAX=0. psm_record_keep: a reader will come for it, so that a clean end does not remove it.
 * psm_record_end ends it as an exit does: it is marked, and removed unless it is to be kept. Calls that are still on
 * their way into its sections write to nowhere; no further ones may be made, as a later record may take the memory
 * over. */
psm_record *psm_record_more(uint64_t most);
void psm_record_keep(psm_record *record, bool keep);
void psm_record_end(psm_record *record);

/* The section of this schema, made at the first call with room for capacity records (a ring rounds up to a power of
 * two); the same one at later calls. NULL: no room, or no record: psm_ring_* and psm_table_* take NULL. Keep the
 * pointer; it stays valid, and in a child of fork it takes no records any more. */
psm_section *psm_record_section(psm_record *record, const struct psm_schema *schema, enum psm_section_kind kind,
                                uint32_t capacity);

/* A table whose slots have no blocks on the disk until psm_section_take has taken them: what was not taken reads as
 * zeros, which are free slots, and is not to be written to. take answers 0 or an error number (ENOSPC: the disk is
 * full); it may be called by any thread, and again. psm_section_rows is slot 0 (record_format.h: struct rec_slot) for
 * callers that manage the slots by themselves. */
psm_section *psm_record_sparse(psm_record *record, const struct psm_schema *schema, uint32_t capacity);
int psm_section_take(psm_section *section, uint32_t first, uint32_t count);
void *psm_section_rows(psm_section *section, size_t *slot_size);

/* Rings: the last records. begin gives the place to write to (NULL: none, or the slot is still being written); then
 * commit. Any thread, signal handlers too. Time, thread and device are noted by begin. */
void *psm_ring_begin(psm_section *section, uint64_t *ticket);
void psm_ring_commit(psm_section *section, uint64_t ticket);

/* Tables: what exists now. claim gives a place (NULL: full), publish shows it to readers, release frees it. update
 * hides a published record until the next publish; the owner of the slot is the only one to call these. */
void *psm_table_claim(psm_section *section, uint32_t *slot);
void psm_table_publish(psm_section *section, uint32_t slot);
void *psm_table_update(psm_section *section, uint32_t slot);
void psm_table_release(psm_section *section, uint32_t slot);
/* For what comes and goes all the time: free for readers, but the caller's still. claim_aside gives the same slot
 * again, with what was in it; time, thread and device are as the caller says. */
void psm_table_set_aside(psm_section *section, uint32_t slot);
void *psm_table_claim_aside(psm_section *section, uint32_t slot, uint64_t time_ns, int tid, int device);
/* Records that found no place since the start. */
uint64_t psm_section_lost(const psm_section *section);

/* ---- records of other processes ---- */

enum psm_owner { PSM_OWNER_ALIVE, PSM_OWNER_DEAD, PSM_OWNER_UNKNOWN /* of another host, boot or pid namespace */ };

typedef struct psm_view psm_view;

/* Each good record file of this user in the record directory but our own; until the callback returns non-zero, which is
 * returned. Files that are damaged, or not ours by owner and mode, are passed over. The view is valid in the callback.
 */
int psm_record_foreach_process(int (*each)(const psm_view *view, void *context), void *context);

/* proc of a view: rank, uid and all else as that process wrote it. */
const struct psm_proc *psm_view_proc(const psm_view *view);
enum psm_owner psm_view_owner(const psm_view *view);
bool psm_view_clean_exit(const psm_view *view);
const char *psm_view_name(const psm_view *view); /* of the file, without the directory */

/* The whole records of a section, by name, version and record size, in no order; others have none. record is a copy.
 * Until the callback returns non-zero, which is returned. */
struct psm_slot {
    uint64_t time_ns; /* CLOCK_MONOTONIC of that boot */
    int tid, device;
    const void *record;
};
int psm_view_foreach(const psm_view *view, const char *name, uint32_t version, uint32_t record_size,
                     int (*each)(const struct psm_slot *slot, void *context), void *context);

/* Remove the files of dead owners. Returns how many, -1 when the directory cannot be read. */
int psm_record_prune(void);

#endif
