/* Fuzz target of what the p2p transport takes from others: a proxy's answer to Setup and the peer's connect info on the
 * caller's side; the requests Setup, Connect, Register and Deregister on the proxy's.
 *
 * The host is one that answers from the input, and CUDA one whose every call fails: host memory is all there is. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "fuzz_host.h"
#include "p2p/p2p.h"

enum { MOST_FILE = 1 << 20 };

static const uint8_t *answer; /* to Setup; NULL: none */
static size_t answer_size;
static int offered = -1; /* the descriptor of the segment that was made last */

static cudaError_t pin(void *ptr, size_t size, unsigned flags)
{
    (void)ptr, (void)size, (void)flags;
    return 0;
}
static cudaError_t unpin(void *ptr)
{
    (void)ptr;
    return 0;
}
static psm_status connect_(void *host, int transport, int send, int rank, void **connector)
{
    (void)transport, (void)send, (void)rank;
    *connector = host;
    return PSM_OK;
}
static psm_status call(void *host, void *connector, int type, const void *req, int reqSize, void *resp, int respSize)
{
    (void)host, (void)connector, (void)req, (void)reqSize;
    if (type != psmProxyMsgSetup) return PSM_OK;
    if (answer_size != (size_t)respSize) /* as libpsm's proxy does */
        return psm_fail(PSM_ERR_PROTOCOL, "call", -1, -1, 0, "an answer of %zu bytes, expected %d", answer_size,
                        respSize);
    memcpy(resp, answer, (size_t)respSize);
    return PSM_OK;
}
static psm_status get_fd(void *host, void *connector, uint64_t id, int *fd)
{
    (void)host, (void)connector, (void)id;
    *fd = offered >= 0 ? dup(offered) : -1;
    return *fd >= 0 ? PSM_OK : psm_fail(PSM_ERR_NOT_FOUND, "getfd", -1, -1, 0, "none is offered");
}
static psm_status query_fd(void *host, void *connector, int fd, int *remote)
{
    (void)host, (void)connector, (void)fd;
    *remote = 1;
    return PSM_OK;
}
static psm_status disconnect(void *host, void *connector)
{
    (void)host, (void)connector;
    return PSM_OK;
}
static psm_status offer_fd(void *host, uint64_t id, int fd)
{
    (void)host, (void)id;
    if (offered >= 0) close(offered);
    offered = dup(fd);
    return PSM_OK;
}
static psm_status withdraw_fd(void *host, uint64_t id)
{
    (void)host, (void)id;
    return PSM_OK;
}
static psm_status take_fd(void *host, int number, int *fd)
{
    return get_fd(host, NULL, (uint64_t)number, fd);
}
static uint64_t connection_of(void *host, void *connector)
{
    (void)host, (void)connector;
    return 1;
}

static const struct psm_host_ops ops = {FUZZ_HOST_OPS,        .connect = connect_,        .call = call,
                                        .get_fd = get_fd,     .query_fd = query_fd,       .disconnect = disconnect,
                                        .offer_fd = offer_fd, .withdraw_fd = withdraw_fd, .take_fd = take_fd,
                                        .aborted = fuzz_no,   .connection = connection_of};
static const struct psm_host host = {.ops = &ops, .self = (void *)&ops};

static void begin(void)
{
    if (!fuzz_begin(4, 4096)) return;
    fuzz_cuda.cudaHostRegister = pin;
    fuzz_cuda.cudaHostUnregister = unpin;
    /* A request for a large FIFO is right; its memory is not needed here. */
    struct rlimit limit = {MOST_FILE, MOST_FILE};
    setrlimit(RLIMIT_FSIZE, &limit);
    signal(SIGXFSZ, SIG_IGN);
}

static struct psm_peer_info rank_info(int rank)
{
    struct psm_peer_info info = {.size = sizeof info,
                                 .version = PSM_WIRE_VERSION,
                                 .rank = rank,
                                 .host_hash = 7,
                                 .process_hash = 100u + (unsigned)rank,
                                 .capabilities = PSM_CAN_MEMFD};
    return info;
}

/* The caller: what a proxy answers, and what the peer tells. */
static void caller(const uint8_t *data, size_t size, bool send)
{
    struct psm_peer_info me = rank_info(0), peer = rank_info(1);
    struct psm_p2p_connect mine, theirs = {0};
    psmP2pConnector *connector = NULL;
    answer = data;
    answer_size = size < sizeof(struct psmP2pShareInfo) ? size : sizeof(struct psmP2pShareInfo);
    psm_status status = (send ? psmP2pSendSetup : psmP2pRecvSetup)(&host, &me, &peer, 0, 0, &mine, &connector);
    fuzz_reasoned(status);
    if (status != PSM_OK) return;
    size_t rest = size - answer_size;
    memcpy(&theirs, data + answer_size, rest < sizeof theirs ? rest : sizeof theirs);
    status = (send ? psmP2pSendConnect : psmP2pRecvConnect)(connector, &theirs);
    fuzz_reasoned(status);
    if (status == PSM_OK) {
        FUZZ_TAKEN();
        fuzz_need(theirs.role != mine.role && theirs.rank == 1 && theirs.steps == mine.steps &&
                      theirs.chunk == mine.chunk && theirs.buffer_size == mine.buffer_size && theirs.mode == mine.mode,
                  "connected to an end that assumes something else");
    }
    (send ? psmP2pSendFree : psmP2pRecvFree)(connector);
}

