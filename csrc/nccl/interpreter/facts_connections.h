/* The numbers as constants, and what is the same of connections in the releases whose facts are written down. Without
 * an include guard: facts_check.cc includes it into a namespace. */
#define PSM_FACT_CONSTANT(name, value) name = value,
enum { PSM_FACT_NUMBERS(PSM_FACT_CONSTANT) };
#undef PSM_FACT_CONSTANT

struct ncclConnFifo {
    int mode, offset;
    ssize_t size;
    void *ptr;
};
struct ncclConnInfo {
    char *buffs[3];
    void *mhandles[3];
    uint64_t *tail, *head;
    int flags, shared, stepSize;
    void **ptrExchange;
    uint64_t *redOpArgExchange;
    ncclConnFifo *connFifo;
    uint64_t step, llLastCleaning;
    struct {
        int netDeviceType, others[7];
    } netDeviceHandle;
};
struct ncclDevChannelPeer {
    ncclConnInfo send[2], recv[2];
};
struct ncclRing {
    int prev, next, *userRanks, index;
};
struct ncclTree {
    int depth, up, down[3];
};
