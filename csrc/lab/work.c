/* One case: a proxy, connectors for what the pattern sends, groups of sends and recvs, a look at every byte, and all of
 * it given back. Ranks go from stage to stage together, whatever has failed, so that none waits for one that does not
 * come; what hangs inside a stage is the runner's to end. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fault.h"
#include "log.h"
#include "rank.h"

PSM_FAULT_SITE_OF(site_stage, "lab.stage", "a rank of the lab enters a stage: op is init, setup, connect, ...",
                  PSM_FAULT_CAN_CALL);
PSM_FAULT_SITE_OF(site_data, "lab.data", "a rank of the lab has written what it will send: op is the stage, move",
                  PSM_FAULT_CAN(PSM_FAULT_CORRUPT));

union info {
    struct psm_p2p_connect p2p;
    struct psm_net_connect net;
};
struct side {
    union {
        psmP2pConnector *connector;
        psmNetConnector *net;
    };
    union info mine, theirs;
    bool connected;
    uint64_t handle;
};
struct peer {
    bool sends, recvs;        /* this rank to it, it to this rank */
    bool net;                 /* the two have no way in shared memory */
    uint8_t *out, *in;        /* device memory */
    struct side *send, *recv; /* a channel each */
};
struct run {
    const struct lab_case *c;
    struct lab_result *result;
    int rank, ranks;
    bool failed; /* this rank goes along without doing more */
    psmProxyState *state;
    struct psm_host host;
    const struct psm_cuda *cuda;
    const struct psmP2pVariant *variant;
    const struct psmNetVariant *net_variant;
    struct psm_peer_info info, *infos;
    bool *present;
    struct peer *peers;
    cudaStream_t stream;
    uint8_t *piece, *meant; /* host memory, PIECE bytes each */
    struct psmGroupOp *ops;
};

/* ---- what failed: the first thing counts ---- */

static bool fail(struct run *run, const char *by, const struct psm_error *error)
{
    if (!run->failed) {
        run->result->status = error->status;
        run->result->error = *error;
        snprintf(run->result->o.by, sizeof run->result->o.by, "%s", by);
        lab_trouble(run->result); /* now: what follows may not come to an end */
    }
    run->failed = true;
    return false;
}

static bool ok(struct run *run, psm_status status)
{
    return status == PSM_OK || fail(run, "libpsm", psm_last_error());
}

static bool __attribute__((format(printf, 4, 5))) failed(struct run *run, const char *by, psm_status status,
                                                         const char *format, ...)
{
    struct psm_error error = {.status = status, .rank = run->rank, .peer = -1};
    va_list rest;
    va_start(rest, format);
    vsnprintf(error.text, sizeof error.text, format, rest);
    va_end(rest);
    snprintf(error.stage, sizeof error.stage, "%s", run->result->o.stage);
    return fail(run, by, &error);
}

static bool cuda_ok(struct run *run, cudaError_t code, const char *call)
{
    if (code == 0) return true;
    struct psm_error error = {.status = PSM_ERR_CUDA, .cuda = (int)code, .rank = run->rank, .peer = -1};
    snprintf(error.text, sizeof error.text, "the rank's own %s returned %s", call, run->cuda->cudaGetErrorName(code));
    snprintf(error.stage, sizeof error.stage, "%s", run->result->o.stage);
    return fail(run, "cuda", &error);
}
#define CUDA(function, ...) cuda_ok(run, run->cuda->function(__VA_ARGS__), #function)

static void enter(struct run *run, const char *stage)
{
    struct psm_fault fault;
    if (!run->failed) snprintf(run->result->o.stage, sizeof run->result->o.stage, "%s", stage);
    lab_stage(stage);
    if (!psm_fault_hit(&site_stage, &(struct psm_fault_args){.rank = run->rank, .peer = -1, .op = stage}, &fault))
        return;
    psm_fault_act_before(&fault);
    if (fault.action == PSM_FAULT_ERROR)
        failed(run, "lab", PSM_ERR_INTERNAL, "lab.stage: a fault asked for an error at %s", stage);
    psm_fault_act_after(&fault);
}

