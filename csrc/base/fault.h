/* Faults on purpose: site:action[=value][:key=value...], several separated by ';'. See docs/faults.md for the grammar.
 */
#ifndef PSM_FAULT_H
#define PSM_FAULT_H

#include "base.h"

enum psm_fault_action {
    PSM_FAULT_NONE,
    PSM_FAULT_ERROR,     /* value: the error to answer */
    PSM_FAULT_HANG,      /* before the work; ends on abort only */
    PSM_FAULT_SLOW,      /* before the work; value: nanoseconds */
    PSM_FAULT_LATE,      /* after the work; value: nanoseconds */
    PSM_FAULT_KILL,      /* value: signal */
    PSM_FAULT_DROP,      /* the caller loses what it was to send or do */
    PSM_FAULT_SHORT,     /* value: bytes that the caller moves at most */
    PSM_FAULT_CORRUPT,   /* the caller damages what it moves */
    PSM_FAULT_DUPLICATE, /* the caller sends its message twice */
    PSM_FAULT_REORDER,   /* the caller sends it behind the next one; PSM_FAULT_HELD_NS when there is none */
    PSM_FAULT_CLOSE,     /* the caller loses its connection */
    PSM_FAULT_STALL,     /* nothing moves on the connection from then on; value: nanoseconds, or 0: for ever */
    PSM_FAULT_ACTIONS
};

#define PSM_FAULT_CAN(action) (1u << (action))
/* What psm_fault_act_before and psm_fault_act_after do for any site. */
#define PSM_FAULT_CAN_GENERIC                                                                                          \
    (PSM_FAULT_CAN(PSM_FAULT_HANG) | PSM_FAULT_CAN(PSM_FAULT_SLOW) | PSM_FAULT_CAN(PSM_FAULT_LATE) |                   \
     PSM_FAULT_CAN(PSM_FAULT_KILL))
#define PSM_FAULT_CAN_CALL (PSM_FAULT_CAN_GENERIC | PSM_FAULT_CAN(PSM_FAULT_ERROR))
/* Who moves bytes. */
#define PSM_FAULT_CAN_ALL                                                                                              \
    (PSM_FAULT_CAN_CALL | PSM_FAULT_CAN(PSM_FAULT_DROP) | PSM_FAULT_CAN(PSM_FAULT_SHORT) |                             \
     PSM_FAULT_CAN(PSM_FAULT_CORRUPT))
/* Who sends messages. */
#define PSM_FAULT_CAN_MESSAGE                                                                                          \
    (PSM_FAULT_CAN(PSM_FAULT_DROP) | PSM_FAULT_CAN(PSM_FAULT_CORRUPT) | PSM_FAULT_CAN(PSM_FAULT_DUPLICATE) |           \
     PSM_FAULT_CAN(PSM_FAULT_REORDER))
/* A message that is held back does not wait longer for the next one. */
#define PSM_FAULT_HELD_NS UINT64_C(100000000)

struct psm_fault_hooks;

/* A place where a fault can be put. A zeroed one with a name is good; name and description must outlive it. */
struct psm_site {
    const char *name;
    const char *description;
    uint32_t actions; /* PSM_FAULT_CAN(...) */
    _Atomic(struct psm_fault_hooks *) hooks;
};

/* What a binary tells of a site without being run: the section psm_sites is an array of these. */
enum { PSM_SITE_MAGIC = 0x45544953 /* "SITE" */, PSM_SITE_ENTRY = 256 };
struct psm_site_entry {
    uint32_t magic;
    uint32_t size; /* of this struct */
    uint32_t actions;
    uint32_t reserved;
    char name[64];
    char description[176];
};
_Static_assert(sizeof(struct psm_site_entry) == PSM_SITE_ENTRY, "readers of binaries know this size");

/* retain: the linker keeps what no code refers to. */
#if defined(__has_attribute)
#if __has_attribute(retain)
#define PSM_SITE_SECTION section("psm_sites"), used, retain, aligned(16)
#endif
#endif
#ifndef PSM_SITE_SECTION
#define PSM_SITE_SECTION section("psm_sites"), used, aligned(16)
#endif

