/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Shutdown of the machine while commands of a device that does not answer wait:
 * those of programs, and those of a recovery. The driver waits for a command
 * for ten seconds; no shutdown may.
 */
#include "check.h"
#include "faultline_odp.h"

unsigned long shim_jiffies;

/* Virtual time that a shutdown, and commands that it ends, may take: a fraction of FAULTLINE_CMD_TIMEOUT_MS. */
#define PROMPT_NS (500 * NSEC_PER_MSEC)
/* Turns after the failure of a device at which a shutdown begins: its recovery takes fewer. */
#define TURNS 400

u8 registers[FAULTLINE_REGS_SIZE];
u8 page[PAGE_SIZE] __attribute__((aligned(PAGE_SIZE)));
void *drvdata;
char last_message[1024];
static struct pci_dev pdev;
/* The driver's part of it, and whether it answers no command. */
static struct faultline_dev *the_dev;
static bool is_silent;
/* Consumers in the kernel do not release what they have of a dead device. */
static bool consumers_stay;

void shim_log(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(last_message, sizeof(last_message), format, args);
	va_end(args);
}

/* --- the device ---------------------------------------------------------- */

static u32 *reg(u32 offset)
{
	return (u32 *)&registers[offset];
}

/* An access takes the time of other threads. */
u32 readl(const void *address)
{
	shim_yield();
	return *(const u32 *)address;
}

void writel(u32 value, void *address)
{
	shim_yield();
	if (address == reg(FAULTLINE_REG_CONTROL))
		*reg(FAULTLINE_REG_STATUS) = value == FAULTLINE_CONTROL_ENABLE ? FAULTLINE_STATUS_ENABLED : 0;
	else
		*(u32 *)address = value;
}

static void complete_commands(struct faultline_cmdq *q, u32 producer)
{
	u32 index;

	for (index = q->consumer; index != producer; index++) {
		u8 *entry = q->cq + index % FAULTLINE_CMDQ_DEPTH * q->comp_size;

		*(u16 *)entry = index;
		entry[q->comp_size - 1] = faultline_phase(index, FAULTLINE_CMDQ_LOG_DEPTH);
	}
}

/* The kick page: `asleep` is set, so each doorbell comes here. */
void writeq(u64 doorbell, void *address)
{
	struct faultline_dev *dev = the_dev;

	if (is_silent)
		return;
	switch (doorbell >> FAULTLINE_DB_TYPE_SHIFT & FAULTLINE_DB_TYPE_MASK) {
	case FAULTLINE_DB_ADMIN:
		complete_commands(&dev->admin, doorbell);
		break;
	case FAULTLINE_DB_TRANSLATION:
		complete_commands(&dev->translation, doorbell);
	}
}

static void make_device(void)
{
	struct faultline_caps *caps = (void *)reg(FAULTLINE_REG_CAPS);

	memset(registers, 0, sizeof(registers));
	memset(page, 0, sizeof(page));
	((struct faultline_doorbell_page *)page)->asleep = 1;
	*reg(FAULTLINE_REG_MAGIC) = FAULTLINE_MAGIC;
	*reg(FAULTLINE_REG_ABI_VERSION) = FAULTLINE_ABI_VERSION;
	*reg(FAULTLINE_REG_DOORBELL_PAGES) = 1;
	*reg(FAULTLINE_REG_KICK_OFFSET) = PAGE_SIZE;
	*caps = (struct faultline_caps) {};
	is_silent = false;
}

/* --- parts of the driver that are not compiled --------------------------- */

static int command(struct faultline_dev *dev, struct faultline_cmdq *q, enum faultline_wait wait)
{
	u8 cmd[256] = {}, comp[256];

	CHECK(q->cmd_size <= sizeof(cmd) && q->comp_size <= sizeof(comp));
	return faultline_cmdq_exec(q, cmd, comp, wait);
}

static int create(struct faultline_dev *dev)
{
	return command(dev, &dev->admin, FAULTLINE_WAIT_SLEEP);
}

static void destroy(struct faultline_dev *dev)
{
	command(dev, &dev->admin, FAULTLINE_WAIT_SLEEP);
}

/* As long as the driver does. */
void faultline_ib_wait_released(struct faultline_dev *dev)
{
	struct completion never = {};

	if (consumers_stay)
		wait_for_completion_timeout(&never, 2000);
}