/* Waits for the others. Where one of them has failed, this one does not go on. */
static bool together(struct run *run, const char *name)
{
    int others = lab_meet(name, run->failed);
    if (others > 0 && !run->failed)
        failed(run, "lab", PSM_ERR_ABORTED, "%d other rank%s failed or died before %s", others, others == 1 ? "" : "s",
               name);
    return !run->failed;
}

/* ---- stages ---- */

static bool begin(struct run *run)
{
    const struct lab_case *c = run->c;
    run->variant = psmP2pFindVariant(c->variant);
    run->net_variant = psmNetFindVariant(c->net_variant);
    if (!run->variant || !run->net_variant) return fail(run, "libpsm", psm_last_error());
    struct psmProxyOptions options = {.size = sizeof options,
                                      .rank = run->rank,
                                      .nranks = run->ranks,
                                      .device = (int)c->task.device,
                                      .settings = &c->settings};
    options.transports[PSM_TRANSPORT_P2P][0] = run->variant->recv;
    options.transports[PSM_TRANSPORT_P2P][1] = run->variant->send;
    options.transports[PSM_TRANSPORT_NET][0] = run->net_variant->recv;
    options.transports[PSM_TRANSPORT_NET][1] = run->net_variant->send;
    if (!ok(run, psmProxyInit(&run->state, &options))) return false;
    run->host = psm_host_of(run->state);
    run->cuda = run->host.ops->cuda(run->host.self);
    if (!run->cuda) return fail(run, "libpsm", psm_last_error());
    if (!CUDA(cudaSetDevice, (int)c->task.device)) return false;
    struct psmProxyAddress address;
    return ok(run, psmProxyCreate(run->state)) && ok(run, psmProxyAddress(run->state, &address)) &&
           ok(run, psmP2pPeerInfo(&run->host, &address, &run->info));
}

/* What NCCL prints of a communicator, so that the log tells which ranks there are, and that they came to the end. */
static void say_communicator(const struct run *run, const void *comm, const char *end, bool id)
{
    if (!psm_log_enabled(PSM_LEVEL_INFO)) return;
    char digits[sizeof run->info.bus_id + 1] = "", text[256];
    size_t n = 0;
    for (size_t i = 0; i < sizeof run->info.bus_id && run->info.bus_id[i]; i++)
        if (!strchr(":.", run->info.bus_id[i])) digits[n++] = run->info.bus_id[i];
    const struct psmProxyAddress *first = &run->infos[0].proxy;
    uint64_t comm_id = (first->start_time << 32) ^ ((uint64_t)first->pid << 8) ^ (uint64_t)run->c->task.seed;
    unsigned long long bus = strtoull(digits, NULL, 16);
    int used =
        id ? snprintf(text, sizeof text,
                      "ncclCommInitRank comm %p rank %d nranks %d cudaDev %d nvmlDev %d busId %llx commId 0x%llx - %s",
                      comm, run->rank, run->ranks, (int)run->c->task.device, (int)run->c->task.device, bus,
                      (unsigned long long)comm_id, end)
           : snprintf(text, sizeof text, "comm %p rank %d nranks %d cudaDev %d busId %llx - %s", comm, run->rank,
                      run->ranks, (int)run->c->task.device, bus, end);
    psm_log_write(PSM_LEVEL_INFO, text, (size_t)used);
}

static void meet_peers(struct run *run)
{
    lab_gather("peers", run->failed ? NULL : &run->info, sizeof run->info, run->infos, run->present);
    if (!together(run, "met")) return;
    struct psmProxyAddress *addresses = calloc((unsigned)run->ranks, sizeof *addresses);
    for (int r = 0; r < run->ranks; r++) {
        if (!run->present[r]) failed(run, "lab", PSM_ERR_PEER_DEAD, "rank %d sent no peer info", r);
        addresses[r] = run->infos[r].proxy;
    }
    if (!run->failed) say_communicator(run, run->state, "Init START", true);
    if (!run->failed) ok(run, psmProxySetAddresses(run->state, addresses, run->ranks));
    for (int r = 0; !run->failed && r < run->ranks; r++) {
        int mode = PSM_P2P_NONE;
        ok(run, psmP2pCanConnect(&run->info, &run->infos[r], &mode));
        run->peers[r].net = r != run->rank && mode == PSM_P2P_NONE;
    }
    free(addresses);
}

