/* A variant of the p2p transport of your own, in C, and one with a mistake that it declares.

       cc -shared -fPIC my_transport.c -o libmytransport.so $(psmkit config --cflags) $(psmkit config --libs)
       psmkit conformance libmytransport.so:c-mine
       psmkit conformance libmytransport.so:c-careless

   The library registers its variants when it is loaded. Each is a table of handlers for both directions: psmkit's own,
   except for those that the author writes. */
#include <psm/psm_p2p.h>

static struct psmTransportComm right_send, right_recv, mine_send, mine_recv, careless_send, careless_recv;

/* Answers each second time: a handler that is not done leaves *done 0, and is asked again when others were served. */
static psm_status setup(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize, void *resp,
                        int respSize, int *done)
{
    static _Thread_local unsigned times;
    *done = 0;
    if (times++ % 2 == 0) return PSM_OK;
    *done = 1;
    const struct psmTransportComm *right = connection->send ? &right_send : &right_recv;
    return right->proxySetup(connection, state, req, reqSize, resp, respSize, done);
}

/* The mistake: Free releases nothing. */
static psm_status forget(psmProxyConnection *connection, psmProxyState *state)
{
    (void)state;
    connection->transportResources = NULL;
    return PSM_OK;
}

static const struct psmP2pVariant variants[] = {
    {.size = sizeof(struct psmP2pVariant),
     .name = "c-mine",
     .summary = "answers Setup the second time that it is asked",
     .outcome = "",
     .declared = PSM_DECLARED(.verdict = PSM_VERDICT_HEALTHY, .codes = ""),
     .send = &mine_send,
     .recv = &mine_recv},
    {.size = sizeof(struct psmP2pVariant),
     .name = "c-careless",
     .summary = "Free releases nothing",
     .outcome = "PSM505: the data is right; stream, events and memory are leaked",
     .declared = PSM_DECLARED(.verdict = PSM_VERDICT_LEAKING, .codes = "PSM505",
                              .leaves = PSM_LEAVES_STREAM | PSM_LEAVES_EVENTS | PSM_LEAVES_MEMORY),
     .wrong = 1,
     .send = &careless_send,
     .recv = &careless_recv},
};

__attribute__((constructor)) static void register_variants(void)
{
    const struct psmP2pVariant *split = psmP2pFindVariant(NULL); /* psmkit's own */
    right_send = mine_send = careless_send = *split->send;
    right_recv = mine_recv = careless_recv = *split->recv;
    mine_send.proxySetup = mine_recv.proxySetup = setup;
    careless_send.proxyFree = careless_recv.proxyFree = forget;
    for (unsigned i = 0; i < sizeof variants / sizeof *variants; i++) psmP2pRegisterVariant(&variants[i]);
}
