/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Connections: the core's iw_cm as far as the driver sees it, which stops at an
 * event that it does not expect, and a device that lies.
 */
#include "device.h"
#include "faultline_iwarp.h"

#define QPS 3
#define IDS 16
#define REQUESTS 8
#define TIMERS 16
#define RESOLUTIONS 8

unsigned long shim_jiffies;
unsigned int num_sockets;
struct net shim_net;
struct shim_task shim_task;
const struct net *shim_rdma_net;

/* --- the kernel ---------------------------------------------------------- */

const char *iwcm_reject_msg(int reason)
{
	return "";
}

static struct delayed_work *timers[TIMERS];
static struct net_device *netdev;
/* The next bind fails with this error. */
static int bind_error;
/* The interface at which the way to a peer begins; 0: the one of the local address. */
static int route_ifindex;
/* The result for addresses. */
static int translate_error;
/* Ports that the stack gives to those who ask for none. */
static u16 next_port;

static struct delayed_work **timer_of(struct delayed_work *work)
{
	int i;

	for (i = 0; i < TIMERS; i++)
		if (timers[i] == work)
			return &timers[i];
	return NULL;
}

void shim_disarm(struct delayed_work *work)
{
	struct delayed_work **timer = timer_of(work);

	if (timer)
		*timer = NULL;
}

void shim_delay(struct delayed_work *work, unsigned long delay, bool again)
{
	if (!again && (timer_of(work) || work->work.queued))
		return;
	shim_disarm(work);
	if (!delay)
		shim_queue_work(&work->work);
	else if (!work->work.disabled)
		*timer_of(NULL) = work;
}

static void pass_time(unsigned long ticks)
{
	int i;

	shim_jiffies += ticks;
	for (i = 0; i < TIMERS; i++)
		if (timers[i])
			shim_delay(timers[i], 0, true);
}

struct net_device *shim_netdev(int ifindex)
{
	return ifindex ? netdev : NULL;
}

int sock_create_kern(struct net *net, int family, int type, int proto, struct socket **sock)
{
	*sock = calloc(1, sizeof(**sock));
	(*sock)->sk = &(*sock)->own;
	(*sock)->own.net = net;
	num_sockets++;
	return 0;
}

void sock_release(struct socket *sock)
{
	free(sock);
	num_sockets--;
}

int kernel_bind(struct socket *sock, void *addr, int size)
{
	int err = bind_error;

	bind_error = 0;
	return err;
}

int kernel_getsockname(struct socket *sock, struct sockaddr *addr)
{
	*faultline_port((void *)addr) = htons(next_port);
	return rdma_addr_size(addr);
}

int rdma_translate_ip(const struct sockaddr *ip, struct rdma_dev_addr *addr)
{
	CHECK(addr->net == &shim_net);
	addr->bound_dev_if = 1;
	return translate_error;
}

static struct resolution {
	struct rdma_dev_addr *addr;
	void (*callback)(int status, struct sockaddr *from, struct rdma_dev_addr *addr, void *context);
	void *context;
} resolutions[RESOLUTIONS];

int rdma_resolve_ip(struct sockaddr *from, const struct sockaddr *to, struct rdma_dev_addr *addr, unsigned long ms,
		    void (*callback)(int status, struct sockaddr *from, struct rdma_dev_addr *addr, void *context),
		    bool by_gid, void *context)
{
	struct resolution *free = resolutions;

	CHECK(addr->net == &shim_net && addr->bound_dev_if == 1);
	while (free->addr)
		free++;
	*free = (struct resolution){ addr, callback, context };
	return 0;
}

void rdma_addr_cancel(struct rdma_dev_addr *addr)
{
	int i;

	for (i = 0; i < RESOLUTIONS; i++)
		if (resolutions[i].addr == addr)
			resolutions[i].addr = NULL;
}

static void resolve(int status)
{
	int i;

	for (i = 0; i < RESOLUTIONS; i++) {
		struct resolution r = resolutions[i];

		if (!r.addr)
			continue;
		memset(r.addr->dst_dev_addr, 0x5a, ETH_ALEN);
		r.addr->hoplimit = 63;
		if (route_ifindex)
			r.addr->bound_dev_if = route_ifindex;
		resolutions[i].addr = NULL;
		r.callback(status, NULL, r.addr, r.context);
	}
}

/* --- iw_cm --------------------------------------------------------------- */

enum id_state { IDLE, LISTEN, CONN_RECV, CONN_SENT, ESTABLISHED };

