/* Fault injection: site:action[=value][:key=value...], several separated by ';'. docs/faults.md describes the grammar.
 */
#ifndef PSM_FAULT_H
#define PSM_FAULT_H

#include "base.h"

enum psm_fault_action {
    PSM_FAULT_NONE,
    PSM_FAULT_ERROR,     /* value: the error to return */
    PSM_FAULT_HANG,      /* before the work; only an abort ends it */
    PSM_FAULT_SLOW,      /* before the work; value: nanoseconds */
    PSM_FAULT_LATE,      /* after the work; value: nanoseconds */
    PSM_FAULT_KILL,      /* value: signal */
    PSM_FAULT_DROP,      /* the caller does not send or do its work */
    PSM_FAULT_SHORT,     /* value: maximum number of bytes that the caller moves */
    PSM_FAULT_CORRUPT,   /* the caller corrupts the data that it moves */
    PSM_FAULT_DUPLICATE, /* the caller sends its message twice */
    PSM_FAULT_REORDER,   /* the caller sends it after the next one, or after PSM_FAULT_HELD_NS if there is none */
    PSM_FAULT_CLOSE,     /* the caller closes its connection */
    PSM_FAULT_STALL,     /* the connection stops moving data; value: nanoseconds, or 0: for ever */
    PSM_FAULT_ACTIONS
};

#define PSM_FAULT_CAN(action) (1u << (action))
/* Actions that psm_fault_act_before and psm_fault_act_after perform at any site. */
#define PSM_FAULT_CAN_GENERIC                                                                                          \
    (PSM_FAULT_CAN(PSM_FAULT_HANG) | PSM_FAULT_CAN(PSM_FAULT_SLOW) | PSM_FAULT_CAN(PSM_FAULT_LATE) |                   \
     PSM_FAULT_CAN(PSM_FAULT_KILL))
#define PSM_FAULT_CAN_CALL (PSM_FAULT_CAN_GENERIC | PSM_FAULT_CAN(PSM_FAULT_ERROR))
/* Additional actions of sites that move bytes. */
#define PSM_FAULT_CAN_ALL                                                                                              \
    (PSM_FAULT_CAN_CALL | PSM_FAULT_CAN(PSM_FAULT_DROP) | PSM_FAULT_CAN(PSM_FAULT_SHORT) |                             \
     PSM_FAULT_CAN(PSM_FAULT_CORRUPT))
/* Additional actions of sites that send messages. */
#define PSM_FAULT_CAN_MESSAGE                                                                                          \
    (PSM_FAULT_CAN(PSM_FAULT_DROP) | PSM_FAULT_CAN(PSM_FAULT_CORRUPT) | PSM_FAULT_CAN(PSM_FAULT_DUPLICATE) |           \
     PSM_FAULT_CAN(PSM_FAULT_REORDER))
/* The longest time that a reordered message waits for the next one. */
#define PSM_FAULT_HELD_NS UINT64_C(100000000)

struct psm_fault_hooks;

/* A site is a place where a fault can be injected. A zeroed one with a name is valid; name and description must outlive
 * it. */
struct psm_site {
    const char *name;
    const char *description;
    uint32_t actions; /* PSM_FAULT_CAN(...) */
    _Atomic(struct psm_fault_hooks *) hooks;
};

/* The description of a site that tools read from a binary without running it: the section psm_sites is an array of
 * these. */
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

/* retain: the linker keeps symbols that no code refers to. */
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
/* A site with the actions that any call supports: fail, hang, be slow or late, die. */
#define PSM_FAULT_SITE(variable, site_name, site_description)                                                          \
    PSM_FAULT_SITE_OF(variable, site_name, site_description, PSM_FAULT_CAN_CALL)

/* For sites created at run time, for example from a table of functions. They are not in the section. */
void psm_site_init(struct psm_site *site, const char *name, const char *description, uint32_t actions);

/* What the caller knows about this call. rank PSM_FAULT_UNKNOWN means that of the process. abort_flag ends a hang, as
 * psm_abort() does. cannot: actions that the site supports and this call does not (a call within a process sends no
 * message); faults with such an action neither hit this call nor count it. */
enum { PSM_FAULT_UNKNOWN = -1 };
struct psm_fault_args {
    int rank;
    int peer;
    const char *op;
    const volatile uint32_t *abort_flag;
    uint32_t cannot; /* PSM_FAULT_CAN(...) */
    uint32_t comm;   /* communicator of the process, from 1; 0: unknown */
};

struct psm_fault {
    enum psm_fault_action action;
    int64_t value;
    uint64_t nth; /* number of this call at the site, among those that match the fault's rank, peer and op */
    int rank;
    const struct psm_site *site;
    const volatile uint32_t *abort_flag;
};

extern __attribute__((visibility(
    "hidden"))) _Atomic uint32_t psm_fault_state; /* 0: no faults. Read it only through the functions below. */
int psm_fault_hit_slow(struct psm_site *site, const struct psm_fault_args *args, struct psm_fault *out);

/* False: no fault is set, and psm_fault_hit returns false. Lets callers skip the work of gathering the arguments. */
static inline bool psm_fault_any(void)
{
    return __builtin_expect(atomic_load_explicit(&psm_fault_state, memory_order_relaxed) != 0, 0);
}

/* Whether a fault hits this call. If so, it is logged and *out describes it. args may be NULL. Costs one relaxed load
 * if no fault is set. */
static inline int psm_fault_hit(struct psm_site *site, const struct psm_fault_args *args, struct psm_fault *out)
{
    if (!psm_fault_any()) return 0;
    return psm_fault_hit_slow(site, args, out);
}

/* Hang, wait or die if the fault says so; does nothing for other actions. Signal handlers run meanwhile. Returns 1 if
 * an abort ended a hang, else 0. */
int psm_fault_act_before(const struct psm_fault *fault);
/* Wait after the work, if the fault says so. An abort ends the wait early. */
void psm_fault_act_after(const struct psm_fault *fault);

/* ---- the grammar ---- */

struct psm_fault_set;

struct psm_fault_error {
    size_t position; /* byte in the text, from 0 */
    char text[200];  /* what was expected and what was found */
};

/* NULL: the text is wrong, and *error says where and why. error may be NULL. An empty text is an empty set. */
struct psm_fault_set *psm_fault_parse(const char *text, struct psm_fault_error *error);
void psm_fault_set_free(struct psm_fault_set *set); /* must not be installed */
size_t psm_fault_set_size(const struct psm_fault_set *set);
/* Writes fault number i in its normal form, as snprintf does. The text parses to the same fault. */
size_t psm_fault_format(const struct psm_fault_set *set, size_t i, char *buffer, size_t size);
const char *psm_fault_action_name(enum psm_fault_action action);

/* Read PSM_FAULTS now (otherwise the first psm_fault_hit does). A wrong text prints one warning and sets no fault. */
void psm_fault_load(void);
/* The sites that the installed faults name, without the star. For callers that know all sites of a kind and report
 * unknown ones. */
void psm_fault_each(void (*visit)(const char *site, bool prefix, void *context), void *context);
/* Resolver for error=NAME: returns true and sets *value if it knows that error at the site. Set it before the first
 * hit. */
void psm_fault_set_resolver(bool (*resolve)(const char *site, const char *name, int64_t *value));

#endif
