//! Functions that several files of tests use.

use faultline_abi::admin::{CREATE_MKEY, Counter, CreateMkey};
use faultline_abi::qp::QPS_RTS;
use faultline_abi::{U32, U64};
use faultline_simulation::Qp;
use faultline_simulator::{Host, Pair, World};

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

/// State of a queue pair, the PSN that it sends next if it is in state RTS (else 0), and the PSN that it expects.
pub type End = (u8, u32, u32);

/// Both ends of a connection.
pub fn ends(world: &mut World, pair: &Pair) -> [End; 2] {
    [0, 1].map(|host| {
        let attr = world.hosts[host]
            .driver
            .query_qp(pair.qp[host].qpn)
            .unwrap();
        let sent = match attr.state {
            QPS_RTS => attr.sq_psn.get(),
            _ => 0,
        };
        (attr.state, sent, attr.rq_psn.get())
    })
}