struct id {
	struct iw_cm_id id;
	/* That of rdma_cm. */
	struct rdma_cm_id own;
	enum id_state state;
	unsigned int refs;
	bool disconnected;
	struct ib_qp *qp;
	/* The last event. */
	struct iw_cm_event last;
	u8 data[U8_MAX];
	unsigned int events;
};

static struct id *ids[IDS];
/* Events of each type. */
static u64 num_events[IW_CM_EVENT_CLOSE + 1];
/* The namespace of new identifiers. */
static struct net *id_net = &shim_net;
/* The next event of a request finds no room. */
static bool no_room;

static struct id *of(struct iw_cm_id *cm_id)
{
	return container_of(cm_id, struct id, id);
}

static void add_ref(struct iw_cm_id *cm_id)
{
	of(cm_id)->refs++;
}

static void rem_ref(struct iw_cm_id *cm_id)
{
	if (!--of(cm_id)->refs)
		free(of(cm_id));
}

static int upcall(struct iw_cm_id *cm_id, struct iw_cm_event *event);

static struct id *new_id(struct ib_device *ibdev, enum id_state state)
{
	struct id *id = calloc(1, sizeof(*id)), **free = ids;

	id->id = (struct iw_cm_id){
		.device = ibdev, .context = &id->own, .event_handler = upcall, .add_ref = add_ref, .rem_ref = rem_ref,
	};
	id->own.route.addr.dev_addr.net = id_net;
	id->state = state;
	id->refs = 1;
	while (*free)
		CHECK(++free < ids + IDS);
	return *free = id;
}

static void put_qp(struct id *id)
{
	struct ib_qp *qp = id->qp;

	id->qp = NULL;
	faultline_iw_rem_ref(qp);
}

/* What BUG_ON() stops in the kernel, CHECK() stops here. */
static int upcall(struct iw_cm_id *cm_id, struct iw_cm_event *event)
{
	struct id *id = of(cm_id);

	if (event->event == IW_CM_EVENT_CONNECT_REQUEST) {
		CHECK(id->state == LISTEN && !event->status);
		if (no_room)
			return -ENOMEM;
		id = new_id(cm_id->device, CONN_RECV);
		id->id.provider_data = event->provider_data;
	}
	num_events[event->event]++;
	id->last = *event;
	id->events++;
	if (event->private_data_len)
		memcpy(id->data, event->private_data, event->private_data_len);
	switch (event->event) {
	case IW_CM_EVENT_CONNECT_REQUEST:
		break;
	case IW_CM_EVENT_CONNECT_REPLY:
		CHECK(id->state == CONN_SENT);
		id->state = event->status ? IDLE : ESTABLISHED;
		if (event->status)
			put_qp(id);
		break;
	case IW_CM_EVENT_ESTABLISHED:
		CHECK(id->state == CONN_RECV && id->qp);
		id->state = ESTABLISHED;
		break;
	case IW_CM_EVENT_DISCONNECT:
		CHECK(id->state == ESTABLISHED && !id->disconnected);
		id->disconnected = true;
		break;
	case IW_CM_EVENT_CLOSE:
		CHECK(id->state == ESTABLISHED);
		id->state = IDLE;
		put_qp(id);
		break;
	default:
		CHECK(false);
	}
	return 0;
}

static void set_v4(struct sockaddr_storage *addr, u32 ip, u16 port)
{
	*(struct sockaddr_in *)addr = (struct sockaddr_in){ AF_INET, htons(port), { htonl(ip) } };
}

/* iw_cm_connect() or iw_cm_accept(). */
static int open_qp(struct id *id, u32 qpn, int (*open)(struct iw_cm_id *, struct iw_cm_conn_param *))
{
	static const u8 data[3] = { 7, 8, 9 };
	struct iw_cm_conn_param param = {
		.qpn = qpn, .ird = 5, .ord = 4, .private_data = data, .private_data_len = sizeof(data),
	};
	unsigned int events = id->events;
	int err;

	id->qp = faultline_iw_get_qp(id->id.device, qpn);
	if (!id->qp)
		return -ENOENT;
	faultline_iw_add_ref(id->qp);
	err = open(&id->id, &param);
	if (err) {
		CHECK(id->events == events);
		id->state = IDLE;
		put_qp(id);
	}
	return err;
}

static struct id *start_connect(struct ib_device *ibdev, u32 qpn, int *err)
{
	struct id *id = new_id(ibdev, CONN_SENT);

	set_v4(&id->id.m_local_addr, 0x0a000001, 1000);
	set_v4(&id->id.m_remote_addr, 0x0a000002, 2000);
	*err = open_qp(id, qpn, faultline_iw_connect);
	if (*err)
		id->state = IDLE;
	return id;
}

