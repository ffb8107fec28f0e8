//! A guest changes its memory while the device reads it. Every value is read once, so the device acts on the value that
//! it has checked, and a change harms only the guest's own data.

use std::collections::BTreeMap;

use faultline_abi::admin::Counter;
use faultline_abi::cqe;
use faultline_abi::qp::*;
use faultline_abi::wqe as wr;
use faultline_simulation::{Cq, Mr, Qp, Rng, Send};
use faultline_simulator::World;
use proptest::prelude::*;

const LEN: u64 = 32 << 10;
const QKEY: u32 = 5;

/// From now on a repeated read of the device at the same address may find other bytes, at random.
fn race(world: &World, host: usize, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut seen: BTreeMap<(u64, usize), (Vec<u8>, u32)> = BTreeMap::new();
    world.race(host, move |addr, read| {
        let (bytes, count) = seen.entry((addr, read.len())).or_default();
        // What has been written meanwhile is another value.
        if bytes != read {
            (*bytes, *count) = (read.to_vec(), 0);
        }
        *count += 1;
        if count.is_multiple_of(2) && rng.chance(700) {
            for _ in 0..=rng.below(4) {
                let at = rng.below(read.len() as u64) as usize;
                if let Some(byte) = read.get_mut(at) {
                    *byte = rng.next_u64() as u8;
                }
            }
        }
    });
}

/// A queue pair at host 0, which races, and one at host 1, which does not.
struct Ends {
    kind: u8,
    cq: [Cq; 2],
    qp: [Qp; 2],
    mr: [Mr; 2],
    ah: [u32; 2],
    sends: [usize; 2],
    receives: [usize; 2],
}

impl Ends {
    fn new(world: &mut World, kind: u8) -> Self {
        let cq = [0, 1].map(|host: usize| world.hosts[host].cq(9).unwrap());
        let qp = [0, 1].map(|host: usize| world.hosts[host].qp(kind, &cq[host]).unwrap());
        let mr = [0, 1].map(|host: usize| world.hosts[host].mr(LEN).unwrap());
        let ah = [0, 1].map(|host: usize| {
            let path = world.path(1 - host, qp[1 - host].qpn);
            let (pd, mac) = (world.hosts[host].pd, world.hosts[host].mac);
            let driver = &mut world.hosts[host].driver;
            match kind {
                QPT_RC | QPT_UC => driver.connect(qp[host].qpn, kind, &path).unwrap(),
                _ => driver.activate(qp[host].qpn, kind, QKEY).unwrap(),
            }
            if kind == QPT_RAW {
                driver.set_netdev(mac, 1500, qp[host].qpn).unwrap();
            }
            driver.create_ah(pd, path.av()).unwrap()
        });
        Self {
            kind,
            cq,
            qp,
            mr,
            ah,
            sends: [0; 2],
            receives: [0; 2],
        }
    }

    fn receive(&mut self, world: &mut World, rng: &mut Rng, host: usize) {
        let mr = self.mr[host];
        let len = 64 + rng.below(2000) as u32;
        let sge = (mr.va + rng.below(LEN - 4096), len, mr.key);
        let tag = self.receives[host] as u32;
        let driver = &mut world.hosts[host].driver;
        driver.post_recv(&mut self.qp[host], tag, &[sge, sge, sge]);
        self.receives[host] += 1;
    }

    fn send(&mut self, world: &mut World, rng: &mut Rng, host: usize) {
        let (from, to) = (self.mr[host], self.mr[1 - host]);
        let inline = [rng.next_u64() as u8; 60];
        let opcodes: &[u8] = match self.kind {
            QPT_RC => &[
                wr::WR_SEND,
                wr::WR_SEND_IMM,
                wr::WR_WRITE,
                wr::WR_WRITE_IMM,
                wr::WR_READ,
                wr::WR_FETCH_ADD,
                wr::WR_COMP_SWAP,
            ],
            QPT_UC => &[wr::WR_SEND, wr::WR_SEND_IMM, wr::WR_WRITE],
            QPT_UD => &[wr::WR_SEND, wr::WR_SEND_IMM],
            _ => &[wr::WR_RAW],
        };
        let opcode = opcodes[rng.below(opcodes.len() as u64) as usize];
        let raw = self.kind == QPT_RAW;
        let len = match opcode {
            wr::WR_FETCH_ADD | wr::WR_COMP_SWAP => 8,
            _ if raw => 60 + rng.below(1400) as u32,
            _ => rng.below(1000) as u32,
        };
        let at = if raw { 0 } else { rng.below(LEN / 2) };
        let mss = if raw && rng.chance(300) { 100 } else { 0u64 };
        if raw {
            self.write_frame(world, rng, host, len, mss > 0);
        }
        let inlined = rng.chance(200) && matches!(opcode, wr::WR_SEND | wr::WR_WRITE);
        let sges = [(from.va + at, len, from.key)];
        let send = Send {
            opcode,
            flags: if raw && rng.chance(300) || mss > 0 {
                wr::WR_FLAG_CSUM
            } else {
                0
            },
            inline: inlined.then_some(&inline[..]),
            sges: if inlined { &[] } else { &sges },
            remote_addr: (to.va + 7) & !7,
            rkey: to.key,
            ah: if self.kind == QPT_UD {
                self.ah[host]
            } else {
                0
            },
            remote_qpn: self.qp[1 - host].qpn,
            qkey: QKEY,
            compare_add: if raw {
                mss << 32 | (mss.min(1) * 54) << 48
            } else {
                0
            },
            ..Send::default()
        };
        world.hosts[host]
            .driver
            .post_send(&mut self.qp[host], &send);
        self.sends[host] += 1;
    }

