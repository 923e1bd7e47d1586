/* What broken variants of several transports do. A variant is used only where its name is given. */
#ifndef PSM_CONN_WRONG_H
#define PSM_CONN_WRONG_H

#include "conn/conn.h"
#include "psm/psm_variant.h"

/* The variants of a file are registered when the library is loaded. */
#define PSM_CONN_VARIANTS(table, add)                                                                                  \
    __attribute__((constructor)) static void register_variants(void)                                                   \
    {                                                                                                                  \
        for (size_t i = 0; i < sizeof(table) / sizeof *(table); i++) add(&(table)[i]);                                 \
    }

/* ---- variants that p2p and net both have: what their tables say of them ---- */

#define PSM_WRONG_WHOLE_STRUCT                                                                                         \
    .name = "whole-struct", .summary = "Setup's answer carries the local info, and the peer writes it over its own",   \
    .outcome = "PSM507: the first copy fails with an invalid resource handle; own handles are leaked",                 \
    .declared = PSM_DECLARED(.verdict = PSM_VERDICT_FAILED, .codes = "PSM507",                                         \
                             .leaves = PSM_LEAVES_STREAM | PSM_LEAVES_EVENTS, .status = PSM_ERR_CUDA),                 \
    .wrong = 1
#define PSM_WRONG_NO_FREE                                                                                              \
    .name = "no-free", .summary = "Free drops the connection and releases nothing",                                    \
    .outcome = "PSM505: the data is right; stream, events and memory are leaked",                                      \
    .declared = PSM_DECLARED(.verdict = PSM_VERDICT_LEAKING, .codes = "PSM505",                                        \
                             .leaves = PSM_LEAVES_STREAM | PSM_LEAVES_EVENTS | PSM_LEAVES_MEMORY),                     \
    .wrong = 1
psm_conn_free psm_conn_free_nothing;

/* ---- variants that query an event other than the one recorded behind the copy ---- */

/* Each slot has a second event, which no copy records. UNSUPPORTED: the connection has too many slots for that. */
psm_status psm_conn_check_spare(const psmProxyConnection *connection, const char *variant);
/* Call them after Connect and before Free. */
psm_status psm_conn_make_spare(const psmProxyConnection *connection);
void psm_conn_free_spare(const psmProxyConnection *connection);
/* Swap the two events of the slots of an operation's copies from the n-th on. */
void psm_conn_swap_spare(struct psm_conn *conn, const struct psmProxySubArgs *sub, uint64_t n);

/* The connection whose operation is running; NULL: another one is. */
void *psm_conn_running(const struct psmProxySubArgs *sub);

#endif
