//! What several files of tests ask of a world.

use faultline_abi::admin::{CREATE_MKEY, Counter, CreateMkey};
use faultline_abi::{U32, U64};
use faultline_simulation::Qp;
use faultline_simulator::{Host, World};

/// A counter of a host's NIC.
pub fn counter(world: &mut World, host: usize, counter: Counter) -> u64 {
    world.hosts[host].driver.counter(counter).unwrap()
}

/// The state of a queue pair.
pub fn state(world: &mut World, host: usize, qp: &Qp) -> u8 {
    world.hosts[host].driver.query_qp(qp.qpn).unwrap().state
}

/// Creates a memory key of pages of 4 KiB in the protection domain of a host.
pub fn create_key(host: &mut Host, flags: u32, length: u64) -> u32 {
    let create = CreateMkey {
        pd: U32::new(host.pd),
        flags: U32::new(flags),
        length: U64::new(length),
        page_shift: 12,
        ..CreateMkey::default()
    };
    let answer = host.driver.command(CREATE_MKEY, 0, &create).unwrap();
    answer.handle.get()
}

/// Data that depend on their position.
pub fn pattern(len: u32) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + 1) as u8).collect()
}
