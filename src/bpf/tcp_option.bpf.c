/*
 * The TCP option of SMC (RFC 7609, 4.1.1) on sockets of ordinary programs: fe 06 e2 d4 c3 d9 in SYN and SYN/ACK.
 *
 * User space puts a mark on a socket before it connects or listens; every other socket of the cgroup is left alone. A
 * mark belongs to its socket: it needs no removing, an accepted socket has a copy of its listener's, and what became of
 * the option is read from it. docs/option.md says which rules are kept here; `make option` builds the object.
 */
#include <linux/bpf.h>

#define __noinline __attribute__((noinline))
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif
#define SEC(name) __attribute__((section(name), used))
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name

static __u64 (*const get_socket_cookie)(void *) = (void *)BPF_FUNC_get_socket_cookie;
static __u64 (*const get_netns_cookie)(void *) = (void *)BPF_FUNC_get_netns_cookie;
static void *(*const sk_storage_get)(void *, void *, void *, __u64) = (void *)BPF_FUNC_sk_storage_get;
static void *(*const map_lookup_elem)(void *, const void *) = (void *)BPF_FUNC_map_lookup_elem;
static long (*const map_update_elem)(void *, const void *, const void *, __u64) = (void *)BPF_FUNC_map_update_elem;
static long (*const map_delete_elem)(void *, const void *) = (void *)BPF_FUNC_map_delete_elem;
static long (*const set_sockopt)(void *, int, int, void *, int) = (void *)BPF_FUNC_setsockopt;
static long (*const set_cb_flags)(void *, int) = (void *)BPF_FUNC_sock_ops_cb_flags_set;
static long (*const load_hdr_opt)(void *, void *, __u32, __u64) = (void *)BPF_FUNC_load_hdr_opt;
static long (*const store_hdr_opt)(void *, const void *, __u32, __u64) = (void *)BPF_FUNC_store_hdr_opt;
static long (*const reserve_hdr_opt)(void *, __u32, __u64) = (void *)BPF_FUNC_reserve_hdr_opt;

enum {
	SYN = 0x02,
	ACK = 0x10,
	SOL_TCP = 6,
	TCP_SAVE_SYN = 27,
	OPTION = 6,
	ROOM = 8, /* the option, and NOPs up to a multiple of four */
	ENOENT = 2,
	EEXIST = 17,
	ENOSPC = 28,

	KIND_MD5 = 19,
	KIND_AO = 29,
	KIND_MPTCP = 30,
	KIND_FAST_OPEN = 34,
	KIND_EXPERIMENT = 254,
};

#define FAST_OPEN_EXPERIMENT 0xfe04f989u

/* What user space reads, see `State` in marks.rs. */
enum state {
	WANTED = 1,    /* set by user space */
	TAKEN_UP = 2,  /* the SYN is on its way, or the listener listens */
	ANNOUNCED = 3, /* both SYN and SYN/ACK had it */
	SILENT = 4,    /* the peer's had none */
	NO_ROOM = 5,
	UNFIT = 6,     /* Fast Open, Multipath TCP, or a signature in the header */
	NO_SYN = 7,    /* what the SYN had is not known: it was answered with a SYN cookie */
};

/* Callbacks that a marked socket has switched on. */
#define WRITES BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG
#define STATES BPF_SOCK_OPS_STATE_CB_FLAG

struct mark {
	__u8 state;
	__u8 sent;   /* a SYN has left with the option */
	__u8 listens;
	__u8 others; /* callbacks that another program had switched on before */
};

struct port {
	__u64 netns;
	__u32 number;
	__u32 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct mark);
} marks SEC(".maps");

