//! What several files of tests ask of a world.

use faultline_abi::admin::Counter;
use faultline_simulation::Qp;
use faultline_simulator::World;

/// A counter of a host's NIC.
pub fn counter(world: &mut World, host: usize, counter: Counter) -> u64 {
    world.hosts[host].driver.counter(counter).unwrap()
}

/// The state of a queue pair.
pub fn state(world: &mut World, host: usize, qp: &Qp) -> u8 {
    world.hosts[host].driver.query_qp(qp.qpn).unwrap().state
}

/// Data that depend on their position.
pub fn pattern(len: u32) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + 1) as u8).collect()
}
