/* Fuzz target of what the net transport takes from others: the requests Setup and Connect on the proxy's side, then the
 * credits or messages of an operation as they come out of a network.
 *
 * The host is one that knows nothing, CUDA is the C library, the network is one whose receives are filled from the
 * input. When that is at its end the peer is gone. */
#define _GNU_SOURCE
#include "fuzz_host.h"
#include "net/net_conn.h"

enum { STEPS = 4, CHUNK = 256, BUFFER = STEPS * CHUNK, TURNS = 4096 };

static const uint8_t *input; /* what the network has yet */
static size_t left;
static int gone; /* it has ended */

/* ---- CUDA ---- */

static cudaError_t host_alloc(void **ptr, size_t size, unsigned flags)
{
    (void)flags;
    return (*ptr = calloc(1, size)) ? 0 : FUZZ_CUDA_REFUSED;
}
static cudaError_t host_free(void *ptr)
{
    free(ptr);
    return 0;
}
static cudaError_t stream_create(cudaStream_t *stream, unsigned flags)
{
    (void)flags;
    *stream = (cudaStream_t)&fuzz_cuda;
    return 0;
}
static cudaError_t event_create(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    *event = (cudaEvent_t)&fuzz_cuda;
    return 0;
}
static cudaError_t on_stream(cudaStream_t stream)
{
    (void)stream;
    return 0;
}
static cudaError_t on_event(cudaEvent_t event)
{
    (void)event;
    return 0;
}
static cudaError_t event_record(cudaEvent_t event, cudaStream_t stream)
{
    (void)event, (void)stream;
    return 0;
}
static cudaError_t copy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)kind, (void)stream;
    memcpy(to, from, size);
    return 0;
}
/* ---- the network ---- */

struct request {
    void *data;
    int room; /* -1: a send */
};

static ncclResult_t net_init(ncclDebugLogger_t logger)
{
    (void)logger;
    return ncclSuccess;
}
static ncclResult_t net_devices(int *n)
{
    *n = 1;
    return ncclSuccess;
}
static ncclResult_t net_properties(int dev, ncclNetProperties_v8_t *p)
{
    (void)dev;
    *p = (ncclNetProperties_v8_t){.name = "fuzz", .ptrSupport = NCCL_PTR_HOST, .maxRecvs = 1};
    return ncclSuccess;
}
static ncclResult_t net_listen(int dev, void *handle, void **listener)
{
    (void)dev, (void)handle;
    *listener = &fuzz_settings;
    return ncclSuccess;
}
static ncclResult_t net_connect(int dev, void *handle, void **comm, ncclNetDeviceHandle_v8_t **device)
{
    (void)dev, (void)handle, (void)device;
    *comm = &fuzz_settings;
    return ncclSuccess;
}
static ncclResult_t net_accept(void *listener, void **comm, ncclNetDeviceHandle_v8_t **device)
{
    (void)device;
    *comm = listener;
    return ncclSuccess;
}
static ncclResult_t net_reg(void *comm, void *data, size_t size, int type, void **registration)
{
    (void)comm, (void)data, (void)size, (void)type;
    *registration = NULL;
    return ncclSuccess;
}
static ncclResult_t net_dereg(void *comm, void *registration)
{
    (void)comm, (void)registration;
    return ncclSuccess;
}
static ncclResult_t post(void *data, int room, void **request)
{
    struct request *r = malloc(sizeof *r);
    fuzz_need(r != NULL, "no memory");
    *r = (struct request){data, room};
    *request = r;
    return ncclSuccess;
}
static struct request *opened[64];
static size_t nopened;
static ncclResult_t net_isend(void *comm, void *data, int size, int tag, void *registration, void **request)
{
    (void)comm, (void)size, (void)tag, (void)registration;
    fuzz_need(nopened < 64, "more requests than slots and credits");
    post(data, -1, request);
    opened[nopened++] = *request;
    return ncclSuccess;
}
static ncclResult_t net_irecv(void *comm, int n, void **data, int *sizes, int *tags, void **registrations,
                              void **request)
{
    (void)comm, (void)n, (void)tags, (void)registrations;
    fuzz_need(nopened < 64, "more requests than slots and credits");
    post(data[0], sizes[0], request);
    opened[nopened++] = *request;
    return ncclSuccess;
}
static void end_request(struct request *r)
{
    size_t i = 0;
    while (i < nopened && opened[i] != r) i++;
    fuzz_need(i < nopened, "a request was asked for after it had ended");
    opened[i] = opened[--nopened];
    free(r);
}
static ncclResult_t net_test(void *request, int *done, int *sizes)
{
    struct request *r = request;
    *done = 1;
    if (r->room >= 0) {
        size_t n = left >= 2 ? (size_t)(input[0] | input[1] << 8) : 0;
        if (left < 2) {
            gone = 1;
            end_request(r);
            return ncclRemoteError;
        }
        input += 2, left -= 2;
        if (n > left) n = left;
        if (n > (size_t)r->room) n = (size_t)r->room; /* a network refuses what is larger */
        memcpy(r->data, input, n);
        input += n, left -= n;
        if (sizes) *sizes = (int)n;
    }
    end_request(r);
    return ncclSuccess;
}
static ncclResult_t net_close(void *comm)
{
    (void)comm;
    return ncclSuccess;
}
static const ncclNet_v8_t table = {.name = "fuzz",
                                   .init = net_init,
                                   .devices = net_devices,
                                   .getProperties = net_properties,
                                   .listen = net_listen,
                                   .connect = net_connect,
                                   .accept = net_accept,
                                   .regMr = net_reg,
                                   .deregMr = net_dereg,
                                   .isend = net_isend,
                                   .irecv = net_irecv,
                                   .test = net_test,
                                   .closeSend = net_close,
                                   .closeRecv = net_close,
                                   .closeListen = net_close};