static bool get_buffers(struct run *run)
{
    size_t bytes = run->c->task.size + GUARD;
    unsigned flags = run->c->task.stream == STREAM_NONBLOCKING ? cudaStreamNonBlocking : cudaStreamDefault;
    cudaStream_t stream = NULL; /* a runtime that fails leaves a number that is no stream here */
    if (run->c->task.stream != STREAM_LEGACY && !CUDA(cudaStreamCreateWithFlags, &stream, flags)) return false;
    run->stream = stream;
    for (int r = 0; r < run->ranks; r++) {
        struct peer *peer = &run->peers[r];
        if (peer->sends && !CUDA(cudaMalloc, (void **)&peer->out, bytes)) return false;
        if (peer->recvs && !CUDA(cudaMalloc, (void **)&peer->in, bytes)) return false;
    }
    return true;
}

/* Whether the variant, which may be of an older library, has a member, and it is set. */
#define HAS(member)                                                                                                    \
    (run->variant->size >= offsetof(struct psmP2pVariant, member) + sizeof run->variant->member && run->variant->member)

/* p2p has no buffers that connections share: the call goes to the next rank's proxy for itself alone. */
static bool shared_init(struct run *run)
{
    void *connector = NULL, *self = run->host.self;
    int channels = (int)run->c->channels;
    const struct psm_host_ops *ops = run->host.ops;
    if (!ok(run, ops->connect(self, PSM_TRANSPORT_P2P, 1, (run->rank + 1) % run->ranks, &connector))) return false;
    bool good = ok(run, ops->call(self, connector, psmProxyMsgSharedInit, &channels, sizeof channels, NULL, 0));
    return ok(run, ops->disconnect(self, connector)) && good;
}

/* The rank between this one and a peer, where the case wants one and there is one. */
static const struct psm_peer_info *between(struct run *run, const struct psm_peer_info *peer)
{
    int via = -1;
    if (run->c->via) ok(run, psmP2pFindIntermediate(run->infos, (size_t)run->ranks, &run->info, peer, &via));
    return via < 0 ? NULL : &run->infos[via];
}

static bool set_up(struct run *run)
{
    if (run->c->shared_init && !shared_init(run)) return false;
    psm_status (*recv)(const struct psm_host *, const struct psm_peer_info *, const struct psm_peer_info *, int, int,
                       struct psm_p2p_connect *, psmP2pConnector **) = psmP2pRecvSetup;
    if (HAS(recvSetup)) recv = run->variant->recvSetup;
    for (int r = 0; r < run->ranks; r++) {
        struct peer *peer = &run->peers[r];
        const struct psm_peer_info *it = &run->infos[r];
        for (int k = 0; r != run->rank && k < (int)run->c->channels; k++) {
            struct side *out = &peer->send[k], *in = &peer->recv[k];
            const struct psm_peer_info *via = peer->net ? NULL : between(run, it);
            if (peer->sends &&
                !ok(run, peer->net ? psmNetSendSetup(&run->host, &run->info, it, k, 0, &out->mine.net, &out->net)
                                   : psmP2pSendSetupVia(&run->host, &run->info, it, via, k, 0, &out->mine.p2p,
                                                        &out->connector)))
                return false;
            if (peer->recvs &&
                !ok(run, peer->net ? psmNetRecvSetup(&run->host, &run->info, it, k, 0, &in->mine.net, &in->net)
                         : via
                             ? psmP2pRecvSetupVia(&run->host, &run->info, it, via, k, 0, &in->mine.p2p, &in->connector)
                             : recv(&run->host, &run->info, it, k, 0, &in->mine.p2p, &in->connector)))
                return false;
        }
    }
    return true;
}