/* The proxy: four requests of whatever size; the input says how long each is. */
static void proxy(const uint8_t *data, size_t size, bool send)
{
    const struct psmTransportComm *handlers = send ? &psm_p2p_split_send : &psm_p2p_split_recv;
    psmProxyConnection connection = {.transport = PSM_TRANSPORT_P2P, .send = send, .id = 1, .host = &host};
    uint8_t response[sizeof(struct psmP2pShareInfo)];
    for (int request = 0; request < 4 && size >= 2; request++) {
        size_t n = (size_t)data[0] | (size_t)data[1] << 8;
        data += 2;
        size -= 2;
        if (n > size) n = size;
        uint8_t *req = malloc(n ? n : 1);
        fuzz_need(req != NULL, "no memory");
        memcpy(req, data, n);
        data += n;
        size -= n;
        int done = 0;
        psm_status status;
        if (request == 0)
            status = handlers->proxySetup(&connection, NULL, req, (int)n, response, sizeof response, &done);
        else if (request == 1)
            status = handlers->proxyConnect(&connection, NULL, req, (int)n, NULL, 0, &done);
        else if (request == 2 && handlers->proxyRegister)
            status = handlers->proxyRegister(&connection, NULL, req, (int)n, NULL, 0, &done);
        else
            status =
                handlers->proxyDeregister ? handlers->proxyDeregister(&connection, NULL, req, (int)n, &done) : PSM_OK;
        fuzz_reasoned(status);
        if (request == 0 && status == PSM_OK) FUZZ_TAKEN();
        free(req);
    }
    if (connection.transportResources) handlers->proxyFree(&connection, NULL);
    fuzz_need(!connection.transportResources, "freed, and something is left");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    begin();
    if (size == 0) return 0;
    if (data[0] & 2)
        proxy(data + 1, size - 1, data[0] & 1);
    else
        caller(data + 1, size - 1, data[0] & 1);
    return 0;
}

#ifndef PSMKIT_LIBFUZZER
static size_t fuzz_right(uint8_t *out, size_t room)
{
    bool send = fuzz_below(2);
    struct psm_share share = {.kind = PSM_SHARE_MEMFD,
                              .device = -1,
                              .owner_pid = (uint32_t)getpid(),
                              .id = fuzz_draw() | 1,
                              .size = send ? 4096 : sizeof(struct psm_p2p_control),
                              .offset = 4096};
    struct psm_p2p_connect theirs = {.magic = PSM_P2P_MAGIC,
                                     .version = PSM_WIRE_VERSION,
                                     .mode = PSM_P2P_SHM,
                                     .role = !send,
                                     .rank = 1,
                                     .steps = 4,
                                     .chunk = 1024,
                                     .buffer_size = 4096,
                                     .share = share};
    size_t n = 1;
    fuzz_need(room > 1024, "no room");
    if (fuzz_below(2)) {
        struct psmP2pShareInfo info = {.magic = PSM_P2P_MAGIC,
                                       .version = PSM_WIRE_VERSION,
                                       .role = send,
                                       .steps = 4,
                                       .mode = PSM_P2P_SHM,
                                       .buffer_size = 4096,
                                       .share = share};
        out[0] = send;
        memcpy(out + n, &info, sizeof info);
        memcpy(out + n + sizeof info, &theirs, sizeof theirs);
        return n + sizeof info + sizeof theirs;
    }
    struct psm_p2p_setup setup = {.magic = PSM_P2P_MAGIC,
                                  .version = PSM_WIRE_VERSION,
                                  .mode = PSM_P2P_SHM,
                                  .role = send,
                                  .peer = 1,
                                  .control_kind = PSM_SHARE_MEMFD,
                                  .fifo_kind = PSM_SHARE_MEMFD,
                                  .steps = 4,
                                  .chunk = 1024,
                                  .buffer_size = 4096};
    struct psm_p2p_attach attach = {
        .peer = theirs, .given = 1, .fifo_given = -1, .fifo_rank = 1, .same_process = fuzz_below(2)};
    struct psm_p2p_registration registration = {
        .magic = PSM_P2P_MAGIC, .version = PSM_WIRE_VERSION, .given = 1, .rank = 1, .id = share.id, .share = share};
    out[0] = (uint8_t)(2 | send);
    n = fuzz_put(out, n, &setup, sizeof setup, 0);
    n = fuzz_put(out, n, &attach, sizeof attach, 0);
    n = fuzz_put(out, n, &registration, sizeof registration, 0);
    return fuzz_put(out, n, &registration, sizeof registration, 0);
}
#endif