static struct id *start_listen(struct ib_device *ibdev, int *err)
{
	struct id *id = new_id(ibdev, LISTEN);

	set_v4(&id->id.m_local_addr, INADDR_ANY, 3000);
	*err = faultline_iw_create_listen(&id->id, 4);
	if (*err)
		id->state = IDLE;
	return id;
}

static struct id *find_id(enum id_state state)
{
	int i, first = random_number(IDS);

	for (i = 0; i < IDS; i++) {
		struct id *id = ids[(first + i) % IDS];

		if (id && id->state == state && !(state == CONN_RECV && id->qp))
			return id;
	}
	return NULL;
}

/* iw_destroy_cm_id(), once it need not wait. */
static void destroy_id(struct id *id)
{
	int i;

	if (id->state == LISTEN)
		CHECK(!faultline_iw_destroy_listen(&id->id));
	if (id->state == CONN_RECV)
		faultline_iw_reject(&id->id, NULL, 0);
	for (i = 0; i < IDS; i++)
		if (ids[i] == id)
			ids[i] = NULL;
	CHECK(!id->qp && id->refs == 1);
	rem_ref(&id->id);
}

/* --- the device ---------------------------------------------------------- */

struct cm_life {
	struct faultline_dev dev;
	struct faultline_ib ib;
	struct faultline_net net;
	struct faultline_pd pd;
	struct faultline_cq cq;
	struct faultline_qp *qp[QPS];
};

/* Every n-th command is refused; 0: none. */
static unsigned int refused;
/* The answer to queries. */
static struct faultline_connection_info info;
static struct faultline_connect connected;
static struct faultline_accept accepted;
static struct faultline_create_listener listener;
static u32 last_listener;
static u8 sent_data[3];
static unsigned int num_rejects, num_connects;

static int command(struct faultline_dev *dev)
{
	if (faultline_is_dead(dev))
		return -EIO;
	return refused && !random_number(refused) ? -EINVAL : 0;
}

static void read_data(const struct faultline_connection_param *param)
{
	if (param->private_len)
		memcpy(sent_data, mapped_memory(param->private_addr, param->private_len, DMA_TO_DEVICE),
		       min(param->private_len, sizeof(sent_data)));
}

int faultline_cmd_create_listener(struct faultline_dev *dev, const struct faultline_create_listener *params, u32 *number)
{
	listener = *params;
	*number = last_listener = next_number++;
	return command(dev);
}

int faultline_cmd_destroy_listener(struct faultline_dev *dev, u32 number)
{
	return command(dev);
}

int faultline_cmd_connect(struct faultline_dev *dev, u32 qpn, const struct faultline_connect *params)
{
	connected = *params;
	num_connects++;
	read_data(&params->param);
	return command(dev);
}

int faultline_cmd_accept(struct faultline_dev *dev, u32 qpn, const struct faultline_accept *params)
{
	accepted = *params;
	read_data(&params->param);
	return command(dev);
}

int faultline_cmd_reject(struct faultline_dev *dev, u32 request, const struct faultline_accept *params)
{
	num_rejects++;
	return command(dev);
}

static int query(struct faultline_dev *dev, const struct faultline_query_connection *params,
		 struct faultline_connection_info *answer)
{
	int err = command(dev);

	memset(mapped_memory(params->addr, params->len, DMA_FROM_DEVICE), 0x77, params->len);
	*answer = info;
	return err ?: faultline_check_connection(dev, answer);
}

int faultline_cmd_query_request(struct faultline_dev *dev, u32 request, const struct faultline_query_connection *params,
				struct faultline_connection_info *answer)
{
	return query(dev, params, answer);
}

int faultline_cmd_query_connection(struct faultline_dev *dev, u32 qpn, const struct faultline_query_connection *params,
				   struct faultline_connection_info *answer)
{
	return query(dev, params, answer);
}

static void write_event(struct cm_life *l, u8 kind, u32 object, u64 token)
{
	struct faultline_eq *eq = &l->dev.eqs[FAULTLINE_EQ_ASYNC];

	eq->ring[eq->consumer % BIT(FAULTLINE_EQ_LOG_DEPTH)] = (struct faultline_eqe) {
		.kind = kind, .object = object, .token = token,
		.phase = faultline_phase(eq->consumer, FAULTLINE_EQ_LOG_DEPTH),
	};
}

static void event(struct cm_life *l, u8 kind, u32 object, u64 token)
{
	write_event(l, kind, object, token);
	interrupt[FAULTLINE_EQ_ASYNC](SHIM_FIRST_IRQ, interrupt_data[FAULTLINE_EQ_ASYNC]);
}