/* With PSM_WIRE_AUDIT=1, as libpsm does with the messages of its proxies. */
static void audit(struct run *run, int peer, const void *info, size_t size)
{
    const char *wanted = getenv("PSM_WIRE_AUDIT");
    char what[200];
    if (!wanted || strcmp(wanted, "1") != 0 || psmLocalValue(info, size, what, sizeof what) < 0) return;
    failed(run, "wire", PSM_ERR_PROTOCOL, "the connect info for rank %d has a value that means nothing there: %s", peer,
           what);
}

/* For each peer: what the own send ends tell, by channel, then what the own recv ends tell. The peer's come the other
 * way round: its recv ends answer our send ends. */
static void swap_infos(struct run *run)
{
    size_t ranks = (unsigned)run->ranks, channels = run->c->channels;
    void **out = calloc(ranks, sizeof *out), **in = calloc(ranks, sizeof *in);
    size_t *n = calloc(ranks, sizeof *n), *got = calloc(ranks, sizeof *got);
    for (int r = 0; r < run->ranks; r++) {
        struct peer *peer = &run->peers[r];
        if (r == run->rank || !(peer->sends || peer->recvs)) continue;
        size_t each = peer->net ? sizeof(struct psm_net_connect) : sizeof(struct psm_p2p_connect);
        n[r] = channels * each * (size_t)(peer->sends + peer->recvs);
        in[r] = calloc(1, n[r]);
        if (run->failed) continue;
        char *at = out[r] = calloc(1, n[r]);
        for (size_t k = 0; peer->sends && k < channels; k++, at += each) memcpy(at, &peer->send[k].mine, each);
        for (size_t k = 0; peer->recvs && k < channels; k++, at += each) memcpy(at, &peer->recv[k].mine, each);
        audit(run, r, out[r], n[r]);
    }
    lab_exchange("connect", out, in, n, got);
    for (int r = 0; r < run->ranks; r++) {
        struct peer *peer = &run->peers[r];
        const char *at = in[r];
        size_t each = peer->net ? sizeof(struct psm_net_connect) : sizeof(struct psm_p2p_connect);
        /* Nothing: it has failed or is dead, and the meeting that follows says so. */
        if (at && got[r] != 0 && got[r] != n[r])
            failed(run, "lab", PSM_ERR_PEER_DEAD, "rank %d sent %zu bytes of connect info, expected %zu", r, got[r],
                   n[r]);
        for (size_t k = 0; at && peer->recvs && k < channels; k++, at += each) memcpy(&peer->recv[k].theirs, at, each);
        for (size_t k = 0; at && peer->sends && k < channels; k++, at += each) memcpy(&peer->send[k].theirs, at, each);
        free(out[r]);
        free(in[r]);
    }
    free(out);
    free(in);
    free(n);
    free(got);
}

/* p2p waits for proxies alone. A net end waits for the peer's, which may wait for another of this rank: all in turn,
 * until the last one is done. */
static bool connect_side(struct run *run, const struct peer *peer, struct side *side, bool sends, bool *all)
{
    psm_status (*send)(psmP2pConnector *, const struct psm_p2p_connect *) = psmP2pSendConnect;
    psm_status (*recv)(psmP2pConnector *, const struct psm_p2p_connect *) = psmP2pRecvConnect;
    if (HAS(sendConnect)) send = run->variant->sendConnect;
    if (HAS(recvConnect)) recv = run->variant->recvConnect;
    if (side->connected) return true;
    psm_status status = peer->net ? (sends ? psmNetSendConnect : psmNetRecvConnect)(side->net, &side->theirs.net)
                                  : (sends ? send : recv)(side->connector, &side->theirs.p2p);
    side->connected = status == PSM_OK;
    if (status == PSM_IN_PROGRESS)
        *all = false;
    else if (!ok(run, status))
        return false;
    return true;
}

