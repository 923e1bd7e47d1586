/* A parsed fault: shared by the parser and fault.c. */
#ifndef PSM_FAULT_PARSE_H
#define PSM_FAULT_PARSE_H

#include "fault.h"

enum { PSM_FAULT_NAME = 64 };

struct psm_rule {
    size_t position;           /* where the fault begins in its text */
    char site[PSM_FAULT_NAME]; /* without the trailing star */
    bool prefix;               /* the site ended in a star */
    enum psm_fault_action action;
    int64_t value;
    char error[PSM_FAULT_NAME]; /* name of error=NAME, "" if it is a number */
    int rank, peer, comm;       /* PSM_FAULT_UNKNOWN: any */
    char op[PSM_FAULT_NAME];    /* "": any */
    uint64_t nth, every;        /* nth 0: every call; every 0: only call nth */
    bool has_p;
    uint32_t p_billionths;
    uint64_t seed;
    bool quiet; /* of PSM_MUTATION: a mistake, which the log does not tell */
};

struct psm_fault_set {
    size_t n;
    struct psm_rule rules[];
};

#endif
