//! Programs for sockets, tests of libfabric, and network interfaces above the NIC's.

use super::row::{GuestSuite, GuestTest, client, roles, suite};
use crate::exchange::Ready;
use crate::prepare::LongBuild;
use crate::test::facts::On::{First, Nothing};
use crate::test::facts::{Runs, runs};

pub const SUITE: GuestSuite = suite(
    "programs",
    "Software for any RDMA device works, over the NIC's interface and those above it, and its data goes over RDMA.",
    runs(
        Nothing,
        First,
        "programs and interfaces of which the default run has one of each kind",
    ),
    TESTS,
);

const ONCE: Runs = runs(First, First, "one of each kind");

/// Those that do not are named, with the reasons, in the script.
const LIBRARY: &str = "The tests of a Rust library pass.";

const NETPERF: &str = "netperf's streams and requests go over rsockets.";

const FABTESTS_MSG: &str = "libfabric's tests and benchmarks of connections pass over `verbs`.";

const FABTESTS_RXM: &str =
    "libfabric's tests and benchmarks of reliable datagrams pass over `verbs;ofi_rxm`.";

const ADDRESSES: &str = "Addresses of such an interface have GIDs, over which connections work.";

/// A server for TCP sockets, and its client, with the library of rsockets preloaded.
const fn sockets(name: &'static str, server: &'static str, arguments: &'static str) -> GuestTest {
    roles(name, "programs_rsockets", arguments, Ready::Cm(server)).within(60)
}

/// Programs of fabtests, one after the other.
const fn fabtests(name: &'static str, provider: &'static str) -> GuestTest {
    roles(name, "programs_fabtests", provider, Ready::Now)
}

/// The tests of a Rust library, in one guest.
const fn library(name: &'static str, command: &'static str) -> GuestTest {
    client(name, command)
        .with(LongBuild::Libraries)
        .shows(LIBRARY)
}

/// An interface in both guests, with an address.
const fn interface(name: &'static str) -> GuestTest {
    roles(name, "programs_stacked", name, Ready::Now).within(60)
}

const TESTS: &[GuestTest] = &[
    sockets("iperf", "iperf", "iperf")
        .shows("A stream of iperf goes over rsockets.")
        .runs(ONCE),
    sockets("netperf_stream", "netserver", "netperf TCP_STREAM").shows(NETPERF),
    sockets("netperf_requests", "netserver", "netperf TCP_RR").shows(NETPERF),
    fabtests("fabtests_msg", "msg").shows(FABTESTS_MSG),
    fabtests("fabtests_msg_bench", "msg_bench").shows(FABTESTS_MSG),
    fabtests("fabtests_rxm", "rxm").shows(FABTESTS_RXM),
    fabtests("fabtests_rxm_bench", "rxm_bench").shows(FABTESTS_RXM),
    fabtests("fabtests_rxd", "rxd")
        .shows("libfabric's test of a reliable datagram passes over `verbs;ofi_rxd`.")
        .runs(ONCE),
    roles("valkey", "programs_valkey", "", Ready::Now)
        .with(LongBuild::Valkey)
        .shows("valkey stores values of 1 KiB and 100 KiB over RDMA, and returns them."),
    library("rust_sideway", "programs_libraries tests sideway"),
    roles("rust_sideway_pair", "programs_libraries", "", Ready::Now)
        .with(LongBuild::Libraries)
        .shows(LIBRARY),
    library("rust_async_rdma", "programs_libraries tests async-rdma"),
    library("rust_async_rdma_examples", "programs_libraries documentation async-rdma"),
    interface("bridge").shows(ADDRESSES),
    interface("macvlan").shows(ADDRESSES).runs(ONCE),
    interface("ipvlan").shows(ADDRESSES),
    interface("vlan").shows(ADDRESSES),
    interface("bond").shows(ADDRESSES),
    interface("shared_namespace")
        .shows("A macvlan interface in a network namespace has RDMA there while namespaces share RDMA devices."),
    interface("own_namespace")
        .shows("A network namespace that has the RDMA device for itself uses it, and no other one does."),
];