#define PSM_SITE_JOIN_(a, b) a##b
#define PSM_SITE_JOIN(a, b)  PSM_SITE_JOIN_(a, b)
/* Define the site `variable`, and list it in the binary. name and description are literals. */
#define PSM_FAULT_SITE_OF(variable, site_name, site_description, can)                                                  \
    __attribute__((PSM_SITE_SECTION)) static const struct psm_site_entry PSM_SITE_JOIN(psm_site_entry_, variable) = {  \
        PSM_SITE_MAGIC, PSM_SITE_ENTRY, (can), 0, site_name, site_description};                                        \
    static struct psm_site variable = {.name = site_name, .description = site_description, .actions = (can)}
/* A site that does what any call can: fail, hang, be slow or late, die. */
#define PSM_FAULT_SITE(variable, site_name, site_description)                                                          \
    PSM_FAULT_SITE_OF(variable, site_name, site_description, PSM_FAULT_CAN_CALL)

/* Sites made at run time, from a table of functions for example. They are not in the section. */
void psm_site_init(struct psm_site *site, const char *name, const char *description, uint32_t actions);

/* What the caller knows of this call. rank: PSM_FAULT_UNKNOWN means that of the process. abort_flag ends a hang as
 * psm_abort() does. cannot: what the site can do and this call cannot (a call inside a process is no message); faults
 * that ask for it do not concern the call, and do not count it. */
enum { PSM_FAULT_UNKNOWN = -1 };
struct psm_fault_args {
    int rank;
    int peer;
    const char *op;
    const volatile uint32_t *abort_flag;
    uint32_t cannot; /* PSM_FAULT_CAN(...) */
    uint32_t comm;   /* communicator of the process, from 1; 0: not known */
};

struct psm_fault {
    enum psm_fault_action action;
    int64_t value;
    uint64_t nth; /* which call of this site it is, of those that fit the fault's rank, peer and op */
    int rank;
    const struct psm_site *site;
    const volatile uint32_t *abort_flag;
};

extern __attribute__((
    visibility("hidden"))) _Atomic uint32_t psm_fault_state; /* 0: no faults. Read it by the functions below only. */
int psm_fault_hit_slow(struct psm_site *site, const struct psm_fault_args *args, struct psm_fault *out);

/* False: no fault is set, and psm_fault_hit says no. For callers that would have to gather what it wants to know. */
static inline bool psm_fault_any(void)
{
    return __builtin_expect(atomic_load_explicit(&psm_fault_state, memory_order_relaxed) != 0, 0);
}

/* Whether a fault strikes this call; then it is logged, and *out says which. args may be NULL. One relaxed load where
 * no fault is set. */
static inline int psm_fault_hit(struct psm_site *site, const struct psm_fault_args *args, struct psm_fault *out)
{
    if (!psm_fault_any()) return 0;
    return psm_fault_hit_slow(site, args, out);
}

/* Hang, be slow or die, if the fault says so; for other actions nothing. Signal handlers run meanwhile. Returns 1 when
 * a hang was ended by an abort, else 0. */
int psm_fault_act_before(const struct psm_fault *fault);
/* Be late, if the fault says so. An abort cuts it short. */
void psm_fault_act_after(const struct psm_fault *fault);

/* ---- the grammar ---- */

struct psm_fault_set;

struct psm_fault_error {
    size_t position; /* byte in the text, from 0 */
    char text[200];  /* what was expected and what was found */
};

/* NULL: the text is wrong, *error says where and why. error may be NULL. An empty text is an empty set. */
struct psm_fault_set *psm_fault_parse(const char *text, struct psm_fault_error *error);
void psm_fault_set_free(struct psm_fault_set *set); /* not one that is installed */
size_t psm_fault_set_size(const struct psm_fault_set *set);
/* Fault number i in its normal form, as snprintf does; it parses to the same fault. */
size_t psm_fault_format(const struct psm_fault_set *set, size_t i, char *buffer, size_t size);
const char *psm_fault_action_name(enum psm_fault_action action);

/* Read PSM_FAULTS now (else: at the first psm_fault_hit). A wrong text is one warning, and no fault is set. */
void psm_fault_load(void);
/* The sites that the installed faults name, without the star; for who knows all of a kind, and tells of a wrong one. */
void psm_fault_each(void (*visit)(const char *site, bool prefix, void *context), void *context);
/* Take these faults from now on in place of those set before; all counts begin anew. The set belongs to psm_base then.
 * NULL: none. */
void psm_fault_install(struct psm_fault_set *set);
/* error=NAME: who knows the number of a name at a site returns true and sets *value. Set it before the first hit. */
void psm_fault_set_resolver(bool (*resolve)(const char *site, const char *name, int64_t *value));

#endif