static bool connect_all(struct run *run)
{
    for (bool all = false; !all;) {
        all = true;
        for (int r = 0; r < run->ranks; r++) {
            struct peer *peer = &run->peers[r];
            for (uint64_t k = 0; r != run->rank && k < run->c->channels; k++) {
                if (peer->sends && !connect_side(run, peer, &peer->send[k], true, &all)) return false;
                if (peer->recvs && !connect_side(run, peer, &peer->recv[k], false, &all)) return false;
            }
        }
    }
    return true;
}

/* A buffer that cannot be registered goes through the FIFO. */
static bool register_one(struct run *run, struct side *side, uint8_t *buffer)
{
    psm_status status = psmP2pRegister(side->connector, buffer, run->c->task.size + GUARD, &side->handle);
    return status == PSM_ERR_UNSUPPORTED || ok(run, status);
}

static bool register_all(struct run *run)
{
    for (int r = 0; r < run->ranks; r++) {
        struct peer *peer = &run->peers[r];
        for (uint64_t k = 0; r != run->rank && !peer->net && k < run->c->channels; k++) {
            if (peer->sends && !register_one(run, &peer->send[k], peer->out)) return false;
            if (peer->recvs && !register_one(run, &peer->recv[k], peer->in)) return false;
        }
    }
    return true;
}

static bool prepare(struct run *run, uint64_t iter)
{
    for (int r = 0; r < run->ranks; r++) {
        struct peer *peer = &run->peers[r];
        uint64_t bytes = peer->sends ? lab_message(&run->c->task, run->rank, r, iter) : 0;
        for (uint64_t at = 0; at < bytes; at += PIECE) {
            uint64_t n = bytes - at < PIECE ? bytes - at : PIECE;
            lab_fill(run->piece, n, at, run->c->task.seed, run->rank, r, iter);
            struct psm_fault_args args = {.rank = run->rank, .peer = r, .op = "move"};
            struct psm_fault fault;
            if (psm_fault_hit(&site_data, &args, &fault)) run->piece[n / 2] ^= 0x40;
            if (!CUDA(cudaMemcpy, peer->out + at, run->piece, n, cudaMemcpyHostToDevice)) return false;
        }
        if (peer->recvs && !CUDA(cudaMemset, peer->in, UNTOUCHED, run->c->task.size + GUARD)) return false;
    }
    /* cudaMemset does not wait, and a non-blocking stream does not wait for it. */
    return CUDA(cudaStreamSynchronize, NULL);
}

static size_t list_ops(struct run *run, uint64_t iter)
{
    const struct lab_case *c = run->c;
    enum lab_skip skip = iter + 1 == c->task.iters ? c->task.skip : SKIP_NONE;
    size_t n = 0;
    for (int r = 0; r < run->ranks; r++) {
        struct peer *peer = &run->peers[r];
        for (uint64_t k = 0; k < c->channels; k++) {
            uint64_t at, bytes = lab_part(c, run->rank, r, iter, k, &at);
            if (r == run->rank && peer->sends) {
                run->ops[n++] = (struct psmGroupOp){.sendbuff = peer->out + at,
                                                    .recvbuff = peer->in + at,
                                                    .nbytes = bytes,
                                                    .peer = r,
                                                    .channel = (int)k};
                continue;
            }
            if (peer->sends && skip != SKIP_SEND)
                run->ops[n++] =
                    (struct psmGroupOp){.connector = peer->send[k].connector,
                                        .sendbuff = peer->out + at,
                                        .nbytes = bytes - (c->task.shorter < bytes ? c->task.shorter : bytes),
                                        .handle = peer->send[k].handle,
                                        .peer = r,
                                        .channel = (int)k};
            bytes = lab_part(c, r, run->rank, iter, k, &at);
            if (peer->recvs && skip != SKIP_RECV)
                run->ops[n++] = (struct psmGroupOp){.connector = peer->recv[k].connector,
                                                    .recvbuff = peer->in + at,
                                                    .nbytes = bytes,
                                                    .handle = peer->recv[k].handle,
                                                    .peer = r,
                                                    .channel = (int)k};
        }
    }
    return n;
}

