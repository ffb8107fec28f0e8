//! 10,000 iWARP connections without traffic: their memory, and what they cost others. (`iwarp` checks that one has no timer.)

use faultline_abi::qp::QPT_RC;
use faultline_abi::wqe::{WR_READ, WR_WRITE};
use faultline_fabric::link_model::LinkModel;
use faultline_simulation::{QpConfig, Send};
use faultline_simulator::World;

use crate::iwarp::{completed, connect, post, world};

const CONNECTIONS: u32 = 10_000;
/// Memory of a connection with its queue pair, in octets: 2.5 KiB.
const LIMIT: usize = 2560;
const MTU: u16 = 1500;

/// Opens `connections` connections from host 0 to host 1. Their rings have no entries, so they share memory. Returns the memory that the NICs hold for
/// each.
fn open_idle(world: &mut World, connections: u32) -> [usize; 2] {
    let held = |world: &World| [0, 1].map(|host| world.with_nic(host, |nic| nic.held_memory()));
    let cqs = [0, 1].map(|host| world.hosts[host].cq(6).unwrap());
    let before = held(world);
    let free = [0, 1].map(|host| world.hosts[host].driver.next_free());
    for _ in 0..connections {
        let [a, b] = [0, 1].map(|host: usize| {
            let config = QpConfig {
                log_depth: 4,
                ..world.hosts[host].qp_config(QPT_RC, &cqs[host])
            };
            world.hosts[host].driver.create_qp(&config).unwrap().qpn
        });
        world.open_stream([(0, a), (1, b)], MTU);
        (0..2).for_each(|host| world.hosts[host].driver.free_from(free[host]));
    }
    // RTR is repeated once.
    world.run();
    let after = held(world);
    [0, 1].map(|host| (after[host] - before[host]) / connections as usize)
}

#[test]
fn ten_thousand_idle_connections_take_little_memory() {
    let mut world = world(1);
    let each = open_idle(&mut world, CONNECTIONS);
    println!("{each:?} octets for each connection");
    for (host, each) in each.into_iter().enumerate() {
        assert!((1000..=LIMIT).contains(&each), "host {host}: {each} octets");
        // Timers of the set-up end, and none starts again: a pass has none to go through.
        let ended = world.operate(host, |nic, _, memory| {
            let due = || {
                let at = nic.next_deadline()?;
                nic.handle_deadline(at, memory);
                Some(at)
            };
            std::iter::from_fn(due)
                .take(3 * CONNECTIONS as usize)
                .count()
        });
        assert!(ended < 3 * CONNECTIONS as usize, "host {host}: {ended}");
    }
}

/// Queues of messages and work requests, and ranges of lost octets, take memory while they are used.
#[test]
fn a_connection_that_has_been_busy_takes_little_memory_again() {
    let mut world = world(3);
    let held = |world: &World| [0, 1].map(|host| world.with_nic(host, |nic| nic.held_memory()));
    let mut link = connect(&mut world, false);
    let before = held(&world);
    world.impair(LinkModel {
        loss: 50_000,
        reorder: 100_000,
        ..LinkModel::PLAIN
    });
    let mut most = before;
    for _ in 0..50 {
        for opcode in [WR_WRITE, WR_READ] {
            post(&mut world, &mut link, opcode, 30_000, |_| {});
        }
    }
    while world.step(u64::MAX) {
        let now = held(&world);
        (0..2).for_each(|host| most[host] = most[host].max(now[host]));
    }
    assert_eq!(completed(&mut world, 0, &mut link).len(), 100);
    let after = held(&world);
    for host in 0..2 {
        let [before, most, after] = [before, most, after].map(|held| held[host]);
        assert!(most > before + 1000, "host {host}: {most} octets");
        // One place for a work request, which this end has not used before.
        assert!(after <= before + 300, "host {host}: {before} {after}");
    }
}

/// Work that both NICs are charged for a WRITE on one connection beside `connections` idle ones, and the steps that both have taken.
fn work_beside(connections: u32) -> ([u64; 2], u64) {
    let mut world = world(2);
    let mut link = connect(&mut world, false);
    open_idle(&mut world, connections);
    let work = |world: &World| [0, 1].map(|host| world.with_nic(host, |nic| nic.work()));
    let before = work(&world);
    let steps = faultline_nic::steps().unwrap();
    let [from, to] = link.mr;
    let send = Send {
        opcode: WR_WRITE,
        sges: &[(from.va, 5000, from.key)],
        remote_addr: to.va,
        rkey: to.key,
        ..Send::default()
    };
    world.hosts[0].driver.post_send(&mut link.qp[0], &send);
    world.run();
    let after = work(&world);
    let steps = faultline_nic::steps().unwrap() - steps;
    assert_eq!(completed(&mut world, 0, &mut link).len(), 1);
    ([0, 1].map(|host| after[host] - before[host]), steps)
}

#[test]
fn idle_connections_do_not_add_to_the_work_of_others() {
    assert_eq!(work_beside(1000), work_beside(1));
}
