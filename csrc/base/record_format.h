/* The record container as laid out in the file. psmkit/logparse/records.py reads the same layout; docs/records.md
 * explains it. */
#ifndef PSM_RECORD_FORMAT_H
#define PSM_RECORD_FORMAT_H

#include "record.h"

enum {
    REC_VERSION = 1,
    REC_HEADER = 4096,
    REC_SECTIONS = 28,
    REC_ALIGN = 4096,
    REC_ORDER = 0x01020304,
    REC_NAME = 32,
    REC_COMMAND = 16,
    REC_SLOT_HEADER = 24,
    REC_CONTROL = 64,
    REC_LARGEST_RECORD = 65536,
    REC_LARGEST_SCHEMA = 65536
};

#define REC_MAGIC       "\x89PSMREC\n"
#define REC_LARGEST     ((uint64_t)1 << 30)
#define REC_DEFAULT_MAX ((uint64_t)16 << 20)

enum rec_state { REC_RUNNING = 1, REC_CLEAN = 2 };

/* data holds slots of slot_size bytes; control holds struct rec_control; schema holds JSON text. Offsets count from the
 * start of the file. */
struct rec_section {
    _Atomic uint32_t ready; /* written last */
    uint32_t kind;          /* enum psm_section_kind */
    char name[REC_NAME];
    uint32_t version;
    uint32_t record_size;
    uint32_t slot_size;
    uint32_t schema_size;
    uint64_t schema_offset;
    uint64_t control_offset;
    uint64_t data_offset;
    uint64_t capacity;
    uint64_t reserved[5];
};
_Static_assert(sizeof(struct rec_section) == 128, "readers know the layout of a section");

struct rec_header {
    char magic[8];
    uint32_t order;
    uint32_t version;
    uint32_t header_size;
    uint32_t section_size;
    uint64_t file_size;
    int32_t pid;
    int32_t rank;
    uint64_t start_time;
    uint64_t pid_ns;
    uint64_t wall_ns; /* both clocks at the start */
    uint64_t clock_ns;
    uint32_t uid;
    uint32_t tag;
    _Atomic uint32_t state; /* enum rec_state */
    uint32_t sections;      /* room in the table */
    char boot_id[PSM_BOOT_ID_SIZE];
    char host[PSM_HOST_SIZE];
    char command[REC_COMMAND];
    uint64_t reserved[6];
    struct rec_section section[REC_SECTIONS];
};
_Static_assert(offsetof(struct rec_header, section) == 256, "readers know where the sections are");
_Static_assert(sizeof(struct rec_header) <= REC_HEADER, "the header fits its page");

struct rec_control {
    _Atomic uint64_t tickets; /* rings: number of records begun; tables: where the search for a free slot starts */
    _Atomic uint64_t used;    /* tables: slots that are not free */
    _Atomic uint64_t lost;
};
_Static_assert(sizeof(struct rec_control) <= REC_CONTROL, "");

/* The sequence gives the state of a slot and changes with each write, so that a reader can detect a torn copy.
 * ring:  2 t + 1 while record t is being written, 2 t + 2 when it is complete, 0 if never used.
 * table: the low two bits are one of the states below, the others count. */
enum { SLOT_FREE = 0, SLOT_CLAIMED = 1, SLOT_LIVE = 2, SLOT_UPDATING = 3, SLOT_BITS = 3, SLOT_STEP = 4 };
/* Set together with SLOT_FREE: only its owner claims the slot. Readers skip it. */
#define SLOT_ASIDE ((uint64_t)1 << 63)
struct rec_slot {
    _Atomic uint64_t sequence;
    uint64_t time_ns;
    int32_t tid;
    int32_t device;
    unsigned char record[];
};
_Static_assert(sizeof(struct rec_slot) == REC_SLOT_HEADER, "readers know the layout of a slot");

/* The record directory, opened and verified, and its path; -1: *why says what is wrong with it. Creates it if it is
 * missing and make is true. */
int psm_record_directory(bool make, char *path, size_t size, const char **why);

/* Whether a file of that name belongs to this process. */
bool psm_record_is_own(const char *name);

/* Writes the schema text of the file (returns its length, 0: too long), and checks that the file can hold such records.
 */
size_t psm_schema_json(const struct psm_schema *schema, char *buffer, size_t size);
bool psm_schema_good(const struct psm_schema *schema);

/* All n bytes at an offset of a file, or false. */
bool psm_read_at(int fd, void *to, size_t n, uint64_t offset);

#endif
