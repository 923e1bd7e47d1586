/* Two processes with a virtual device each: merged LIB VERSION SENDER RECEIVER, where these are how many devices each
 * of them merges; 0: it takes the physical device 0. */
#define _GNU_SOURCE
#include "driver.h"

enum { MESSAGES = 60, IN_FLIGHT = 24, ROOM = 300000 };

static ncclResult_t make(int *dev, int n, const int *devs)
{
    ncclNetVDeviceProps_v12_t p12 = {.ndevs = n};
    ncclNetVDeviceProps_v11_t p11 = {.ndevs = n};
    for (int i = 0; i < n && i < 8; i++) p12.devs[i] = devs[i];
    for (int i = 0; i < n && i < 4; i++) p11.devs[i] = devs[i];
    return version == 12   ? T(12)->makeVDevice(dev, &p12)
           : version == 11 ? T(11)->makeVDevice(dev, &p11)
           : version == 10 ? T(10)->makeVDevice(dev, (ncclNetVDeviceProps_v10_t *)&p11)
                           : T(9)->makeVDevice(dev, (ncclNetVDeviceProps_v9_t *)&p11);
}

static int merged(int n, int physical)
{
    static const int each[] = {0, 1, 2, 3, 4, 5, 6, 7}, twice[] = {0, 0}, beyond[] = {0, 99};
    int dev = -1, count;
    ncclNetProperties_v12_t one, all;
    CHECK(make(&dev, 0, each) == ncclInvalidUsage);
    CHECK(make(&dev, 2, twice) == ncclInvalidUsage);
    CHECK(make(&dev, 2, beyond) == ncclInvalidUsage);
    OK(t_devices(&count));
    CHECK(count == physical, "a refused device counts");
    if (n == 0) return 0;
    OK(make(&dev, n, each));
    CHECK(dev == physical);
    OK(t_devices(&count));
    CHECK(count == physical + 1);
    int nested[] = {0, dev};
    CHECK(make(&count, 2, nested) == ncclInvalidUsage, "virtual devices are not merged again");
    OK(t_properties(0, &one));
    OK(t_properties(dev, &all));
    CHECK(all.speed == n * one.speed && all.vProps.ndevs == n && all.maxRecvs == 1 && all.name && all.name[0]);
    CHECK(all.ptrSupport == NCCL_PTR_HOST);
    return dev;
}

static unsigned char buffer[MESSAGES][ROOM + 16];

static size_t size_of(int i)
{
    return i % 7 == 0 ? 0 : (size_t)(i * 4999) % ROOM;
}

static void messages(bool sender, void *comm)
{
    void *request[MESSAGES], *mhandle = NULL;
    int posted = 0, done = 0, sizes;
    double until = now() + DEADLINE;
    OK(t_reg(comm, buffer, sizeof buffer, NCCL_PTR_HOST, &mhandle));
    for (int i = 0; i < MESSAGES; i++)
        if (sender) fill(buffer[i], size_of(i), (unsigned)i);
    while (done < MESSAGES) {
        if (posted < MESSAGES && posted < done + IN_FLIGHT) {
            void *data = buffer[posted];
            size_t n = ROOM;
            int tag = 5;
            request[posted] = NULL;
            if (sender)
                OK(t_isend(comm, data, size_of(posted), tag, mhandle, &request[posted]));
            else
                OK(t_irecv(comm, 1, &data, &n, &tag, &mhandle, &request[posted]));
            if (request[posted]) posted++;
        }
        int yes = 0;
        if (done < posted) OK(t_test(request[done], &yes, &sizes));
        if (yes && !sender) {
            CHECK((size_t)sizes == size_of(done), "message %d has %d bytes", done, sizes);
            compare(buffer[done], size_of(done), (unsigned)done);
        }
        done += yes;
        CHECK(now() < until, "%d of %d are done", done, posted);
        if (!yes) sched_yield();
    }
    OK(t_dereg(comm, mhandle));
}

static void rank(bool sender, int n)
{
    int physical;
    char handle[128];
    void *listener = NULL, *comm;
    OK(t_init(logger, NULL));
    OK(t_devices(&physical));
    int dev = merged(n, physical);
    for (int round = 0; round < 2; round++) {
        if (sender) {
            hear(handle, sizeof handle);
            comm = connecting(dev, handle);
        } else {
            memset(handle, 0x5a, sizeof handle);
            OK(t_listen(dev, handle, &listener));
            tell(handle, sizeof handle);
            comm = accepting(listener);
        }
        messages(sender, comm);
        /* One more receive: it ends when the peer, which goes first in the second round, is gone. */
        void *request = NULL, *data = buffer, *mhandle = NULL;
        size_t size = ROOM;
        if (!sender) OK(t_irecv(comm, 1, &data, &size, &(int){0}, &mhandle, &request));
        meet();
        if (round == 1 && !sender) {
            meet();
            CHECK(request && finish(request, NULL) == ncclRemoteError);
        }
        OK(sender ? t_close_send(comm) : t_close_recv(comm));
        if (round == 1 && sender) meet();
        if (listener) OK(t_close_listen(listener));
        listener = NULL;
    }
    OK(t_finalize());
}

int main(int argc, char **argv)
{
    int pair[2];
    char symbol[32];
    if (argc != 5 || socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return 2;
    child = fork();
    bool sender = child == 0;
    link_fd = pair[sender];
    close(pair[!sender]);
    if (sender) who = "sender";
    setenv("PSM_RANK", sender ? "0" : "1", 1);
    version = atoi(argv[2]);
    void *library = dlopen(argv[1], RTLD_NOW);
    snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", version);
    CHECK(library && (table = dlsym(library, symbol)));
    rank(sender, atoi(argv[sender ? 3 : 4]));
    if (sender) return 0;
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return status != 0;
}
