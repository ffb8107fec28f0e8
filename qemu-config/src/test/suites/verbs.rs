//! Verbs that no other suite tests.

use super::pingpong::in_both;
use super::row::{GuestSuite, GuestTest, alone, pair, suite};
use crate::test::facts::On::{Both, First};
use crate::test::facts::{Runs, runs};

pub const SUITE: GuestSuite = suite(
    "verbs",
    "Verbs, attributes and events work that other suites do not use.",
    runs(First, Both, "verbs and events that no other suite has"),
    TESTS,
);

const DIFFERS: Runs = runs(Both, Both, "interfaces that differ between the kernels");

const TESTS: &[GuestTest] = &[
    alone("attributes", "attributes").shows(
        "Attributes of queues are accepted, refused and reported as specified; events \
         tell of damaged queues.",
    ),
    alone("completions", "completions").shows(
        "Completion time stamps agree with the clocks; a moderated CQ keeps its count \
         and time.",
    ),
    alone("flow_tags", "completion_fields flows")
        .shows("Completions name the flow that took a frame."),
    alone("vlan_tags", "vlan_tags").shows("Datagrams and completions carry the VLAN tag."),
    alone("xrc_shared", "xrc_shared")
        .shows("Processes share an XRC target, which lives as long as one of them."),
    alone("raw_tso", "raw_tso").shows("The device cuts large TCP packets of raw queue pairs."),
    alone("qp_counters", "qp_counters")
        .shows("Counters count the packets of their queue pairs only.")
        .runs(DIFFERS),
    in_both("port_counters", "port_counters").shows("Counters in sysfs count a known transfer."),
    pair("foreign_mads", "foreign_mads", 18735)
        .shows("A peer gets no counters of a port, and its management packets do no harm."),
    alone("statuses", "statuses").shows("Each request that cannot succeed ends with its status."),
    alone("device_attributes", "device_attributes")
        .shows("Queried fields have the NIC's values; limits are exact."),
    alone("device_info", "device_info")
        .shows("`ibv_devices`, `ibv_devinfo` and sysfs describe the device."),
    alone("resource_details", "resource_details")
        .shows("`rdma resource show -dd` reports queues as created.")
        .runs(DIFFERS),
    alone("kernel_requests", "kernel_requests")
        .shows("A kernel module's requests are executed, or refused if unsupported.")
        .runs(DIFFERS),
    alone("driver_data", "driver_data")
        .shows(
            "Requests with more zeros and shorter responses are accepted, other data is \
             refused.",
        )
        .runs(DIFFERS),
    alone("no_receive_buffers", "no_receive_buffers")
        .shows("Without receive buffers the netdev retries by a timer."),
    alone("builders", "builders").shows("Rare request builders and completion readers work."),
    pair("steering", "steering", 18680).shows(
        "Each frame reaches the raw queue pairs whose flow, sniffer, priority or hash \
         takes it.",
    ),
    alone("events", "async_events")
        .shows("`ibv_asyncwatch` sees new addresses and changes of the link.")
        .runs(DIFFERS),
    pair("bursts", "bursts", 18670).shows(
        "Bursts of small datagrams, and requests of 1000 connections, keep their \
         data.",
    ),
];
