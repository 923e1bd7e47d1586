/* A rank's end with libpsm's own proxy. */
#include "core/internal.h"
#include "job/end.h"
#include "psm/psm_net.h"

const struct psmTransportComm *end_net[2];

psm_status end_open(int rank, int nranks, int device, const struct psm_settings *settings, struct end_place *place,
                    struct end *end)
{
    const struct psmP2pVariant *variant = psmP2pFindVariant(end_variant);
    struct psmProxyOptions options = {
        .size = sizeof options, .rank = rank, .nranks = nranks, .device = device, .settings = settings};
    options.transports[PSM_TRANSPORT_P2P][0] = variant->recv;
    options.transports[PSM_TRANSPORT_P2P][1] = variant->send;
    options.transports[PSM_TRANSPORT_NET][0] = end_net[0];
    options.transports[PSM_TRANSPORT_NET][1] = end_net[1];
    *place = (struct end_place){.pid = psm_proc_self()->pid, .start_time = psm_proc_self()->start_time};
    psm_status status = psmProxyInit(&end->state, &options);
    if (status == PSM_OK) status = psmProxyCreate(end->state);
    if (status == PSM_OK) status = psmProxyAddress(end->state, &place->address);
    if (status == PSM_OK) end->host = psm_host_of(end->state);
    return status;
}

psm_status end_meet(struct end *end, const struct end_place *places, int nranks)
{
    struct psmProxyAddress addresses[END_RANKS];
    for (int i = 0; i < nranks; i++) addresses[i] = places[i].address;
    return psmProxySetAddresses(end->state, addresses, nranks);
}

psm_status end_close(struct end *end)
{
    psm_status status = psmProxyStop(end->state), destroyed = psmProxyDestroy(end->state);
    return status == PSM_OK ? destroyed : status;
}

void end_abort(struct end *end)
{
    psmProxyAbort(end->state, "the test says so");
}