static void make_qp(struct cm_life *l, int i)
{
	struct ib_qp_init_attr attr = {
		.send_cq = &l->cq.ibcq, .recv_cq = &l->cq.ibcq, .qp_type = IB_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	l->qp[i] = calloc(1, sizeof(*l->qp[i]));
	l->qp[i]->ibqp.device = &l->ib.ibdev;
	l->qp[i]->ibqp.pd = &l->pd.ibpd;
	CHECK(!faultline_create_qp(&l->qp[i]->ibqp, &attr, NULL));
}

static void destroy_qp(struct cm_life *l, int i)
{
	CHECK(!faultline_destroy_qp(&l->qp[i]->ibqp, NULL));
	free(l->qp[i]);
	l->qp[i] = NULL;
}

static struct cm_life *make(void)
{
	struct ib_cq_init_attr cq_attr = { .cqe = 16 };
	struct cm_life *l = calloc(1, sizeof(*l));
	int i;

	begin(&l->dev);
	refused = 0;
	no_room = false;
	bind_error = 0;
	num_rejects = num_connects = 0;
	info = (struct faultline_connection_info) {
		.path = { .local_port = 3000, .remote_port = 4000, .vlan = 0xffff },
		.param = { .private_len = 2, .ird = 3, .ord = 2, .flags = FAULTLINE_CONNECTION_ENHANCED },
	};
	memset(info.path.local_ip + 10, 0xff, 2);
	memset(info.path.remote_ip + 10, 0xff, 2);
	l->dev.caps.features = FAULTLINE_FEATURE_IWARP;
	l->dev.caps.max_listener = REQUESTS;
	l->dev.caps.max_backlog = 16;
	l->dev.net = &l->net;
	l->dev.ib = &l->ib;
	l->ib.dev = &l->dev;
	l->pd.ibpd.device = &l->ib.ibdev;
	netdev = shim_alloc_netdev(1);
	netdev->mtu = 1500;
	netdev->ifindex = 1;
	l->net.netdev = netdev;
	shim_netdevs = netdev;
	l->dev.caps.max_gid = 4;
	CHECK(!faultline_cm_create(&l->dev));
	l->dev.up = true;
	CHECK(!faultline_addrs_create(&l->dev));
	CHECK(!faultline_eqs_create(&l->dev));
	l->cq.ibcq.device = &l->ib.ibdev;
	CHECK(!faultline_create_cq(&l->cq.ibcq, &cq_attr, NULL));
	for (i = 0; i < QPS; i++)
		make_qp(l, i);
	return l;
}

/* As the driver does: consumers first. Nothing may be left. */
static void unmake(struct cm_life *l)
{
	int i;

	refused = 0;
	for (i = 0; i < QPS; i++)
		destroy_qp(l, i);
	for (i = 0; i < IDS; i++)
		if (ids[i])
			destroy_id(ids[i]);
	run_works();
	CHECK(!faultline_destroy_cq(&l->cq.ibcq, NULL));
	faultline_eqs_destroy(&l->dev);
	faultline_addrs_destroy(&l->dev);
	faultline_cm_destroy(&l->dev);
	shim_netdevs = NULL;
	CHECK(!run_works() && !num_sockets && !shim_net.refs && !num_maps);
	resolve(0);
	CHECK(!run_works());
	free_netdev(netdev);
	free(l);
}

/* --- what an honest device causes ---------------------------------------- */

static void test_active(void)
{
	struct cm_life *l = make();
	u32 qpn = l->qp[0]->res.num;
	struct id *id, *second;
	int err;

	bind_error = -EADDRINUSE;
	next_port = 5555;
	id = start_connect(&l->ib.ibdev, qpn, &err);
	CHECK(!err && num_sockets == 1 && shim_net.refs == 1 && !num_connects);
	/* One connection for each queue pair. */
	second = start_connect(&l->ib.ibdev, qpn, &err);
	CHECK(err == -EINVAL);
	destroy_id(second);
	resolve(0);
	run_works();
	CHECK(num_connects == 1 && id->state == CONN_SENT);
	/* The port of iw_cm is in use: the stack has given another one. */
	CHECK(connected.path.local_port == 5555 && connected.path.remote_port == 2000);
	CHECK(connected.path.local_ip[11] == 0xff && connected.path.local_ip[15] == 1);
	CHECK(connected.path.remote_ip[15] == 2 && connected.path.dmac[5] == 0x5a);
	CHECK(connected.path.vlan == 0xffff && connected.path.mtu == 1500 && connected.path.hop_limit == 63);
	CHECK(connected.param.ird == 5 && connected.param.ord == 4 && connected.param.private_len == 3);
	CHECK(!memcmp(sent_data, (u8[]){ 7, 8, 9 }, 3));
	event(l, FAULTLINE_EVENT_CONNECTED, qpn, 0);
	run_works();
	CHECK(id->state == ESTABLISHED && !id->last.status && l->qp[0]->state == IB_QPS_RTS);
	CHECK(id->last.ird == 2 && id->last.ord == 3 && id->last.private_data_len == 2 && id->data[1] == 0x77);
	event(l, FAULTLINE_EVENT_PEER_CLOSED, qpn, 0);
	run_works();
	CHECK(id->disconnected && id->state == ESTABLISHED && num_sockets == 1);
	event(l, FAULTLINE_EVENT_CONNECTION_CLOSED, qpn, FAULTLINE_CLOSE_FINISHED);
	run_works();
	CHECK(id->state == IDLE && !id->qp && !num_sockets && l->qp[0]->state == IB_QPS_ERR);
	unmake(l);
}

static void test_active_fails(void)
{
	static const struct { u8 reason; int status; } ends[] = {
		{ FAULTLINE_CLOSE_REFUSED, -ECONNREFUSED }, { FAULTLINE_CLOSE_REJECTED, -ECONNREFUSED },
		{ FAULTLINE_CLOSE_TIMED_OUT, -ETIMEDOUT }, { FAULTLINE_CLOSE_RESET, -ECONNRESET },
		{ FAULTLINE_CLOSE_SETUP, -EPROTO }, { FAULTLINE_CLOSE_ABORTED, -ECONNABORTED },
	};
	struct mm_struct mine = {}, other = {};
	struct cm_life *l;
	struct id *id;
	size_t i;
	int err;

	for (i = 0; i < ARRAY_SIZE(ends); i++) {
		l = make();
		id = start_connect(&l->ib.ibdev, l->qp[1]->res.num, &err);
		resolve(0);
		run_works();
		info.close_reason = ends[i].reason;
		event(l, FAULTLINE_EVENT_CONNECT_FAILED, l->qp[1]->res.num, ends[i].reason);
		run_works();
		CHECK(id->state == IDLE && id->last.status == ends[i].status && id->last.private_data_len == 2);
		unmake(l);
	}
	/* The peer has no MAC address. */
	l = make();
	id = start_connect(&l->ib.ibdev, l->qp[1]->res.num, &err);
	resolve(-EHOSTUNREACH);
	run_works();
	CHECK(id->state == IDLE && id->last.status == -EHOSTUNREACH && !num_connects);
	/* The device never answers. */
	id = start_connect(&l->ib.ibdev, l->qp[1]->res.num, &err);
	resolve(0);
	run_works();
	pass_time(100 * HZ);
	run_works();
	CHECK(id->state == CONN_SENT);
	pass_time(200 * HZ);
	run_works();
	CHECK(id->state == IDLE && id->last.status == -ETIMEDOUT);
	/* A process does not get a queue pair that is not its own. */
	shim_task.mm = &other;
	id = start_connect(&l->ib.ibdev, l->qp[2]->res.num, &err);
	CHECK(err == -ENOENT && !id->events);
	shim_task.mm = &mine;
	faultline_conn_destroy(l->qp[2]);
	l->qp[2]->user = true;
	CHECK(!faultline_conn_create(l->qp[2]) && mine.refs == 1);
	shim_task.mm = &other;
	start_connect(&l->ib.ibdev, l->qp[2]->res.num, &err);
	CHECK(err == -ENOENT);
	shim_task.mm = NULL;
	start_connect(&l->ib.ibdev, l->qp[2]->res.num, &err);
	CHECK(err == -ENOENT);
	/* Nor one of the kernel, unless it has made the kernel create it. */
	l->qp[2]->user = false;
	shim_task.mm = &other;
	start_connect(&l->ib.ibdev, l->qp[2]->res.num, &err);
	CHECK(err == -ENOENT);
	shim_task.mm = &mine;
	/* The device dies. */
	id = start_connect(&l->ib.ibdev, l->qp[2]->res.num, &err);
	resolve(0);
	run_works();
	faultline_fail(&l->dev, "test");
	shim_task.mm = NULL;
	faultline_conn_death(l->qp[2]->conn);
	run_works();
	CHECK(id->state == IDLE && id->last.status == -ENETDOWN);
	unmake(l);
	CHECK(!mine.refs && !other.refs);
}

static void reset_qp(struct cm_life *l, int i)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_RESET };

	CHECK(!faultline_modify_qp(&l->qp[i]->ibqp, &attr, IB_QP_STATE, NULL));
}

