//! Verbs that no other suite tests.

use super::row::{GuestTest, alone, pair};

pub const TESTS: &[GuestTest] = &[
    alone("attributes", "attributes"),
    alone("completions", "completions"),
    alone("flow_tags", "completion_fields flows"),
    alone("vlan_tags", "vlan_tags"),
    alone("xrc_shared", "xrc_shared"),
    alone("raw_tso", "raw_tso"),
    alone("qp_counters", "qp_counters"),
    alone("statuses", "statuses"),
    alone("device_attributes", "device_attributes"),
    alone("device_info", "device_info"),
    alone("resource_details", "resource_details"),
    alone("kernel_requests", "kernel_requests"),
    alone("no_receive_buffers", "no_receive_buffers"),
    alone("builders", "builders"),
    pair("steering", "steering", 18680),
    alone("events", "async_events"),
    pair("bursts", "bursts", 18670),
];