/* Every byte that should have come, and those behind it that should not. */
static bool compare(struct run *run, int from, uint64_t iter)
{
    uint64_t bytes = lab_message(&run->c->task, from, run->rank, iter), all = run->c->task.size + GUARD;
    for (uint64_t at = 0; at < all; at += PIECE) {
        uint64_t n = all - at < PIECE ? all - at : PIECE, data = bytes <= at ? 0 : bytes - at < n ? bytes - at : n;
        if (!CUDA(cudaMemcpy, run->piece, run->peers[from].in + at, n, cudaMemcpyDeviceToHost)) return false;
        lab_fill(run->meant, data, at, run->c->task.seed, from, run->rank, iter);
        lab_compare(&run->result->o.check, run->piece, run->meant, n, data, from, iter, at);
    }
    run->result->o.check.bytes += bytes;
    return true;
}

static bool move_once(struct run *run, uint64_t iter)
{
    bool skipped = run->c->task.skip == SKIP_RECV && iter + 1 == run->c->task.iters;
    if (!prepare(run, iter)) return false;
    psmGroup *group = NULL;
    double begun = lab_now();
    if (!ok(run, psmGroupLaunch(run->state, run->stream, run->ops, list_ops(run, iter), &group))) return false;
    if (!ok(run, psmGroupWait(group)) && run->result->status != psmProxyAsyncError(run->state))
        run->result->error = *psm_last_error(); /* what the proxy says is nearer to the reason */
    bool freed = ok(run, psmGroupFree(group));
    /* Self-sends and the host function are on this stream. */
    if (!freed || !CUDA(cudaStreamSynchronize, run->stream) || run->failed) return false;
    run->result->o.move_seconds += lab_now() - begun;
    run->result->o.groups++;
    for (int r = 0; r < run->ranks; r++)
        if (run->peers[r].recvs && !(skipped && r != run->rank) && !compare(run, r, iter)) return false;
    return true;
}

/* End the operation of all ranks because of this failure. */
static void abort_for(struct run *run, const struct psm_error *error)
{
    psm_set_last_error(error);
    psmProxyAbort(run->state, error->text);
}

static void move_all(struct run *run)
{
    for (uint64_t iter = 0; iter < run->c->task.iters; iter++) {
        if (move_once(run, iter)) continue;
        /* The others may be waiting for this rank's part. */
        abort_for(run, &run->result->error);
        return;
    }
    char text[200];
    if (run->result->o.check.wrong == 0) return;
    lab_wrong(&run->result->o.check, text, sizeof text);
    failed(run, "data", PSM_ERR_INTERNAL, "%s", text);
}

static void free_side(struct run *run, struct side *side, bool net, bool send)
{
    if (net) ok(run, send ? psmNetSendFree(side->net) : psmNetRecvFree(side->net));
    if (net || !side->connector) return;
    if (side->handle) ok(run, psmP2pDeregister(side->connector, side->handle));
    ok(run, send ? psmP2pSendFree(side->connector) : psmP2pRecvFree(side->connector));
}

/* All of it, also after a failure: what is left then is a leak. */
static void free_all(struct run *run)
{
    for (int r = 0; run->peers && r < run->ranks; r++) {
        struct peer *peer = &run->peers[r];
        for (uint64_t k = 0; k < run->c->channels; k++) {
            if (peer->send) free_side(run, &peer->send[k], peer->net, true);
            if (peer->recv) free_side(run, &peer->recv[k], peer->net, false);
        }
        if (peer->out) CUDA(cudaFree, peer->out);
        if (peer->in) CUDA(cudaFree, peer->in);
        free(peer->send);
        free(peer->recv);
    }
    if (run->stream) CUDA(cudaStreamDestroy, run->stream);
}

