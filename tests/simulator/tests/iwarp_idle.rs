//! 10,000 iWARP connections without traffic: their memory, and what they cost others. (`iwarp` checks that one has no timer.)

use faultline_abi::qp::QPT_RC;
use faultline_abi::wqe::WR_WRITE;
use faultline_simulation::{QpConfig, Send};
use faultline_simulator::World;

use crate::iwarp::{completed, connect, world};

const CONNECTIONS: u32 = 10_000;
/// Memory of a connection with its queue pair, in octets: 2.75 KiB.
const LIMIT: usize = 2816;
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
    }
}

/// Work that both NICs are charged for a WRITE on one connection beside `connections` idle ones.
fn work_beside(connections: u32) -> [u64; 2] {
    let mut world = world(2);
    let mut link = connect(&mut world, false);
    open_idle(&mut world, connections);
    let work = |world: &World| [0, 1].map(|host| world.with_nic(host, |nic| nic.work()));
    let before = work(&world);
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
    assert_eq!(completed(&mut world, 0, &mut link).len(), 1);
    [0, 1].map(|host| after[host] - before[host])
}

#[test]
fn idle_connections_do_not_add_to_the_work_of_others() {
    assert_eq!(work_beside(1000), work_beside(1));
}