/* An event that the device wrote before the reset, whose interrupt is late, is not of the next connection. */
static void test_late_event(void)
{
	struct cm_life *l = make();
	u32 qpn = l->qp[0]->res.num;
	struct id *first, *second;
	int err;

	first = start_connect(&l->ib.ibdev, qpn, &err);
	resolve(0);
	run_works();
	event(l, FAULTLINE_EVENT_CONNECTED, qpn, 0);
	run_works();
	write_event(l, FAULTLINE_EVENT_CONNECTION_CLOSED, qpn, 0);
	reset_qp(l, 0);
	CHECK(first->state == IDLE);
	second = start_connect(&l->ib.ibdev, qpn, &err);
	CHECK(!err);
	resolve(0);
	run_works();
	interrupt[FAULTLINE_EQ_ASYNC](SHIM_FIRST_IRQ, interrupt_data[FAULTLINE_EQ_ASYNC]);
	run_works();
	CHECK(second->state == CONN_SENT);
	event(l, FAULTLINE_EVENT_CONNECTED, qpn, 0);
	run_works();
	CHECK(second->state == ESTABLISHED);
	unmake(l);
}

/* The way to the peer begins at another interface than the one of the address. */
static void test_other_route(void)
{
	struct cm_life *l = make();
	struct id *id;
	int err;

	id = start_connect(&l->ib.ibdev, l->qp[0]->res.num, &err);
	route_ifindex = 2;
	resolve(0);
	translate_error = -EADDRNOTAVAIL;
	run_works();
	CHECK(id->state == IDLE && id->last.status == -EHOSTUNREACH && !num_connects);
	route_ifindex = translate_error = 0;
	unmake(l);
}

