#include "internal.h"
struct ls_rpc { int x; };
#define N(T,f,g) struct T*f(void){return NULL;} void g(struct T*x){(void)x;}
N(ls_rpc,ls_rpc_new,ls_rpc_free) N(ls_fds,ls_fds_new,ls_fds_free) N(ls_comms,ls_comms_new,ls_comms_free) N(ls_book,ls_book_new,ls_book_free)
#define R(f) void f(struct ls_scan*s,const struct ls_record*r,const struct ls_match*m){(void)s;(void)r;(void)m;}
R(ls_rpc_record) R(ls_fds_record) R(ls_comms_record) R(ls_book_record)
#define F(f) void f(struct ls_scan*s){(void)s;}
F(ls_rpc_round) F(ls_rpc_finish) F(ls_fds_finish) F(ls_comms_finish) F(ls_book_finish)
#define T(t,f) const t*f(const ls_scan*s,size_t*n){(void)s;*n=0;return NULL;}
T(ls_call,ls_calls) T(ls_fd,ls_fds) T(ls_instance,ls_instances) T(ls_group,ls_groups) T(ls_divergent,ls_divergents) T(uint64_t,ls_colls) T(ls_pair,ls_pairs) T(ls_ref,ls_pair_refs) T(ls_entry,ls_ledger) T(ls_ledger_total,ls_ledger_totals) T(ls_service,ls_services) T(ls_tally,ls_tallies)
