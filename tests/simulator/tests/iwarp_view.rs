//! iWARP as operators see it: connections, listeners, and what the packet checker has judged.

use faultline_abi::wqe as wr;
use faultline_fabric::link_model::LinkModel;
use faultline_nic::inspect::ConnectionInfo;
use faultline_simulator::World;

use crate::iwarp::{any, connect, post, post_recv, world};

fn info(world: &World, host: usize, qpn: u32) -> Option<ConnectionInfo> {
    let pair = world.with_nic(host, |nic| nic.queue_pair_info(qpn));
    pair.unwrap().connection.map(|info| *info)
}

#[test]
fn a_connection_and_a_listener_are_shown() {
    let mut world = world(31);
    let listener = world.hosts[1].driver.listen(any(true), 7).unwrap();
    let counts = world.with_nic(1, |nic| nic.object_counts());
    assert_eq!((counts.listeners, counts.connections), (1, 0));
    let shown = world.with_nic(1, |nic| nic.listeners(0, 10)).items;
    assert_eq!(shown.len(), 1);
    assert_eq!(
        (shown[0].listener, shown[0].address.as_str(), shown[0].port),
        (listener, "::", 4791)
    );
    assert_eq!(
        (shown[0].vlan, shown[0].requests, shown[0].backlog),
        (None, 0, 7)
    );
    let mut link = connect(&mut world, false);
    let [a, b] = [link.qp[0].qpn, link.qp[1].qpn];
    let active = info(&world, 0, a).unwrap();
    assert_eq!(
        (active.local_address.as_str(), active.local_port),
        ("::ffff:10.0.0.1", 40_000)
    );
    assert_eq!(
        (active.remote_address.as_str(), active.remote_port),
        ("::ffff:10.0.0.2", 4791)
    );
    assert_eq!(active.tcp_state, "ESTABLISHED");
    assert_eq!((active.is_active, active.mpa_revision), (true, 2));
    assert!(active.congestion_window > 0 && active.peer_window > 0);
    assert!(active.round_trip_ns.is_some());
    assert_eq!(
        (active.unacknowledged, active.unsent, active.kept),
        (0, 0, 0)
    );
    let passive = info(&world, 1, b).unwrap();
    assert!(!passive.is_active);
    assert_eq!(passive.local_port, 4791);
    let counts = world.with_nic(1, |nic| nic.object_counts());
    assert_eq!(counts.connections, 1);
    // Nothing reaches the peer: octets wait for their acknowledgment.
    world.change(0, |_| None);
    post(&mut world, &mut link, wr::WR_WRITE, 100, |_| {});
    world.run_for(1_000_000);
    assert!(info(&world, 0, a).unwrap().unacknowledged > 100);
}

/// The checker judges the segments of both NICs, with losses.
#[test]
fn segments_are_judged() {
    let mut world = world(32);
    let mut link = connect(&mut world, false);
    world.impair(LinkModel {
        loss: 20_000,
        duplicate: 20_000,
        reorder: 50_000,
        ..LinkModel::PLAIN
    });
    for _ in 0..8 {
        post_recv(&mut world, &mut link, 9000);
        post(&mut world, &mut link, wr::WR_SEND, 9000, |_| {});
        post(&mut world, &mut link, wr::WR_READ, 9000, |_| {});
    }
    world.run();
    let (judged, unjudged) = world.segments();
    assert!(judged > 50, "{judged}");
    assert_eq!(unjudged, 0);
}