/* A user has a part of the listeners, and gets it back. */
static void test_quota(void)
{
	struct mm_struct mm = {};
	struct cm_life *l = make();
	struct id *id[3];
	int err, i;

	shim_task = (struct shim_task) { .mm = &mm, .uid = 1000 };
	for (i = 0; i < 3; i++) {
		id[i] = start_listen(&l->ib.ibdev, &err);
		CHECK(err == (i < REQUESTS / 4 ? 0 : -EDQUOT));
	}
	shim_task.uid = 1001;
	start_listen(&l->ib.ibdev, &err);
	CHECK(!err);
	destroy_id(id[0]);
	shim_task.uid = 1000;
	start_listen(&l->ib.ibdev, &err);
	CHECK(!err && num_sockets == 3);
	shim_task = (struct shim_task) {};
	start_listen(&l->ib.ibdev, &err);
	CHECK(!err && num_sockets == 4);
	unmake(l);
}

/*
 * A listener of another namespace has none for any address, whether the core creates it for the process itself or in the thread that
 * registers the device. A listener of the netdev's namespace has none while the RDMA device is in another one.
 */
static void test_namespaces(void)
{
	struct mm_struct mm = {};
	struct net other = {};
	struct cm_life *l = make();
	struct id *id;
	int err, i;

	for (i = 0; i < 2; i++) {
		shim_task = (struct shim_task) { .mm = i ? &mm : NULL };
		id_net = &other;
		id = start_listen(&l->ib.ibdev, &err);
		CHECK(!err && !num_sockets && !id->id.provider_data);
		CHECK(!faultline_iw_destroy_listen(&id->id));
		id_net = &shim_net;
		shim_rdma_net = &other;
		start_listen(&l->ib.ibdev, &err);
		CHECK(!err && !num_sockets);
		shim_rdma_net = NULL;
		id = start_listen(&l->ib.ibdev, &err);
		CHECK(!err && num_sockets == 1);
		destroy_id(id);
	}
	shim_task = (struct shim_task) {};
	unmake(l);
}

/* The port of a socket is shared by listeners of the kernel and of administrators only. */
static void test_shared_port(void)
{
	struct mm_struct mm = {};
	struct cm_life *l = make();
	struct id *id;
	int err;

	shim_task = (struct shim_task) { .mm = &mm, .uid = 1000 };
	bind_error = -EADDRINUSE;
	start_listen(&l->ib.ibdev, &err);
	CHECK(err == -EADDRINUSE && !num_sockets);
	shim_task.capable = true;
	bind_error = -EACCES;
	start_listen(&l->ib.ibdev, &err);
	CHECK(err == -EACCES && !num_sockets);
	bind_error = -EADDRINUSE;
	id = start_listen(&l->ib.ibdev, &err);
	CHECK(!err && !num_sockets && listener.path.local_port == 3000);
	CHECK(!faultline_iw_destroy_listen(&id->id));
	shim_task = (struct shim_task) {};
	bind_error = -EADDRINUSE;
	start_listen(&l->ib.ibdev, &err);
	CHECK(!err && !num_sockets && listener.path.local_port == 3000);
	unmake(l);
}

