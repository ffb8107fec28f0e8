/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The device that the tests play, and one life of the driver's objects with it. */
#ifndef DEVICE_H
#define DEVICE_H

#include "check.h"
#include "faultline_net.h"

/* The number that the next command which creates an object answers. */
extern u32 next_number;
/* The answer to QUERY_QP. */
extern struct faultline_qp_attr qp_answer;
/* The handler of the interrupt of each vector, with its argument. */
extern irqreturn_t (*interrupt[FAULTLINE_EQ_COMP + 1])(int irq, void *data);
extern void *interrupt_data[FAULTLINE_EQ_COMP + 1];

/* Called for each doorbell; NULL: the device does not look at them. */
extern void (*rung)(u8 type, u32 object, u32 value);
/* Called when the driver has found an entry; NULL: the device does nothing meanwhile. */
extern void (*entry_found)(void);
/* Called while the device executes a command; NULL: nothing happens meanwhile. */
extern void (*meanwhile)(void);

/* The parameters of the last SET_NETDEV and SET_MAC_FILTER. */
struct netdev_config {
	u32 flags;
	u32 count;
	struct faultline_mac_filter_entry filter[SHIM_ADDRESSES];
};
extern struct netdev_config netdev_config;

/* Runs all work that is queued. Returns false if there is none. */
bool run_works(void);

/* Capabilities as the emulator has them. */
void good_caps(struct faultline_caps *caps);
/* Brings a device to life; all that exists is of this life. */
void begin(struct faultline_dev *dev);
bool died(struct faultline_dev *dev, const char *message);

u64 random_number(u64 below);
void seed(u64 value);

void test_completions(u64 seeds);
void test_events(u64 seeds);
void test_answers(void);
void test_rings(void);
void test_frames(u64 netdevs);
void test_teardown(void);
void test_connections(u64 seeds);
void test_addresses(void);

#endif /* DEVICE_H */
