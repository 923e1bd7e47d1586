/* Sockets of the proxy: abstract AF_UNIX names that nobody can guess, and the check of the process at the other end. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "libc.h"
#include "proxy/proxy.h"
#include "psm_lib_messages.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

void psm_socket_address(struct sockaddr_un *address, socklen_t *size, const char *name)
{
    size_t n = strnlen(name, 23);
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    memcpy(address->sun_path + 1, name, n); /* the NUL before it makes it abstract */
    *size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

psm_status psm_socket_listen(int type, int rank, char name[24], int *out)
{
    struct sockaddr_un address;
    socklen_t size;
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        psm_msg_uds_create_failed(psm_errno_text(errno), errno);
        return psm_fail_errno(errno, "init", rank, -1, "cannot make a socket for the proxy");
    }
    for (int i = 0; i < 8; i++) {
        snprintf(name, 24, "psm-%016llx", (unsigned long long)psm_random64());
        psm_socket_address(&address, &size, name);
        if (bind(fd, (struct sockaddr *)&address, size) == 0) {
            *out = fd;
            return PSM_OK;
        }
        if (errno != EADDRINUSE) break;
    }
    int number = errno;
    psm_msg_uds_bind_failed(name, psm_errno_text(number), number);
    close(fd);
    return psm_fail_errno(number, "init", rank, -1, "cannot bind the proxy's socket to @%s", name);
}

psm_status psm_socket_check_user(int fd, int rank, int peer, struct ucred *user)
{
    socklen_t size = sizeof *user;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, user, &size) != 0)
        return psm_fail_errno(errno, "init", rank, peer,
                              "cannot determine the process at the other end of a proxy's socket");
    if (user->uid != geteuid())
        return psm_fail(PSM_ERR_DENIED, "init", rank, peer, 0,
                        "process %d at the other end runs as uid %u, this process as uid %u: run all ranks as one user",
                        (int)user->pid, user->uid, geteuid());
    return PSM_OK;
}

int psm_socket_pidfd(int fd, uint32_t pid)
{
    int found = -1;
    socklen_t size = sizeof found;
    /* Set by the kernel since 6.5: no other process can have reused the pid meanwhile. */
    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &found, &size) == 0) return found;
    return pid ? (int)syscall(SYS_pidfd_open, (pid_t)pid, 0) : -1;
}

/* The C library's send and recv are cancellation points, which costs an atomic exchange before and after the call.
 * These calls never block and need none. */
static ssize_t send_now(int fd, const void *bytes, size_t size)
{
    return syscall(SYS_sendto, fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT, NULL, 0);
}
static ssize_t recv_now(int fd, void *bytes, size_t capacity)
{
    /* MSG_TRUNC: returns the true size, so that a message that is too long is rejected with it */
    return syscall(SYS_recvfrom, fd, bytes, capacity, MSG_DONTWAIT | MSG_TRUNC, NULL, NULL);
}

psm_status psm_socket_send(int fd, const void *bytes, size_t size, int *number)
{
    ssize_t n;
    do n = send_now(fd, bytes, size);
    while (n < 0 && errno == EINTR);
    if (n == (ssize_t)size) return PSM_OK;
    *number = n < 0 ? errno : EMSGSIZE;
    if (*number == EAGAIN || *number == ENOBUFS) return PSM_IN_PROGRESS;
    return PSM_ERR_PEER_CLOSED;
}

psm_status psm_socket_recv(int fd, void *bytes, size_t capacity, size_t *size, int *number)
{
    ssize_t n;
    bool again = true;
    do {
        n = recv_now(fd, bytes, capacity);
        /* The other end closed before it had read everything: reported once, before its last message. */
        if (n < 0 && errno == ECONNRESET && again) {
            again = false;
            errno = EINTR;
        }
    } while (n < 0 && errno == EINTR);
    *number = n < 0 ? errno : 0;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return PSM_IN_PROGRESS;
    if (n <= 0) return PSM_ERR_PEER_CLOSED;
    *size = (size_t)n;
    return PSM_OK;
}

void psm_socket_bye(int fd, psm_status status, bool refused, const char *text)
{
    struct psm_wire_bye bye = {.status = status, .refused = refused};
    int number;
    psm_wire_begin(&bye.head, PSM_WIRE_BYE, sizeof bye);
    snprintf(bye.text, sizeof bye.text, "%s", text ? text : "");
    psm_socket_send(fd, &bye, sizeof bye, &number);
    shutdown(fd, SHUT_WR);
}

void psm_hello_fill(struct psm_wire_hello *hello, int rank, int nranks, const char *service)
{
    const struct psm_proc *self = psm_proc_self();
    *hello = (struct psm_wire_hello){.rank = rank,
                                     .nranks = nranks,
                                     .pid = (uint32_t)self->pid,
                                     .tag = self->tag,
                                     .start_time = self->start_time,
                                     .pid_ns = self->pid_ns};
    snprintf(hello->service, sizeof hello->service, "%s", service);
    psm_wire_begin(&hello->head, PSM_WIRE_HELLO, sizeof *hello);
}