/* While the device registers, a listener for any address that the device refuses is none, without an error. */
static void test_listen_again(void)
{
	struct cm_life *l = make();
	struct id *id;
	int err;

	refused = 1;
	start_listen(&l->ib.ibdev, &err);
	CHECK(err == -EINVAL && !num_sockets);
	l->dev.up = false;
	id = start_listen(&l->ib.ibdev, &err);
	CHECK(!err && !id->id.provider_data && !num_sockets);
	CHECK(!faultline_iw_destroy_listen(&id->id));
	set_v4(&id->id.m_local_addr, 0x0a000001, 3000);
	CHECK(faultline_iw_create_listen(&id->id, 4) == -EINVAL);
	refused = 0;
	unmake(l);
}

static void test_passive(void)
{
	struct cm_life *l = make();
	u32 qpn = l->qp[0]->res.num;
	struct id *listening, *id, *late;
	int err;

	listening = start_listen(&l->ib.ibdev, &err);
	CHECK(!err && num_sockets == 1 && listener.backlog == 4 && listener.path.local_port == 3000);
	CHECK(listener.path.local_ip[10] == 0xff && !listener.path.local_ip[15] && listener.path.vlan == 0xffff);
	event(l, FAULTLINE_EVENT_CONNECTION_REQUEST, last_listener, 77);
	run_works();
	id = find_id(CONN_RECV);
	CHECK(id && id->last.ird == 3 && id->last.ord == 2 && id->last.private_data_len == 2 && id->data[0] == 0x77);
	CHECK(id->last.remote_addr.ss_family == AF_INET && *faultline_port(&id->last.remote_addr) == htons(4000));
	CHECK(!open_qp(id, qpn, faultline_iw_accept) && accepted.request == 77 && id->state == CONN_RECV);
	CHECK(l->qp[0]->state == IB_QPS_RTS && !memcmp(sent_data, (u8[]){ 7, 8, 9 }, 3));
	event(l, FAULTLINE_EVENT_CONNECTED, qpn, 0);
	run_works();
	CHECK(id->state == ESTABLISHED && !num_rejects);
	/* The number is used again, for a request that ends, and again. */
	event(l, FAULTLINE_EVENT_CONNECTION_REQUEST, last_listener, 77);
	run_works();
	late = find_id(CONN_RECV);
	event(l, FAULTLINE_EVENT_REQUEST_GONE, 77, 0);
	run_works();
	CHECK(num_rejects == 1);
	event(l, FAULTLINE_EVENT_CONNECTION_REQUEST, last_listener, 77);
	run_works();
	CHECK(open_qp(late, l->qp[1]->res.num, faultline_iw_accept) == -ECONNRESET && num_rejects == 1);
	/* One that iw_cm has no room for is rejected, as is one for nobody. */
	no_room = true;
	event(l, FAULTLINE_EVENT_CONNECTION_REQUEST, last_listener, 78);
	event(l, FAULTLINE_EVENT_CONNECTION_REQUEST, 12345, 79);
	run_works();
	CHECK(num_rejects == 3 && !faultline_is_dead(&l->dev));
	CHECK(listening->state == LISTEN);
	unmake(l);
}

/* More requests than the device can have, and a number twice. */
static void test_too_many(void)
{
	struct cm_life *l = make();
	int err;
	u32 i;

	start_listen(&l->ib.ibdev, &err);
	for (i = 0; i <= REQUESTS; i++) {
		CHECK(!faultline_is_dead(&l->dev));
		event(l, FAULTLINE_EVENT_CONNECTION_REQUEST, last_listener, i);
		run_works();
	}
	CHECK(faultline_is_dead(&l->dev));
	unmake(l);

	l = make();
	start_listen(&l->ib.ibdev, &err);
	for (i = 0; i < 2; i++)
		event(l, FAULTLINE_EVENT_CONNECTION_REQUEST, last_listener, 5);
	CHECK(!faultline_is_dead(&l->dev));
	run_works();
	CHECK(faultline_is_dead(&l->dev));
	unmake(l);

	/* The ring of events is bounded. */
	l = make();
	for (i = 0; i < 4 * REQUESTS; i++)
		event(l, FAULTLINE_EVENT_REQUEST_GONE, i, 0);
	CHECK(!faultline_is_dead(&l->dev));
	event(l, FAULTLINE_EVENT_REQUEST_GONE, i, 0);
	CHECK(faultline_is_dead(&l->dev));
	unmake(l);
}

