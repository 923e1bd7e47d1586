/* What another user sent is dropped, and its connections are closed, without ever waiting for what came with them.
 *
 * A descriptor that nobody receives is released by the thread that drops the message, when it returns from the kernel;
 * also where it did not ask for descriptors. The release of the last reference may wait as long as its sender likes: a
 * TCP socket with SO_LINGER and unsent data waits for its other end. A thread cannot be taken out of that wait without
 * a signal handler, which a library does not install. So a process that shares this one's memory and descriptors makes
 * the one system call, and is killed when it does not come back: a fatal signal ends the wait. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/internal.h"

/* glibc's clone by its other name: ThreadSanitizer takes clone for a fork, and has the new process read its own words
 * from the stack of a thread that has gone on. */
int __clone(int (*run)(void *), void *stack, int flags, void *argument, ...);

enum { STACK = 64 << 10, UNTOUCHED = -1 };
#define PATIENCE_NS UINT64_C(2000000)    /* from the moment that the message or the descriptor is gone */
#define GIVE_UP_NS  UINT64_C(1000000000) /* until the process runs at all, and until it is dead */

struct chore {
    int fd;
    bool datagram;
    struct msghdr message; /* the kernel writes msg_flags once the datagram has left the queue */
    struct iovec part;
    char byte;
    struct stat before;
    _Alignas(16) char stack[STACK];
};

/* It has the thread-local memory of the thread that waits for it: no function that uses any, and no instrumentation. */
__attribute__((no_sanitize("address", "thread", "undefined"))) static int do_chore(void *argument)
{
    struct chore *c = argument;
    syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (c->datagram)
        syscall(SYS_recvmsg, c->fd, &c->message, MSG_DONTWAIT);
    else
        syscall(SYS_close, c->fd);
    syscall(SYS_exit, 0);
    return 0;
}

/* Whether the datagram or the descriptor is gone, and what came with it is all that keeps the process. */
static bool is_gone(const struct chore *c)
{
    struct stat now;
    if (c->datagram) return __atomic_load_n(&c->message.msg_flags, __ATOMIC_ACQUIRE) != UNTOUCHED;
    /* Another thread may have got the number since. */
    return fstat(c->fd, &now) != 0 || now.st_ino != c->before.st_ino || now.st_dev != c->before.st_dev;
}

/* False: it cannot be killed. Not errno: the process writes to it, too. */
static bool await_end(pid_t pid, const struct chore *c)
{
    uint64_t begun = psm_clock_ns(), gone = 0, killed = 0;
    struct timespec moment = {0, 20000};
    for (;;) {
        int status;
        if (wait4(pid, &status, __WCLONE | WNOHANG, NULL) != 0) return true;
        uint64_t now = psm_clock_ns();
        if (!gone && is_gone(c)) gone = now;
        if (!killed && ((gone && now - gone > PATIENCE_NS) || now - begun > GIVE_UP_NS)) {
            kill(pid, SIGKILL);
            killed = now;
        }
        if (killed && now - killed > GIVE_UP_NS) return false;
        nanosleep(&moment, NULL);
        if (moment.tv_nsec < 500000) moment.tv_nsec *= 2;
    }
}

static void do_apart(int fd, bool datagram)
{
    int saved = errno;
    struct chore *c = mmap(NULL, sizeof *c, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pid_t pid = -1;
    if (c != MAP_FAILED) {
        c->fd = fd;
        c->datagram = datagram;
        c->part = (struct iovec){&c->byte, 1};
        c->message = (struct msghdr){.msg_iov = &c->part, .msg_iovlen = 1, .msg_flags = UNTOUCHED};
        if (!datagram) fstat(fd, &c->before);
        /* No signal at its end: the application does not see it, and does not reap it. */
        pid = __clone(do_chore, c->stack + STACK, CLONE_VM | CLONE_FILES | CLONE_UNTRACED, c);
    }
    if (pid < 0) { /* no process is left on this machine, or a sandbox forbids it */
        char byte;
        if (datagram)
            recv(fd, &byte, 1, MSG_DONTWAIT);
        else
            close(fd);
    }
    /* One that cannot be killed keeps its memory. */
    if (c != MAP_FAILED && (pid < 0 || await_end(pid, c))) munmap(c, sizeof *c);
    errno = saved;
}

void psm_stranger_drop(int socket)
{
    do_apart(socket, true);
}

void psm_stranger_close(int fd)
{
    do_apart(fd, false);
}
