"""The source of a small transport, as NCCL writes them, for the audit of contracts."""

from __future__ import annotations

from pathlib import Path

FLAGS = "-x c++ -std=c++17"
# What NCCL declares, as far as these tests need it.
HEAD = """
#include <stddef.h>
#include <string.h>
#include <stdlib.h>
#include <stdint.h>
typedef struct CUstream_st *cudaStream_t; typedef struct CUevent_st *cudaEvent_t;
typedef int ncclResult_t; typedef int cudaError_t;
enum { ncclSuccess = 0, ncclInternalError = 3 };
enum { ncclProxyMsgSetup = 3, ncclProxyMsgConnect = 4, ncclProxyMsgRegister = 11 };
struct ncclConnect { char data[256]; };
struct ncclProxyConnection { void *transportResources; int sameProcess; int state; };
struct ncclProxyConnector { struct ncclProxyConnection *connection; int sameProcess; };
struct ncclConnector { struct ncclProxyConnector proxyConn; void *transportResources; };
struct ncclComm; struct ncclTopoGraph; struct ncclPeerInfo { uint64_t hostHash, pidHash; int rank; }; struct ncclProxyState;
struct ncclTransportComm {
  ncclResult_t (*setup)(struct ncclComm*, struct ncclTopoGraph*, struct ncclPeerInfo*, struct ncclPeerInfo*, struct ncclConnect*,
                        struct ncclConnector*, int channelId, int connIndex);
  ncclResult_t (*connect)(struct ncclComm*, struct ncclConnect*, int nranks, int rank, struct ncclConnector*);
  ncclResult_t (*free)(struct ncclConnector*);
  ncclResult_t (*proxySetup)(struct ncclProxyConnection*, struct ncclProxyState*, void* reqBuff, int reqSize, void* respBuff, int respSize, int* done);
  ncclResult_t (*proxyConnect)(struct ncclProxyConnection*, struct ncclProxyState*, void* reqBuff, int reqSize, void* respBuff, int respSize, int* done);
  ncclResult_t (*proxyFree)(struct ncclProxyConnection*, struct ncclProxyState*);
  ncclResult_t (*proxyRegister)(struct ncclProxyConnection*, struct ncclProxyState*, void* reqBuff, int reqSize, void* respBuff, int respSize, int* done);
};
struct ncclTransport { const char name[8]; struct ncclTransportComm send; };
extern "C" {
ncclResult_t ncclProxyConnect(struct ncclComm*, int transport, int send, int rank, struct ncclProxyConnector*);
ncclResult_t ncclProxyCallBlocking(struct ncclComm*, struct ncclProxyConnector*, int type, void*, int, void*, int);
int ncclCuMemEnable(void); int64_t ncclParamPassSm(void); int odd(int);
ncclResult_t ncclCudaMalloc(void** ptr, size_t size); ncclResult_t ncclCudaFree(void* ptr);
cudaError_t cudaStreamCreate(cudaStream_t*); cudaError_t cudaStreamDestroy(cudaStream_t);
cudaError_t cudaEventCreate(cudaEvent_t*); cudaError_t cudaEventDestroy(cudaEvent_t);
cudaError_t cudaIpcCloseMemHandle(void*); ncclResult_t helper(void* unknown);
}
template <typename T> ncclResult_t ncclCalloc(T** ptr, size_t n) { *ptr = (T*)calloc(n, sizeof(T)); return *ptr ? ncclSuccess : ncclInternalError; }
#define NCCLCHECK(call) do { ncclResult_t RES = call; if (RES != ncclSuccess) { return RES; } } while (0)
struct request { long size; };
struct answer { char handle[64]; };
struct big { char handle[160]; };
struct resources { cudaStream_t stream; cudaEvent_t events[4]; void* buffer; int made; };
struct other { void* buffer; long more; };
"""
TABLE = """
struct ncclTransport testTransport = { "TEST", { sendSetup, sendConnect, sendFree, proxySetup, proxyConnect, proxyFree, PROXYREGISTER } };
"""
SETUP = """
static ncclResult_t sendSetup(struct ncclComm* comm, struct ncclTopoGraph* graph, struct ncclPeerInfo* myInfo, struct ncclPeerInfo* peerInfo,
    struct ncclConnect* connectInfo, struct ncclConnector* send, int channelId, int connIndex) {
  struct request req; struct answer got;
  NCCLCHECK(ncclProxyConnect(comm, 0, 1, myInfo->rank, &send->proxyConn));
  NCCLCHECK(ncclProxyCallBlocking(comm, &send->proxyConn, ncclProxyMsgSetup, &req, sizeof(req), &got, sizeof(ANSWER)));
  return ncclSuccess;
}
static ncclResult_t sendConnect(struct ncclComm* comm, struct ncclConnect* connectInfo, int nranks, int rank, struct ncclConnector* send) {
  CALLER
  NCCLCHECK(ncclProxyCallBlocking(comm, &send->proxyConn, ncclProxyMsgConnect, 0, 0, 0, 0));
  return ncclSuccess;
}
static ncclResult_t sendFree(struct ncclConnector* send) { return ncclSuccess; }
static ncclResult_t proxySetup(struct ncclProxyConnection* connection, struct ncclProxyState* state, void* reqBuff, int reqSize, void* respBuff,
    int respSize, int* done) {
  if (reqSize != sizeof(struct request)) return ncclInternalError;
  if (respSize != sizeof(struct answer)) return ncclInternalError;
  struct resources* resources;
  NCCLCHECK(ncclCalloc(&resources, 1));
  connection->transportResources = resources;
  PROXYSETUP
  *done = 1;
  return ncclSuccess;
}
static ncclResult_t proxyConnect(struct ncclProxyConnection* connection, struct ncclProxyState* state, void* reqBuff, int reqSize, void* respBuff,
    int respSize, int* done) {
  struct resources* resources = (struct resources*)connection->transportResources;
  cudaStreamCreate(&resources->stream);
  for (int i = 0; i < 4; i++) cudaEventCreate(resources->events + i);
  PROXYCONNECT
  return ncclSuccess;
}
static ncclResult_t proxyFree(struct ncclProxyConnection* connection, struct ncclProxyState* state) {
  struct resources* resources = (struct resources*)connection->transportResources;
  PROXYFREE
  return ncclSuccess;
}
"""
DESTROY = "cudaStreamDestroy(resources->stream); for (int i = 0; i < 4; i++) cudaEventDestroy(resources->events[i]);"
FREE = f"if (resources) {{ {DESTROY} free(resources); }}"


def source(folder: Path, *more: str, **parts: str) -> Path:
    """A transport that is right, with some of its parts replaced, and more code before it."""
    words = {
        "PROXYSETUP": "",
        "PROXYCONNECT": "",
        "PROXYFREE": FREE,
        "PROXYREGISTER": "0",
        "ANSWER": "struct answer",
        "CALLER": "",
        **parts,
    }
    text = SETUP + TABLE
    for name, word in words.items():
        text = text.replace(name, word)
    path = folder / "transport.cc"
    path.write_text(HEAD + "".join(more) + text)
    return path