/* ---- the host ---- */

static int has_ended(void *host)
{
    (void)host;
    return gone;
}
static const struct psm_host_ops ops = {FUZZ_HOST_OPS, .aborted = has_ended};
static const struct psm_host host = {.ops = &ops, .self = (void *)&ops};

static void begin(void)
{
    if (!fuzz_begin(STEPS, BUFFER)) return;
    fuzz_settings.timeout_ms = 1;
    fuzz_cuda.cudaHostAlloc = host_alloc;
    fuzz_cuda.cudaFreeHost = host_free;
    fuzz_cuda.cudaStreamCreateWithFlags = stream_create;
    fuzz_cuda.cudaStreamQuery = fuzz_cuda.cudaStreamDestroy = on_stream;
    fuzz_cuda.cudaEventCreateWithFlags = event_create;
    fuzz_cuda.cudaEventQuery = fuzz_cuda.cudaEventDestroy = on_event;
    fuzz_cuda.cudaEventRecord = event_record;
    fuzz_cuda.cudaMemcpyAsync = copy;
    fuzz_need(psmNetUse(8, &table) == PSM_OK, "the network is not taken");
}

/* One operation of as many bytes as the input says, in a buffer that has no byte more. */
static void operate(psmProxyConnection *connection, const struct psmTransportComm *handlers, uint64_t bytes)
{
    uint8_t *buffer = malloc(bytes ? bytes : 1);
    fuzz_need(buffer != NULL, "no memory");
    memset(buffer, 7, bytes);
    struct psmProxyArgs args = {.nsubs = 1, .state = psmProxyOpReady};
    args.subs[0] = (struct psmProxySubArgs){
        .connection = connection, .sendbuff = buffer, .recvbuff = buffer, .nbytes = bytes, .peer = 1};
    psm_status status = PSM_OK;
    int turns = 0;
    for (; args.state != psmProxyOpNone && turns < TURNS * 1024; turns++) {
        status = handlers->proxyProgress(NULL, &args);
        fuzz_reasoned(status);
    }
    fuzz_need(args.state == psmProxyOpNone, "an operation stands still though its peer is gone");
    if (status == PSM_OK) FUZZ_TAKEN();
    free(buffer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    begin();
    if (size < 3) return 0;
    bool send = data[0] & 1;
    const struct psmTransportComm *handlers = send ? &psm_net_split_send : &psm_net_split_recv;
    psmProxyConnection connection = {.transport = PSM_TRANSPORT_NET, .send = send, .id = 1, .host = &host};
    struct psmNetShareInfo info;
    struct psm_net_connected answer = {0};
    struct psm_net_setup setup = {0};
    struct psm_net_connect peer = {0};
    uint64_t bytes = (uint64_t)(data[1] | data[2] << 8) % (8 * BUFFER);
    int done = 0;
    data += 3, size -= 3;
    memcpy(&setup, data, size < sizeof setup ? size : sizeof setup);
    data += size < sizeof setup ? size : sizeof setup, size -= size < sizeof setup ? size : sizeof setup;
    memcpy(&peer, data, size < sizeof peer ? size : sizeof peer);
    input = data + (size < sizeof peer ? size : sizeof peer), left = size - (size < sizeof peer ? size : sizeof peer);
    gone = 0;
    if (setup.buffer_size > 1 << 20) setup.buffer_size = BUFFER; /* a large one is right, and takes its time */
    setup.role = send;
    psm_status status = handlers->proxySetup(&connection, NULL, &setup, sizeof setup, &info, sizeof info, &done);
    fuzz_reasoned(status);
    if (status == PSM_OK) {
        status = handlers->proxyConnect(&connection, NULL, &peer, sizeof peer, &answer, sizeof answer, &done);
        fuzz_reasoned(status);
    }
    if (status == PSM_OK && answer.connected) operate(&connection, handlers, bytes);
    if (connection.transportResources) handlers->proxyFree(&connection, NULL);
    while (nopened > 0) end_request(opened[0]); /* a connection that is closed takes its requests with it */
    return 0;
}

#ifndef PSMKIT_LIBFUZZER
static size_t fuzz_right(uint8_t *out, size_t room)
{
    bool send = fuzz_below(2);
    uint64_t bytes = fuzz_below(8 * BUFFER), nsteps = psm_conn_nsteps(bytes, CHUNK);
    uint64_t first = nsteps < STEPS ? nsteps : STEPS;
    struct psm_net_setup setup = {.magic = PSM_NET_MAGIC,
                                  .version = PSM_WIRE_VERSION,
                                  .role = send,
                                  .peer = 1,
                                  .steps = STEPS,
                                  .chunk = CHUNK,
                                  .buffer_size = BUFFER};
    struct psm_net_connect peer = {.magic = PSM_NET_MAGIC, .version = PSM_WIRE_VERSION, .role = !send, .rank = 1};
    fuzz_need(room > 65536, "no room");
    out[0] = send;
    out[1] = (uint8_t)bytes;
    out[2] = (uint8_t)(bytes >> 8);
    memcpy(out + 3, &setup, sizeof setup);
    memcpy(out + 3 + sizeof setup, &peer, sizeof peer);
    size_t n = 3 + sizeof setup + sizeof peer;
    for (uint64_t k = 0; send && k <= nsteps - first; k++) {
        struct psm_net_credit credit = {.magic = PSM_NET_MAGIC,
                                        .version = PSM_WIRE_VERSION,
                                        .kind = fuzz_below(64) ? PSM_NET_CREDIT : PSM_NET_ENDED,
                                        .seq = 1,
                                        .nbytes = bytes,
                                        .recvTail = first + k};
        n = fuzz_put(out, n, &credit, sizeof credit, 0);
    }
    for (uint64_t step = 0; !send && step < nsteps; step++) {
        uint64_t rest = bytes - step * CHUNK;
        struct psm_net_head head = {.magic = PSM_NET_MAGIC,
                                    .version = PSM_WIRE_VERSION,
                                    .kind = fuzz_below(64) ? PSM_NET_DATA : PSM_NET_ENDED,
                                    .seq = 1,
                                    .step = step,
                                    .nbytes = bytes,
                                    .bytes = rest < CHUNK ? rest : CHUNK};
        n = fuzz_put(out, n, &head, sizeof head, head.bytes);
    }
    return n;
}
#endif
