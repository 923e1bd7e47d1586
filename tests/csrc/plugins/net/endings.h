/* Scenarios of the driver in which one end goes before the other. */
#ifndef ENDINGS_H
#define ENDINGS_H

#include "driver.h"

/* Nothing that is open outlives the peer: one dies with messages on the way. */
static void peer_dies(bool sender, bool sender_dies)
{
    struct link l = link_up(sender);
    static unsigned char buffer[LARGEST];
    void *request[4];
    if (sender == sender_dies) {
        if (sender) OK(send_one(l.comm, buffer, 100, 0, &request[0]));
        if (!sender) OK(receive_one(l.comm, buffer, LARGEST, 0, &request[0]));
        if (!sender) OK(finish(request[0], NULL));
        if (sender) OK(finish(request[0], NULL));
        meet();
        if (sender_dies) raise(SIGKILL);
        _exit(0); /* the parent cannot be killed: the test waits for it */
    }
    int good = 0;
    if (sender) {
        OK(send_one(l.comm, buffer, 100, 0, &request[0]));
        OK(finish(request[0], NULL));
        meet();
        ncclResult_t result = ncclSuccess;
        for (double until = now() + DEADLINE; result == ncclSuccess;) {
            CHECK(now() < until, "the death of the receiver is not seen");
            result = t_isend(l.comm, buffer, LARGEST, 0, NULL, &request[1]);
            if (result == ncclSuccess && request[1]) result = finish(request[1], NULL);
        }
        CHECK(result == ncclRemoteError, "%d", result);
    } else {
        for (int i = 0; i < 4; i++) OK(receive_one(l.comm, buffer, LARGEST, 0, &request[i]));
        meet();
        for (int i = 0; i < 4; i++) {
            ncclResult_t result = finish(request[i], NULL);
            CHECK(result == ncclSuccess || result == ncclRemoteError, "%d", result);
            good += result == ncclSuccess;
        }
        CHECK(good == 1, "%d messages came of one that was sent", good);
        void *data = buffer;
        size_t n = 1;
        int tag = 0;
        CHECK(t_irecv(l.comm, 1, &data, &n, &tag, &(void *){NULL}, &request[0]) == ncclRemoteError);
    }
    link_down(&l, sender);
}

static void sender_dies(bool sender)
{
    peer_dies(sender, true);
}

static void receiver_dies(bool sender)
{
    peer_dies(sender, false);
}

/* The sender is done and closes; what it sent comes whole, though the receiver reads it later. */
static void closes_early(bool sender)
{
    struct link l = link_up(sender);
    enum { N = 8 };
    static unsigned char buffer[N][50000];
    void *request[N + 2];
    if (sender) {
        meet();
        for (unsigned i = 0; i < N; i++) {
            fill(buffer[i], sizeof buffer[i], i);
            OK(send_one(l.comm, buffer[i], sizeof buffer[i], 0, &request[i]));
        }
        for (unsigned i = 0; i < N; i++) OK(finish(request[i], NULL));
        link_down(&l, sender);
        meet();
    } else {
        /* A closed listener does not end what it accepted. */
        OK(t_close_listen(l.listener));
        l.listener = NULL;
        /* Two more than come: these end when the sender closes. */
        for (int i = 0; i < N + 2; i++)
            OK(receive_one(l.comm, i < N ? buffer[i] : buffer[0], sizeof buffer[0], 0, &request[i]));
        meet();
        for (unsigned i = 1; i < N; i++) OK(finish(request[i], NULL));
        OK(finish(request[0], NULL));
        for (unsigned i = 0; i < N; i++) compare(buffer[i], sizeof buffer[i], i);
        meet();
        CHECK(finish(request[N + 1], NULL) == ncclRemoteError);
        CHECK(finish(request[N], NULL) == ncclRemoteError);
        link_down(&l, sender);
    }
}

/* The receiver closes with receives posted and a message half way. */
static void receiver_closes(bool sender)
{
    struct link l = link_up(sender);
    static unsigned char buffer[LARGEST];
    void *request;
    if (sender) {
        OK(send_one(l.comm, buffer, LARGEST, 0, &request));
        meet();
        ncclResult_t result = ncclSuccess;
        for (double until = now() + DEADLINE; result == ncclSuccess;) {
            CHECK(now() < until, "the close of the receiver is not seen");
            int done = 0;
            if (request) result = t_test(request, &done, NULL);
            if (done) request = NULL;
            if (result == ncclSuccess && !request) result = t_isend(l.comm, buffer, LARGEST, 0, NULL, &request);
        }
        CHECK(result == ncclRemoteError, "%d", result);
        link_down(&l, sender);
    } else {
        OK(receive_one(l.comm, buffer, LARGEST, 0, &request));
        OK(receive_one(l.comm, buffer, LARGEST, 0, &request));
        meet();
        link_down(&l, sender);
    }
}

#endif
