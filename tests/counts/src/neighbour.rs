//! How long the command of a neighbour waits beside frames that each end a connection with deep queues, in passes of the engine: the
//! frames come from a NIC of the same engine, out of a modelled link, from another engine, or through a port. A pass takes the commands of
//! all NICs, and has a bounded amount of work (`device/simulation/tests/process.rs` compares it with the bound).

use faultline_abi::cqe::WR_FLUSH_ERR;
use faultline_abi::qp::QPT_RC;
use faultline_abi::wqe::WR_SEND;
use faultline_simulation::{Connect, Cq, CqConfig, Qp, Send};

use crate::fabric::{Fabric, Host, Sizes, path, queue_pair, region};

/// Connections of the flood.
const PAIRS: usize = 40;
const LOG_DEPTH: u8 = 10;
/// Receives that each connection flushes: those behind the one that fails.
const FLUSHED: usize = (1 << LOG_DEPTH) - 2;

/// A completion queue for all connections, and their queue pairs.
fn queue_pairs(host: &mut Host) -> (Cq, Vec<Qp>) {
    let eq = host.driver.create_eq(0, 2, 6).unwrap();
    let cq = CqConfig {
        log_depth: 16,
        eqn: eq.eqn,
        uctx: host.uctx,
    };
    let cq = host.driver.create_cq(cq).unwrap();
    let qps = (0..PAIRS).map(|_| queue_pair(host, QPT_RC, &cq, LOG_DEPTH).unwrap());
    let qps = qps.collect();
    (cq, qps)
}

/// Commands of a neighbour that were executed during the flood, and the most passes that one took.
fn commands_beside_a_flood(sizes: &Sizes, [victim, neighbour]: [usize; 2]) -> (usize, u32) {
    let mut fabric = Fabric::new(sizes).unwrap();
    let (_, mut from) = queue_pairs(&mut fabric.hosts[0]);
    let (mut cq, mut to) = queue_pairs(&mut fabric.hosts[victim]);
    let source = region(&mut fabric.hosts[0], 4096).unwrap();
    let target = region(&mut fabric.hosts[victim], 4096).unwrap();
    for (from, to) in from.iter().zip(&mut to) {
        let patient = |way: Connect| Connect { timeout: 20, ..way };
        let there = patient(path(&fabric.hosts[victim], to));
        let back = patient(path(&fabric.hosts[0], from));
        for (host, qp, path) in [(0, from, there), (victim, to, back)] {
            let driver = &mut fabric.hosts[host].driver;
            driver.connect(qp.qpn, QPT_RC, &path).unwrap();
        }
        for tag in 0..=FLUSHED as u32 {
            let driver = &mut fabric.hosts[victim].driver;
            driver.post_recv(to, tag, &[(target.va, 8, target.key)]);
        }
    }
    fabric.settle().unwrap();
    // Longer than a receive: it ends the connection.
    let send = Send {
        opcode: WR_SEND,
        sges: &[(source.va, 100, source.key)],
        ..Send::default()
    };
    for from in &mut from {
        fabric.hosts[0].driver.post_send(from, &send);
    }
    let (mut flushed, mut commands, mut most) = (0, 0, 0);
    while flushed < PAIRS * FLUSHED {
        let before = fabric.processes().steps;
        fabric.hosts[neighbour].driver.alloc_pd().unwrap();
        let passes = fabric.processes().steps - before;
        assert!(commands < 1000, "{flushed} receives are flushed");
        let old = flushed;
        while let Some(done) = fabric.hosts[victim].driver.poll(&mut cq) {
            flushed += usize::from(done.status == WR_FLUSH_ERR);
        }
        if flushed > old {
            commands += 1;
            most = most.max(passes);
        }
    }
    (commands, most)
}

#[test]
fn a_command_of_a_neighbour_takes_one_pass() {
    let sizes = Sizes {
        nics: 3,
        memory: 64 << 20,
        ..Sizes::default()
    };
    let delayed = Sizes {
        delay_ns: 100_000,
        ..sizes
    };
    let engines = Sizes {
        engines: 2,
        nics: 4,
        ..sizes
    };
    let port = Sizes {
        processes: 2,
        ports: 1,
        nics: 2,
        ..sizes
    };
    for (source, sizes, hosts) in [
        ("a NIC", sizes, [1, 2]),
        ("a modelled link", delayed, [1, 2]),
        ("another engine", engines, [1, 3]),
        ("a port", port, [2, 3]),
    ] {
        let (commands, most) = commands_beside_a_flood(&sizes, hosts);
        assert_eq!(most, 1, "{source}");
        assert!(commands >= 3, "{source}: the flood had {commands} passes");
    }
}
