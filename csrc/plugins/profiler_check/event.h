/* Events of a profiler in one form for all versions of the table: what NCCL passes, and the rules for each kind of
 * event. profiler_check wraps a profiler and reads descriptors into this form; psm_profiler_drive plays NCCL and writes
 * descriptors from it. */
#ifndef PSM_PROFILER_EVENT_H
#define PSM_PROFILER_EVENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "psm_abi/profiler.h"
#include "psm_abi_versions.h"

enum {
    PROFILER_VERSIONS = PSM_ABI_PROFILER_LAST,
    EVENT_TYPES = PSM_ABI_PROFILER_KINDS,
    EVENT_STATES = PSM_ABI_PROFILER_STATES,
    EVENT_WORD = 24
};

/* A descriptor. Its members are profiler_fields of psmkit/plugins/abi.json, profiler_kinds says which of them is which
 * of a descriptor. Strings are copies: name is the communicator's up to v3, empty: NULL. parent is parentObj, group is
 * parentGroup of v5 and later. */
#define FIELD(type, field) type field;
#define WORD(field)        char field[EVENT_WORD];
#define COUNT_WORD(field)  +1
enum { EVENT_WORDS = 0 PSM_ABI_PROFILER_WORDS(COUNT_WORD) };
typedef char event_words[EVENT_WORDS][EVENT_WORD];
struct event {
    uint64_t type;
    void *parent;
    PSM_ABI_PROFILER_FIELDS(FIELD)
    union {
        struct {
            PSM_ABI_PROFILER_WORDS(WORD)
        };
        event_words words; /* all of them */
    };
};

/* A descriptor of any version, with NCCL's layout. */
union event_record {
#define RECORD(n) ncclProfilerEventDescr_v##n##_t v##n;
    PSM_ABI_PROFILER_VERSIONS(RECORD)
#undef RECORD
};
/* The arguments of a state. */
struct event_args {
    bool none; /* NULL */
    PSM_ABI_PROFILER_ARGS(FIELD)
};
#undef FIELD
#undef WORD
#undef COUNT_WORD
union event_args_record {
#define RECORD(n) ncclProfilerEventStateArgs_v##n##_t v##n;
    PSM_ABI_PROFILER_VERSIONS(RECORD)
#undef RECORD
};

/* Reads strings, which must be valid: they are NCCL's own, during startEvent. */
void event_read(int version, const void *record, struct event *e);
/* words: room for the strings, which the record points into. */
void event_write(int version, const struct event *e, union event_record *record, event_words words);
size_t event_record_size(int version);
void event_args_read(int version, int state, const void *record, struct event_args *a);
void event_args_write(int version, int state, const struct event_args *a, union event_args_record *record);

/* ---- the rules ---- */

/* The number of a kind: the position of its only bit; -1 for anything else. */
int event_kind(uint64_t type);
const char *event_kind_name(int kind); /* "Coll" */
const char *event_state_name(int state);
uint64_t event_known(int version);              /* the bits of all kinds in a version */
uint64_t event_asked_by(int version, int kind); /* the bits of the mask any of which makes NCCL start this kind */
uint64_t event_parents(int version, int kind);  /* the kinds that parentObj may be; 0: it is NULL */
bool event_has_state(int version, int kind, int state);
/* Whether the arguments of a state without arguments may be NULL. */
bool event_args_optional(int version, int state);
/* The position of a state among those of its event, from 1; 0: any time. The same one may be repeated: event_repeats.
 */
int event_state_place(int state);
bool event_repeats(int state);
/* 1: of the sending side only, 0: of the receiving side, -1: of both. */
int event_state_side(int state);

/* "ProxyOp send channel 2 peer 5" */
void event_text(const struct event *e, char *out, size_t size);

#endif
