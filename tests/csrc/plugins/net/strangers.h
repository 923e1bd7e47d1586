/* Scenarios of the driver in which others than the peer come to the listener. */
#ifndef STRANGERS_H
#define STRANGERS_H

#include <arpa/inet.h>
#include <netinet/in.h>

#include "driver.h"

/* A socket that is connected to the listener of a handle. */
static int knock(const char *handle)
{
    struct sockaddr_in to = {.sin_family = AF_INET};
    memcpy(&to.sin_port, handle + 8, 2);
    memcpy(&to.sin_addr, handle + 16, 4);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(fd, (struct sockaddr *)&to, sizeof to) == 0, "%s", strerror(errno));
    return fd;
}

/* The sender, whose message comes through in spite of the others. */
static void greet(void)
{
    char handle[128];
    hear(handle, sizeof handle);
    void *comm = connecting(0, handle), *request;
    OK(send_one(comm, "hi", 2, 0, &request));
    OK(finish(request, NULL));
    meet();
    OK(t_close_send(comm));
}

/* Somebody else comes first: they are turned away, and the peer is let in. */
static void stranger(bool sender)
{
    char handle[128];
    if (sender) {
        greet();
        return;
    }
    void *listener = listening(0, handle), *comm = NULL, *request;
    int fd[4];
    for (int i = 0; i < 4; i++) {
        char noise[100];
        memset(noise, 'x', sizeof noise);
        fd[i] = knock(handle);
        if (i == 0) CHECK(write(fd[i], noise, sizeof noise) == sizeof noise);
        if (i == 1) close(fd[i]); /* without a word */
        struct {
            uint32_t magic;
            uint16_t version, size;
            char rest[56];
        } hello = {0x4c4e5350, 1, 64, "not the secret"};
        if (i == 2) CHECK(write(fd[i], &hello, sizeof hello) == sizeof hello);
        /* the fourth says nothing and stays */
    }
    if (version > 4) OK(t_accept(listener, &comm));
    CHECK(!comm);
    tell(handle, sizeof handle);
    comm = accepting(listener);
    char in[8];
    OK(receive_one(comm, in, sizeof in, 0, &request));
    OK(finish(request, NULL));
    CHECK(memcmp(in, "hi", 2) == 0);
    meet();
    OK(t_close_recv(comm));
    OK(t_close_listen(listener));
    char c;
    CHECK(read(fd[0], &c, 1) <= 0 && read(fd[2], &c, 1) <= 0, "a stranger is let in");
    close(fd[0]);
    close(fd[2]);
    close(fd[3]);
}

/* More connections than a listener has places for say nothing and stay; a peer still gets through. */
static void crowd(bool sender)
{
    enum { IDLE = 200 };
    char handle[128], in[8];
    int fd[IDLE];
    void *request;
    if (sender) {
        greet();
        return;
    }
    void *listener = listening(0, handle), *comm = NULL;
    for (int i = 0; i < IDLE; i++) fd[i] = knock(handle);
    OK(t_accept(listener, &comm));
    CHECK(!comm);
    tell(handle, sizeof handle);
    comm = accepting(listener);
    OK(receive_one(comm, in, sizeof in, 0, &request));
    OK(finish(request, NULL));
    meet();
    OK(t_close_recv(comm));
    OK(t_close_listen(listener));
    for (int i = 0; i < IDLE; i++) close(fd[i]);
}

/* Many come, one after the other, and go without a word. */
static void knocks(bool sender)
{
    char handle[128];
    if (sender) return;
    void *listener = listening(0, handle), *comm = NULL;
    for (int i = 0; i < 1000; i++) {
        close(knock(handle));
        OK(t_accept(listener, &comm));
        CHECK(!comm);
    }
    OK(t_close_listen(listener));
}

#endif
