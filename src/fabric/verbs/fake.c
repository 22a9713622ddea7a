/* A libibverbs without devices behind it: it has the names and versions of the real one, counts what is alive, and writes down
   in which order things go. Built by the tests; the real header is not needed. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct context {
	void *device;
	void *before_poll[11];
	int (*poll_cq)(void *, int, void *);
	int (*req_notify_cq)(void *, int);
	void *before_post[12];
	int (*post_send)(void *, void *, void **);
	int (*post_recv)(void *, void *, void **);
	void *behind_post[5];
	int cmd_fd, async_fd, vectors;
};
struct channel { void *context; int fd, refs; };
struct queue { void *context, *channel, *own; uint32_t handle; int cqe; };
struct memory { void *context, *pd, *addr; size_t length; uint32_t handle, lkey, rkey; };
struct pair { void *context, *own, *pd, *send, *recv, *srq; uint32_t handle, number; };
struct event { void *element; uint32_t type; };
struct options { void *own, *send, *recv, *srq; uint32_t send_wr, recv_wr, send_sge, recv_sge, inline_data, type, all; };

static char names[] = "fake0";
static void *list[2] = { names, 0 };
static char journal[4096];
static int list_error, inline_max;
static int events[2] = { -1, -1 };

static int note(const char *what) { strcat(strcat(journal, what), " "); return 0; }
static int pass(void *a, void *b, void **bad) { (void)a; (void)b; (void)bad; return 0; }
static int poll_none(void *a, int b, void *c) { (void)a; (void)b; (void)c; return 0; }
static int notify(void *a, int b) { (void)a; (void)b; return 0; }

/* For the tests. */
const char *fake_journal(void) { return journal; }
void fake_forget(void) { journal[0] = 0; }
void fake_fail_list(int error) { list_error = error; }
void fake_inline(int most) { inline_max = most; }
void fake_event(void *element, uint32_t type)
{
	struct event event = { element, type };
	if (write(events[1], &event, sizeof event) != sizeof event)
		abort();
}

int ibv_fork_init(void) { return note("fork-init"); }
void **ibv_get_device_list(int *count)
{
	if (list_error) {
		errno = list_error;
		return 0;
	}
	*count = 1;
	return list;
}
void ibv_free_device_list(void **gone) { (void)gone; }
const char *ibv_get_device_name(void *device) { return device; }
void *ibv_open_device(void *device)
{
	struct context *made = calloc(1, sizeof *made);
	made->device = device;
	made->poll_cq = poll_none;
	made->req_notify_cq = notify;
	made->post_send = made->post_recv = pass;
	made->cmd_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (pipe(events))
		abort();
	made->async_fd = events[0];
	return made;
}
int ibv_close_device(void *gone)
{
	struct context *context = gone;
	close(context->cmd_fd);
	close(context->async_fd);
	free(context);
	return note("device");
}
int ibv_query_device(void *context, void *into)
{
	(void)context;
	memset(into, 0, 232);
	*(int *)((char *)into + 132) = 1000; /* max_cqe */
	*((char *)into + 227) = 1; /* phys_port_cnt */
	return 0;
}
int ibv_query_port(void *context, uint8_t port, void *into)
{
	(void)context; (void)port;
	memset(into, 0, 48);
	((int *)into)[0] = 4;
	((int *)into)[2] = 3;
	((int *)into)[3] = 2;
	return 0;
}
int ibv_query_gid(void *context, uint8_t port, int index, void *gid)
{
	(void)context; (void)port;
	memset(gid, index ? 0 : 7, 16);
	return 0;
}
int ibv_get_async_event(void *context, void *event)
{
	return read(((struct context *)context)->async_fd, event, sizeof(struct event)) == sizeof(struct event) ? 0 : -1;
}
void ibv_ack_async_event(void *event) { (void)event; note("ack"); }
void *ibv_create_comp_channel(void *context)
{
	struct channel *made = calloc(1, sizeof *made);
	made->context = context;
	made->fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	return made;
}
int ibv_destroy_comp_channel(void *gone)
{
	close(((struct channel *)gone)->fd);
	free(gone);
	return note("channel");
}
void *ibv_create_cq(void *context, int cqe, void *own, void *channel, int vector)
{
	struct queue *made = calloc(1, sizeof *made);
	(void)own; (void)vector;
	made->context = context;
	made->channel = channel;
	made->cqe = cqe;
	return made;
}
int ibv_destroy_cq(void *gone) { free(gone); return note("queue"); }
int ibv_get_cq_event(void *channel, void **queue, void **own)
{
	(void)channel; (void)queue; (void)own;
	errno = EAGAIN;
	return -1;
}
void ibv_ack_cq_events(void *queue, unsigned count) { (void)queue; (void)count; }
void *ibv_alloc_pd(void *context) { (void)context; return calloc(1, 16); }
int ibv_dealloc_pd(void *gone) { free(gone); return note("domain"); }
void *ibv_reg_mr(void *pd, void *addr, size_t length, int access)
{
	struct memory *made = calloc(1, sizeof *made);
	(void)access;
	made->pd = pd;
	made->addr = addr;
	made->length = length;
	made->lkey = 11;
	made->rkey = 12;
	return made;
}
int ibv_dereg_mr(void *gone)
{
	/* The pages must still be there. */
	*(volatile char *)((struct memory *)gone)->addr = 1;
	free(gone);
	return note("memory");
}
void *ibv_create_qp(void *pd, void *options)
{
	struct options *asked = options;
	struct pair *made;
	if ((int)asked->inline_data > inline_max) {
		errno = EINVAL;
		return 0;
	}
	made = calloc(1, sizeof *made);
	made->pd = pd;
	made->number = 17;
	return made;
}
int ibv_modify_qp(void *pair, uint32_t *state, int with)
{
	(void)pair; (void)with;
	return *state == 6 ? note("stop") : 0; /* the error state */
}
int ibv_destroy_qp(void *gone) { free(gone); return note("pair"); }