    /// A TCP or UDP packet for the other host.
    fn write_frame(&self, world: &mut World, rng: &mut Rng, host: usize, len: u32, tcp: bool) {
        let mut frame = [world.hosts[1 - host].mac.0, world.hosts[host].mac.0].concat();
        frame.extend([8, 0, 0x45, 0]);
        frame.extend((len as u16 - 14).to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, if tcp { 6 } else { 17 }, 0, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0x12, 0x34, 0x56, 0x78]);
        if tcp {
            frame.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 1, 2, 0, 0, 0, 0]);
        } else {
            frame.extend((len as u16 - 34).to_be_bytes());
            frame.extend([0, 0]);
        }
        frame.resize(len as usize, rng.next_u64() as u8);
        let mr = self.mr[host];
        world.hosts[host].driver.write_mr(&mr, 0, &frame);
    }

    /// Ends both queue pairs; every work request has completed once, in its order.
    fn end(&mut self, world: &mut World) {
        for host in 0..2 {
            let driver = &mut world.hosts[host].driver;
            driver.set_state(self.qp[host].qpn, QPS_ERR).unwrap();
        }
        world.run();
        for host in 0..2 {
            let found = world.completions(host, &mut self.cq[host]);
            let is_receive =
                |entry: &cqe::Cqe| matches!(entry.opcode, cqe::RECV | cqe::RECV_RDMA_WITH_IMM);
            let sends: Vec<u32> = found
                .iter()
                .filter(|entry| !is_receive(entry))
                .map(|entry| entry.wqe.get())
                .collect();
            let expected: Vec<u32> = (0..self.sends[host] as u32).collect();
            assert_eq!(sends, expected, "kind {} host {host}", self.kind);
            // How many receives are posted is in memory: host 0 may find other numbers there than its own.
            let receives = found.len() - sends.len();
            assert!(host == 0 || receives == self.receives[host], "{receives}");
        }
    }
}

fn neighbours_are_unharmed(world: &mut World, pair: &mut (Cq, Qp, Mr, Mr), salt: u8) {
    let bytes: Vec<u8> = (0..9000u32)
        .map(|i| (i as u8).wrapping_mul(3) ^ salt)
        .collect();
    let (cq, qp, from, to) = pair;
    world.hosts[1].driver.write_mr(from, 1, &bytes);
    let send = Send {
        opcode: wr::WR_WRITE,
        sges: &[(from.va + 1, 9000, from.key)],
        remote_addr: to.va + 5,
        rkey: to.key,
        ..Send::default()
    };
    world.hosts[1].driver.post_send(qp, &send);
    world.run();
    let found = world.completions(1, cq);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].status, cqe::SUCCESS);
    assert!(world.hosts[2].driver.read_mr(to, 5, 9000) == bytes);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_that_changes_between_two_reads_harms_its_guest_only(seed: u64) {
        let mut rng = Rng::new(seed);
        let mut world = World::new(3, 1);
        let cq = [1, 2].map(|host: usize| world.hosts[host].cq(8).unwrap());
        let qp = [0, 1].map(|i| world.hosts[i + 1].qp(QPT_RC, &cq[i]).unwrap());
        let mr = [1, 2].map(|host: usize| world.hosts[host].mr(LEN).unwrap());
        for i in 0..2 {
            let path = world.path(2 - i, qp[1 - i].qpn);
            world.hosts[i + 1].driver.connect(qp[i].qpn, QPT_RC, &path).unwrap();
        }
        let ([cq, _], [qp, _], [from, to]) = (cq, qp, mr);
        let mut pair = (cq, qp, from, to);
        if rng.chance(800) {
            world.hand_over_by_reference();
        }
        race(&world, 0, seed ^ 0x5eed);
        for kind in [QPT_RC, QPT_UC, QPT_UD, QPT_RAW] {
            let mut ends = Ends::new(&mut world, kind);
            for _ in 0..3 {
                for _ in 0..rng.below(20) {
                    let host = rng.below(2) as usize;
                    match rng.chance(400) {
                        true => ends.receive(&mut world, &mut rng, host),
                        false => ends.send(&mut world, &mut rng, host),
                    }
                }
                world.run_for(1_000_000);
            }
            ends.end(&mut world);
            neighbours_are_unharmed(&mut world, &mut pair, seed as u8);
        }
        prop_assert_eq!(world.hosts[1].driver.counter(Counter::rx_malformed).unwrap(), 0);
    }
}