/* --- a device that lies -------------------------------------------------- */

static void any_event(struct cm_life *l)
{
	static const u8 kinds[] = {
		FAULTLINE_EVENT_CONNECTION_REQUEST, FAULTLINE_EVENT_REQUEST_GONE, FAULTLINE_EVENT_CONNECTED,
		FAULTLINE_EVENT_CONNECT_FAILED, FAULTLINE_EVENT_PEER_CLOSED, FAULTLINE_EVENT_CONNECTION_CLOSED,
	};
	u8 kind = kinds[random_number(sizeof(kinds))];
	u32 object;

	/* Mostly an object that has such events. */
	if (!random_number(8))
		object = random_number(next_number + 1);
	else if (kind == FAULTLINE_EVENT_CONNECTION_REQUEST)
		object = last_listener;
	else if (kind == FAULTLINE_EVENT_REQUEST_GONE)
		object = random_number(REQUESTS);
	else
		object = l->qp[random_number(QPS)]->res.num;
	event(l, kind, object, random_number(REQUESTS));
}

static void any_state(struct cm_life *l, int i)
{
	static const enum ib_qp_state states[] = {
		IB_QPS_INIT, IB_QPS_RTR, IB_QPS_RTS, IB_QPS_SQD, IB_QPS_ERR, IB_QPS_RESET,
	};
	struct ib_qp_attr attr = { .qp_state = states[random_number(ARRAY_SIZE(states))] };

	faultline_modify_qp(&l->qp[i]->ibqp, &attr, IB_QP_STATE, NULL);
}

static void one_step(struct cm_life *l)
{
	int i = random_number(QPS), err;
	struct id *id;

	info.close_reason = random_number(20) ? random_number(FAULTLINE_CLOSE_ABORTED + 1) : random_number(256);
	info.param.private_len = random_number(20) ? random_number(513) : random_number(1000);
	no_room = !random_number(4);
	switch (random_number(14)) {
	case 0:
		if (ids[IDS / 2])
			break;
		start_connect(&l->ib.ibdev, l->qp[i]->res.num, &err);
		break;
	case 1:
		if (!ids[IDS / 2] && !find_id(LISTEN))
			start_listen(&l->ib.ibdev, &err);
		break;
	case 2:
		id = find_id(CONN_RECV);
		if (id)
			open_qp(id, l->qp[i]->res.num, faultline_iw_accept);
		break;
	case 3:
	case 9:
		id = find_id(random_number(2) ? IDLE : random_number(8) ? CONN_RECV : LISTEN);
		if (id && id->refs == 1 + (id->state == LISTEN))
			destroy_id(id);
		break;
	case 4:
		any_state(l, i);
		break;
	case 5:
		if (random_number(8))
			break;
		destroy_qp(l, i);
		make_qp(l, i);
		break;
	case 6:
		resolve(random_number(4) ? 0 : -ETIMEDOUT);
		break;
	case 7:
		pass_time(random_number(400 * HZ));
		break;
	case 8:
		run_works();
		break;
	default:
		no_room |= ids[IDS - 4] != NULL;
		any_event(l);
	}
	if (!random_number(1000))
		faultline_fail(&l->dev, "test");
	/* An id with a request that has no room waits for the work item. */
	if (ids[IDS - 4])
		no_room = true;
}

static unsigned int one_life(void)
{
	struct cm_life *l = make();
	unsigned int step;
	bool died;
	int i;

	refused = 4;
	for (step = 0; step < 200 && !faultline_is_dead(&l->dev); step++)
		one_step(l);
	died = faultline_is_dead(&l->dev);
	for (i = 0; died && i < QPS; i++)
		faultline_conn_death(l->qp[i]->conn);
	if (died)
		run_works();
	/* A dead device leaves nothing that iw_cm waits for. */
	CHECK(!died || (!find_id(CONN_SENT) && !find_id(ESTABLISHED)));
	no_room = true;
	unmake(l);
	return died;
}

void test_connections(u64 seeds)
{
	unsigned int deaths = 0;
	u64 s;
	int e;

	test_active();
	test_active_fails();
	test_late_event();
	test_other_route();
	test_quota();
	test_namespaces();
	test_shared_port();
	test_listen_again();
	test_passive();
	test_too_many();
	for (s = 1; s <= seeds; s++) {
		seed(s);
		deaths += one_life();
	}
	CHECK(deaths > seeds / 10 && deaths < seeds);
	for (e = IW_CM_EVENT_CONNECT_REQUEST; e <= IW_CM_EVENT_CLOSE; e++)
		CHECK(num_events[e] > seeds / 5);
}
