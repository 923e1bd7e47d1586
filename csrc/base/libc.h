/* What glibc has since 2.32 or 2.33, for binaries that run with 2.28. */
#ifndef PSM_LIBC_H
#define PSM_LIBC_H

#include <errno.h>
#include <locale.h>
#include <malloc.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>

/* "ENOENT", or NULL if no error has this number. */
static inline const char *psm_errno_name(int number)
{
#define PSM_ERRNO(name)                                                                                                \
    case name:                                                                                                         \
        return #name;
    /* clang-format off */
    switch (number) {
        PSM_ERRNO(EPERM)
        PSM_ERRNO(ENOENT)
        PSM_ERRNO(ESRCH)
        PSM_ERRNO(EINTR)
        PSM_ERRNO(EIO)
        PSM_ERRNO(ENXIO)
        PSM_ERRNO(E2BIG)
        PSM_ERRNO(ENOEXEC)
        PSM_ERRNO(EBADF)
        PSM_ERRNO(ECHILD)
        PSM_ERRNO(EAGAIN)
        PSM_ERRNO(ENOMEM)
        PSM_ERRNO(EACCES)
        PSM_ERRNO(EFAULT)
        PSM_ERRNO(ENOTBLK)
        PSM_ERRNO(EBUSY)
        PSM_ERRNO(EEXIST)
        PSM_ERRNO(EXDEV)
        PSM_ERRNO(ENODEV)
        PSM_ERRNO(ENOTDIR)
        PSM_ERRNO(EISDIR)
        PSM_ERRNO(EINVAL)
        PSM_ERRNO(ENFILE)
        PSM_ERRNO(EMFILE)
        PSM_ERRNO(ENOTTY)
        PSM_ERRNO(ETXTBSY)
        PSM_ERRNO(EFBIG)
        PSM_ERRNO(ENOSPC)
        PSM_ERRNO(ESPIPE)
        PSM_ERRNO(EROFS)
        PSM_ERRNO(EMLINK)
        PSM_ERRNO(EPIPE)
        PSM_ERRNO(EDOM)
        PSM_ERRNO(ERANGE)
        PSM_ERRNO(EDEADLK)
        PSM_ERRNO(ENAMETOOLONG)
        PSM_ERRNO(ENOLCK)
        PSM_ERRNO(ENOSYS)
        PSM_ERRNO(ENOTEMPTY)
        PSM_ERRNO(ELOOP)
        PSM_ERRNO(ENOMSG)
        PSM_ERRNO(EIDRM)
        PSM_ERRNO(ECHRNG)
        PSM_ERRNO(EL2NSYNC)
        PSM_ERRNO(EL3HLT)
        PSM_ERRNO(EL3RST)
        PSM_ERRNO(ELNRNG)
        PSM_ERRNO(EUNATCH)
        PSM_ERRNO(ENOCSI)
        PSM_ERRNO(EL2HLT)
        PSM_ERRNO(EBADE)
        PSM_ERRNO(EBADR)
        PSM_ERRNO(EXFULL)
        PSM_ERRNO(ENOANO)
        PSM_ERRNO(EBADRQC)
        PSM_ERRNO(EBADSLT)
        PSM_ERRNO(EBFONT)
        PSM_ERRNO(ENOSTR)
        PSM_ERRNO(ENODATA)
        PSM_ERRNO(ETIME)
        PSM_ERRNO(ENOSR)
        PSM_ERRNO(ENONET)
        PSM_ERRNO(ENOPKG)
        PSM_ERRNO(EREMOTE)
        PSM_ERRNO(ENOLINK)
        PSM_ERRNO(EADV)
        PSM_ERRNO(ESRMNT)
        PSM_ERRNO(ECOMM)
        PSM_ERRNO(EPROTO)
        PSM_ERRNO(EMULTIHOP)
        PSM_ERRNO(EDOTDOT)
        PSM_ERRNO(EBADMSG)
        PSM_ERRNO(EOVERFLOW)
        PSM_ERRNO(ENOTUNIQ)
        PSM_ERRNO(EBADFD)
        PSM_ERRNO(EREMCHG)
        PSM_ERRNO(ELIBACC)
        PSM_ERRNO(ELIBBAD)
        PSM_ERRNO(ELIBSCN)
        PSM_ERRNO(ELIBMAX)
        PSM_ERRNO(ELIBEXEC)
        PSM_ERRNO(EILSEQ)
        PSM_ERRNO(ERESTART)
        PSM_ERRNO(ESTRPIPE)
        PSM_ERRNO(EUSERS)
        PSM_ERRNO(ENOTSOCK)
        PSM_ERRNO(EDESTADDRREQ)
        PSM_ERRNO(EMSGSIZE)
        PSM_ERRNO(EPROTOTYPE)
        PSM_ERRNO(ENOPROTOOPT)
        PSM_ERRNO(EPROTONOSUPPORT)
        PSM_ERRNO(ESOCKTNOSUPPORT)
        PSM_ERRNO(EOPNOTSUPP)
        PSM_ERRNO(EPFNOSUPPORT)
        PSM_ERRNO(EAFNOSUPPORT)
        PSM_ERRNO(EADDRINUSE)
        PSM_ERRNO(EADDRNOTAVAIL)
        PSM_ERRNO(ENETDOWN)
        PSM_ERRNO(ENETUNREACH)
        PSM_ERRNO(ENETRESET)
        PSM_ERRNO(ECONNABORTED)
        PSM_ERRNO(ECONNRESET)
        PSM_ERRNO(ENOBUFS)
        PSM_ERRNO(EISCONN)
        PSM_ERRNO(ENOTCONN)
        PSM_ERRNO(ESHUTDOWN)
        PSM_ERRNO(ETOOMANYREFS)
        PSM_ERRNO(ETIMEDOUT)
        PSM_ERRNO(ECONNREFUSED)
        PSM_ERRNO(EHOSTDOWN)
        PSM_ERRNO(EHOSTUNREACH)
        PSM_ERRNO(EALREADY)
        PSM_ERRNO(EINPROGRESS)
        PSM_ERRNO(ESTALE)
        PSM_ERRNO(EUCLEAN)
        PSM_ERRNO(ENOTNAM)
        PSM_ERRNO(ENAVAIL)
        PSM_ERRNO(EISNAM)
        PSM_ERRNO(EREMOTEIO)
        PSM_ERRNO(EDQUOT)
        PSM_ERRNO(ENOMEDIUM)
        PSM_ERRNO(EMEDIUMTYPE)
        PSM_ERRNO(ECANCELED)
        PSM_ERRNO(ENOKEY)
        PSM_ERRNO(EKEYEXPIRED)
        PSM_ERRNO(EKEYREVOKED)
        PSM_ERRNO(EKEYREJECTED)
        PSM_ERRNO(EOWNERDEAD)
        PSM_ERRNO(ENOTRECOVERABLE)
        PSM_ERRNO(ERFKILL)
        PSM_ERRNO(EHWPOISON)
    default:
        return NULL;
    }
    /* clang-format on */
#undef PSM_ERRNO
}

/* "No such file or directory": in English, in every thread, and NULL if no error has this number. */
static inline const char *psm_errno_text(int number)
{
    if (!psm_errno_name(number)) return NULL;
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0); /* always there: nothing is allocated */
    return plain ? strerror_l(number, plain) : NULL;
}

/* "SEGV" of a signal that a crash raises, "?" of another one. A signal handler may call it. */
static inline const char *psm_signal_name(int number)
{
    switch (number) {
    case SIGABRT:
        return "ABRT";
    case SIGBUS:
        return "BUS";
    case SIGFPE:
        return "FPE";
    case SIGILL:
        return "ILL";
    case SIGSEGV:
        return "SEGV";
    case SIGSYS:
        return "SYS";
    case SIGTRAP:
        return "TRAP";
    default:
        return "?";
    }
}

/* Bytes that the program has allocated: in the heap, or in all. Before 2.33 glibc counts modulo 4 GiB. */
static inline size_t psm_heap_in_use(int mapped)
{
#if __GLIBC_PREREQ(2, 33)
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + (mapped ? info.hblkhd : 0);
#else
    struct mallinfo info = mallinfo();
    return (size_t)(unsigned)info.uordblks + (mapped ? (unsigned)info.hblkhd : 0);
#endif
}

#endif