/*
 * How many marked listeners a port has. While a SYN/ACK is written its listener cannot be looked at, and callbacks may
 * be on because of another program.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct port);
	__type(value, __u32);
} listeners SEC(".maps");

/* Cookies of connections whose SYN/ACK had no room: their accepted sockets must know. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, __u8);
} crowded SEC(".maps");

static __always_inline struct mark *mark_of(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;

	return sk ? sk_storage_get(&marks, sk, 0, 0) : 0;
}

/* Is there an option that begins so? Only kind 254 has a length and a number besides. */
static __noinline int has(struct bpf_sock_ops *ctx, __u32 start, __u64 where)
{
	__u8 option[4] = {start >> 24, start >> 16, start >> 8, start};
	long length = load_hdr_opt(ctx, option, sizeof(option), where);

	return length > 0 || length == -ENOSPC; /* found, and longer than the buffer */
}

/* What must not be together with the option in one header. */
static __noinline int is_unfit(struct bpf_sock_ops *ctx, __u64 where)
{
	return has(ctx, KIND_MD5 << 24, where) || has(ctx, KIND_AO << 24, where) ||
	       has(ctx, KIND_MPTCP << 24, where) || has(ctx, KIND_FAST_OPEN << 24, where) ||
	       has(ctx, FAST_OPEN_EXPERIMENT, where);
}

/* The `enum state` that a header leads to: ANNOUNCED, SILENT, UNFIT or NO_SYN. */
static __noinline int read_header(struct bpf_sock_ops *ctx, __u64 where)
{
	__u8 option[ROOM] = {KIND_EXPERIMENT, OPTION, 0xe2, 0xd4, 0xc3, 0xd9};
	long length = load_hdr_opt(ctx, option, sizeof(option), where);

	if (length == -ENOENT)
		return NO_SYN;
	if (length != OPTION)
		return SILENT;
	return is_unfit(ctx, where) ? UNFIT : ANNOUNCED;
}

static __always_inline void watch(struct bpf_sock_ops *ctx, struct mark *mark, int callbacks)
{
	int before = ctx->bpf_sock_ops_cb_flags;

	mark->others = before & callbacks;
	mark->state = TAKEN_UP;
	set_cb_flags(ctx, before | callbacks);
}

/* Switches off what `watch` has switched on. */
static __always_inline void unwatch(struct bpf_sock_ops *ctx, struct mark *mark, int callbacks)
{
	set_cb_flags(ctx, ctx->bpf_sock_ops_cb_flags & ~(callbacks & ~mark->others));
}

static __always_inline struct port port_of(struct bpf_sock_ops *ctx)
{
	struct port port = {.netns = get_netns_cookie(ctx), .number = ctx->local_port};

	return port;
}

static __always_inline void connects(struct bpf_sock_ops *ctx)
{
	struct mark *mark = mark_of(ctx);

	if (!mark || mark->listens)
		return;
	mark->sent = 0;
	watch(ctx, mark, WRITES);
}

static __always_inline void listens(struct bpf_sock_ops *ctx)
{
	struct mark *mark = mark_of(ctx);
	struct port port = port_of(ctx);
	__u32 one = 1, *count;
	int on = 1;

	if (!mark || mark->listens)
		return;
	count = map_lookup_elem(&listeners, &port);
	if (count)
		__sync_fetch_and_add(count, 1);
	else if (map_update_elem(&listeners, &port, &one, BPF_ANY))
		return;
	mark->listens = 1;
	set_sockopt(ctx, SOL_TCP, TCP_SAVE_SYN, &on, sizeof(on));
	watch(ctx, mark, WRITES | STATES);
}

static __always_inline void changes_state(struct bpf_sock_ops *ctx)
{
	struct port port;
	struct mark *mark;
	__u32 *count;

	if (ctx->args[0] != BPF_TCP_LISTEN)
		return;
	mark = mark_of(ctx);
	if (!mark || !mark->listens)
		return;
	port = port_of(ctx);
	count = map_lookup_elem(&listeners, &port);
	if (count && __sync_fetch_and_add(count, -1) <= 1)
		map_delete_elem(&listeners, &port);
	mark->listens = 0;
	mark->state = WANTED;
	unwatch(ctx, mark, WRITES | STATES);
}

