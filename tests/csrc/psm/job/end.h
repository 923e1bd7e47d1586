/* A rank's end for a driver: a proxy state and the host that p2p sees. end_standin.c makes them without libpsm's
 * proxy, end_proxy.c with it. */
#ifndef PSM_TEST_END_H
#define PSM_TEST_END_H

#include "psm/psm_host_ops.h"

enum { END_RANKS = 8 };
struct end_place {
    int pid;
    uint64_t start_time;
    char name[64];
    struct psmProxyAddress address;
};
struct end {
    psmProxyState *state;
    struct psm_host host;
};
extern const char *end_variant;
extern const struct psmTransportComm *end_net[2]; /* handlers of PSM_TRANSPORT_NET, [send]; NULL: none */
/* Makes a state whose handlers are those of the variant; its place is written. */
psm_status end_open(int rank, int nranks, int device, const struct psm_settings *settings, struct end_place *place,
                    struct end *end);
/* All places are known. */
psm_status end_meet(struct end *end, const struct end_place *places, int nranks);
psm_status end_close(struct end *end);
void end_abort(struct end *end);

#endif