static bool get_room(struct run *run)
{
    size_t ranks = (unsigned)run->ranks, channels = run->c->channels;
    run->infos = calloc(ranks, sizeof *run->infos);
    run->present = calloc(ranks, sizeof *run->present);
    run->peers = calloc(ranks, sizeof *run->peers);
    run->ops = calloc(2 * ranks * channels, sizeof *run->ops);
    run->piece = malloc(PIECE + 8);
    run->meant = malloc(PIECE + 8);
    bool all = run->infos && run->present && run->peers && run->ops && run->piece && run->meant;
    for (int r = 0; all && r < run->ranks; r++) {
        struct peer *peer = &run->peers[r];
        peer->sends = lab_sends(&run->c->task, run->rank, r, run->ranks);
        peer->recvs = lab_sends(&run->c->task, r, run->rank, run->ranks);
        peer->send = calloc(channels, sizeof *peer->send);
        peer->recv = calloc(channels, sizeof *peer->recv);
        all = peer->send && peer->recv;
    }
    return all || failed(run, "lab", PSM_ERR_NO_MEMORY, "no memory for %d peers", run->ranks);
}

void lab_run(const struct lab_case *c, int rank, int ranks, struct lab_result *result)
{
    struct run all = {.c = c, .result = result, .rank = rank, .ranks = ranks}, *run = &all;
    char ignored[160];
    int open_before = lab_descriptors(ignored, sizeof ignored);
    int64_t private_before = lab_private();
    double begun = lab_now();
    *result = (struct lab_result){.o = {.task = &c->task, .rank = rank, .check.from = -1}};
    enter(run, "init");
    if (get_room(run)) begin(run);
    meet_peers(run);
    enter(run, "setup");
    if (!run->failed && get_buffers(run)) set_up(run);
    swap_infos(run);
    if (together(run, "setup")) {
        enter(run, "connect");
        connect_all(run);
    }
    if (together(run, "connected") && c->task.registered) {
        enter(run, "register");
        register_all(run);
    }
    bool ready = together(run, "ready");
    result->o.setup_seconds = lab_now() - begun;
    result->held = lab_descriptors(ignored, sizeof ignored) - open_before;
    result->kept = lab_private() - private_before;
    for (int r = 0; run->peers && r < ranks; r++) {
        int ways = r == rank ? 0 : run->peers[r].sends + run->peers[r].recvs;
        result->ends[run->peers[r].net] += ways * (int)c->channels;
        result->peers[run->peers[r].net] += ways > 0;
    }
    if (ready) {
        say_communicator(run, run->state, "Init COMPLETE", true);
        enter(run, "move");
        move_all(run);
    }
    together(run, "moved");
    /* As an application does after an error: what hangs in this rank's proxy would hang the freeing, too. */
    if (run->state && run->failed && strcmp(result->o.by, "lab") != 0 && strcmp(result->o.by, "data") != 0)
        abort_for(run, &result->error);
    enter(run, "free");
    free_all(run);
    together(run, "freed");
    enter(run, "stop");
    if (run->state) ok(run, psmProxyStop(run->state));
    const void *comm = run->state;
    if (run->state) ok(run, psmProxyDestroy(run->state));
    if (!run->failed && comm) say_communicator(run, comm, "Destroy COMPLETE", false);
    free(run->infos);
    free(run->present);
    free(run->peers);
    free(run->ops);
    free(run->piece);
    free(run->meant);
    /* Emulated CUDA closes the socket of a peer that came for memory when the peer has gone: that may be a moment
     * later. */
    static bool in_vain;
    double patience = lab_now() + (in_vain ? 0.0 : 3.0);
    while ((result->left = lab_descriptors(result->left_what, sizeof result->left_what) - open_before) > 0 &&
           lab_now() < patience)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    in_vain |= result->left > 0;
    if (result->left == 1)
        failed(run, "left", PSM_ERR_INTERNAL, "1 socket or memfd is left open: %s", result->left_what);
    else if (result->left > 1)
        failed(run, "left", PSM_ERR_INTERNAL, "%d sockets or memfds are left open, %s among them", result->left,
               result->left_what);
    result->o.seconds = lab_now() - begun;
}