/* Does this SYN/ACK get the option, as far as the SYN and the listener decide? */
static __always_inline int answers(struct bpf_sock_ops *ctx)
{
	struct port port = port_of(ctx);
	__u64 cookie = get_socket_cookie(ctx);

	return map_lookup_elem(&listeners, &port) && read_header(ctx, BPF_LOAD_HDR_OPT_TCP_SYN) == ANNOUNCED &&
	       !map_lookup_elem(&crowded, &cookie);
}

static __always_inline void is_crowded(struct bpf_sock_ops *ctx)
{
	__u64 cookie = get_socket_cookie(ctx);
	__u8 yes = 1;

	map_update_elem(&crowded, &cookie, &yes, BPF_ANY);
}

static __always_inline void reserve(struct bpf_sock_ops *ctx)
{
	struct mark *mark;

	if (ctx->skb_tcp_flags & ACK) {
		if (ctx->args[0] != BPF_WRITE_HDR_TCP_SYNACK_COOKIE && answers(ctx) && reserve_hdr_opt(ctx, ROOM, 0))
			is_crowded(ctx);
		return;
	}
	mark = mark_of(ctx);
	if (mark && !mark->listens && reserve_hdr_opt(ctx, ROOM, 0))
		mark->state = NO_ROOM;
}

static __always_inline void write(struct bpf_sock_ops *ctx)
{
	__u8 option[ROOM] = {KIND_EXPERIMENT, OPTION, 0xe2, 0xd4, 0xc3, 0xd9};
	struct mark *mark;
	long failed;

	if (ctx->skb_tcp_flags & ACK) {
		if (ctx->args[0] == BPF_WRITE_HDR_TCP_SYNACK_COOKIE || !answers(ctx))
			return;
		failed = store_hdr_opt(ctx, option, OPTION, 0);
		if (failed && failed != -EEXIST)
			is_crowded(ctx);
		return;
	}
	mark = mark_of(ctx);
	if (!mark || mark->listens || mark->state == NO_ROOM)
		return;
	if (is_unfit(ctx, 0)) {
		mark->state = UNFIT;
		return;
	}
	failed = store_hdr_opt(ctx, option, OPTION, 0);
	if (failed && failed != -EEXIST)
		mark->state = NO_ROOM;
	else
		mark->sent = 1;
}

static __always_inline void is_connected(struct bpf_sock_ops *ctx)
{
	struct mark *mark = mark_of(ctx);

	if (!mark || mark->listens)
		return;
	/* Whatever a later SYN was like: who answers with the option has seen one with it. */
	if (mark->sent)
		mark->state = read_header(ctx, 0);
	unwatch(ctx, mark, WRITES);
}

static __always_inline void is_accepted(struct bpf_sock_ops *ctx)
{
	struct mark *mark = mark_of(ctx);
	__u64 cookie = get_socket_cookie(ctx);

	if (!mark)
		return;
	if (!mark->listens) { /* two that connect to one another at once */
		mark->state = SILENT;
		unwatch(ctx, mark, WRITES);
		return;
	}
	mark->listens = 0;
	mark->state = read_header(ctx, BPF_LOAD_HDR_OPT_TCP_SYN);
	if (mark->state == ANNOUNCED) {
		if (ctx->skb_tcp_flags & SYN) /* Fast Open: the SYN/ACK is still to come, and will have none */
			mark->state = UNFIT;
		else if (!map_delete_elem(&crowded, &cookie))
			mark->state = NO_ROOM;
	}
	unwatch(ctx, mark, WRITES | STATES);
}

SEC("sockops") int smcfast_option(struct bpf_sock_ops *ctx)
{
	switch (ctx->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		connects(ctx);
		break;
	case BPF_SOCK_OPS_TCP_LISTEN_CB:
		listens(ctx);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		changes_state(ctx);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		if (ctx->skb_tcp_flags & SYN)
			reserve(ctx);
		break;
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
		if (ctx->skb_tcp_flags & SYN)
			write(ctx);
		break;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		is_connected(ctx);
		break;
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		is_accepted(ctx);
		break;
	}
	return 1;
}

char _license[] SEC("license") = "Dual MIT/GPL";