int faultline_check_caps(struct faultline_dev *dev, const struct faultline_caps *caps) { return 0; }
int faultline_odp_create(struct faultline_dev *dev) { the_dev = dev; return create(dev); }
void faultline_odp_destroy(struct faultline_dev *dev) { destroy(dev); }
int faultline_cm_create(struct faultline_dev *dev) { return 0; }
void faultline_cm_destroy(struct faultline_dev *dev) { }
int faultline_addrs_create(struct faultline_dev *dev) { return create(dev); }
void faultline_addrs_destroy(struct faultline_dev *dev) { destroy(dev); }
int faultline_eqs_create(struct faultline_dev *dev) { return create(dev); }
void faultline_eqs_destroy(struct faultline_dev *dev) { destroy(dev); }
void faultline_eqs_check_lost(struct faultline_dev *dev) { }
int faultline_counters_create(struct faultline_dev *dev) { return create(dev); }
void faultline_counters_destroy(struct faultline_dev *dev) { destroy(dev); }
int faultline_net_create(struct faultline_dev *dev) { dev->net = (void *)page; return create(dev); }
int faultline_net_start(struct faultline_dev *dev) { return create(dev); }
void faultline_net_stop(struct faultline_dev *dev) { destroy(dev); }
void faultline_net_destroy(struct faultline_dev *dev) { dev->net = NULL; }
void faultline_net_death(struct faultline_dev *dev) { }
int faultline_ib_register(struct faultline_dev *dev) { return create(dev); }
void faultline_ib_unregister(struct faultline_dev *dev) { destroy(dev); }
void faultline_ib_death(struct faultline_dev *dev) { }
void faultline_ah_work(struct work_struct *work) { }

/* --- tests --------------------------------------------------------------- */

static struct faultline_dev *begin(void)
{
	virtual_ns = 0;
	make_device();
	CHECK(!driver->probe(&pdev, driver->id_table));
	return drvdata;
}

static void end(void)
{
	driver->remove(&pdev);
	drvdata = NULL;
	join_threads();
}

static void shutdown_promptly(void)
{
	u64 start = virtual_ns;

	driver->shutdown(&pdev);
	CHECK(virtual_ns - start < PROMPT_NS);
	CHECK(faultline_is_dead(drvdata));
	/* It does no more DMA. */
	CHECK(!*reg(FAULTLINE_REG_STATUS));
}

struct caller {
	struct faultline_cmdq *q;
	enum faultline_wait wait;
	int err;
};

static void call(void *data)
{
	struct caller *caller = data;

	caller->err = command(caller->q->dev, caller->q, caller->wait);
}

static void turns(unsigned int num)
{
	while (num--)
		shim_yield();
}

/* More commands wait than a queue has entries. They fail with the shutdown, and so do later ones. */
static void commands_of_programs(void)
{
	struct caller callers[FAULTLINE_CMDQ_DEPTH + 8];
	struct faultline_dev *dev = begin();
	unsigned int i;

	CHECK(!create(dev));
	is_silent = true;
	for (i = 0; i < ARRAY_SIZE(callers); i++) {
		callers[i] = (struct caller){ i % 8 ? &dev->admin : &dev->translation, i % 2, 1 };
		start_thread(call, &callers[i]);
	}
	turns(20);
	for (i = 0; i < ARRAY_SIZE(callers); i++)
		CHECK(callers[i].err == 1);
	shutdown_promptly();
	/* They have been told; none has to look by itself. */
	turns(3);
	for (i = 0; i < ARRAY_SIZE(callers); i++)
		CHECK(callers[i].err == -EIO);
	CHECK(create(dev) == -EIO);
	end();
}

/* Returns true if the recovery was waiting for a command. */
static bool during_recovery(unsigned int after)
{
	struct faultline_dev *dev = begin();
	bool waited;

	is_silent = true;
	faultline_fail(dev, "test");
	turns(after);
	waited = dev->admin.producer != dev->admin.consumer && !dev->admin.stopped;
	shutdown_promptly();
	end();
	return waited;
}

/* A shutdown of a device that works leaves it dead. No recovery begins, which would wait for consumers. */
static void without_commands(void)
{
	struct faultline_dev *dev = begin();

	CHECK(!faultline_is_dead(dev));
	consumers_stay = true;
	shutdown_promptly();
	CHECK(create(dev) == -EIO && dev->up);
	consumers_stay = false;
	end();
}

int main(void)
{
	unsigned int after, waited = 0;

	join_threads();
	without_commands();
	commands_of_programs();
	for (after = 0; after < TURNS; after++)
		waited += during_recovery(after);
	CHECK(waited > TURNS / 2 && waited < TURNS);
	return 0;
}
