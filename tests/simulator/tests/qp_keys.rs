//! Pitfall `qp_keys`: what becomes of the mappings of many clients of one connection when one of them names a bogus key.
//!
//! 1,000 clients of host 1 share a connection to host 0, each with a mapping (a fast registration of a page) that was made on its queue
//! pair. Host 0 writes to the mappings. One WRITE has a bogus key, so the connection ends and the hosts open another one; clients are not
//! told.

use faultline_abi::admin::{DESTROY_QP, MKEY_FAST_REG};
use faultline_abi::cqe;
use faultline_abi::qp::{
    ACCESS_LOCAL_WRITE, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE, QPS_RTS, QPT_RC,
};
use faultline_abi::wqe::{self as wr, RegMrWqe, SqWqe};
use faultline_abi::{U32, U64};
use faultline_nic::NicConfig;
use faultline_simulation::{Bus, Cq, Mr, Qp, Send};
use faultline_simulator::World;
use zerocopy::IntoBytes;

use crate::common::{create_key, pattern, state};
use crate::iwarp;

const CLIENTS: u32 = 1000;
const PAGE: u64 = 4096;
/// First address of all mappings.
const VA: u64 = 0x10_0000;
const RIGHTS: u32 = ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ;
/// No key has this index.
const BOGUS: u32 = 0x00ff_ff00;
const LEN: u32 = 64;

/// A protocol and how a connection is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Roce,
    Iwarp,
}

/// The connection that all clients share.
struct Shared {
    cq: [Cq; 2],
    qp: [Qp; 2],
}

struct Node {
    world: World,
    protocol: Protocol,
    shared: Shared,
    source: Mr,
    /// Keys of the clients, each for a page of its own.
    keys: Vec<u32>,
    /// First page of the clients' memory, and the list of one page.
    pages: u64,
    list: u64,
    /// Connections that have been opened.
    connections: u32,
    /// Where the memory of a connection begins, by host.
    free: [u64; 2],
}

fn open(world: &mut World, protocol: Protocol) -> Shared {
    let cq = [0, 1].map(|host| world.hosts[host].cq(6).unwrap());
    let qp = [0, 1].map(|host| world.hosts[host].qp(QPT_RC, &cq[host]).unwrap());
    let numbers = [qp[0].qpn, qp[1].qpn];
    match protocol {
        Protocol::Roce => world.connect_qps(QPT_RC, numbers, |_| {}),
        Protocol::Iwarp => world.open_stream([(0, numbers[0]), (1, numbers[1])], 1500),
    }
    Shared { cq, qp }
}

impl Node {
    fn new(protocol: Protocol, qp_keys: bool) -> Self {
        let mut world = World::with_config(2, 1, |config: &mut NicConfig| {
            config.pitfalls.qp_keys = qp_keys;
            if protocol == Protocol::Iwarp {
                iwarp::iwarp(config);
            }
        });
        let keys = (0..CLIENTS).map(|_| create_key(&mut world.hosts[1], MKEY_FAST_REG, 1));
        let keys = keys.collect();
        let driver = &mut world.hosts[1].driver;
        let pages = driver.alloc(u64::from(CLIENTS) * PAGE).unwrap();
        let list = driver.alloc(PAGE).unwrap();
        let source = world.hosts[0].mr(PAGE).unwrap();
        world.hosts[0]
            .driver
            .write_mr(&source, 0, &pattern(PAGE as u32));
        let free = [0, 1].map(|host| world.hosts[host].driver.next_free());
        Self {
            shared: open(&mut world, protocol),
            world,
            protocol,
            source,
            keys,
            pages,
            list,
            connections: 1,
            free,
        }
    }

    /// The completion of a request of a host, which has no other one.
    fn done(&mut self, host: usize) -> u8 {
        self.world.run();
        let found = self.world.completions(host, &mut self.shared.cq[host]);
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].status
    }

    /// Maps the page of a client on the shared queue pair, with the next variant of its key.
    fn map(&mut self, client: u32) -> u8 {
        let key = &mut self.keys[client as usize];
        *key = (*key & !0xff) | ((*key + 1) & 0xff);
        let register = RegMrWqe {
            opcode: wr::WR_REG_MR,
            access: U32::new(RIGHTS),
            key: U32::new(*key),
            iova: U64::new(VA),
            length: U64::new(PAGE),
            list: U64::new(self.list),
            num_pages: U32::new(1),
            page_shift: U32::new(12),
            ..RegMrWqe::default()
        };
        let page = self.pages + u64::from(client) * PAGE;
        let driver = &mut self.world.hosts[1].driver;
        driver.bus.write(self.list, &page.to_le_bytes());
        driver.post_raw_send(&mut self.shared.qp[1], register.as_bytes());
        self.done(1)
    }

    fn invalidate(&mut self, client: u32) -> u8 {
        let invalidate = SqWqe {
            opcode: wr::WR_LOCAL_INV,
            rkey: U32::new(self.keys[client as usize]),
            ..SqWqe::default()
        };
        let driver = &mut self.world.hosts[1].driver;
        driver.post_raw_send(&mut self.shared.qp[1], invalidate.as_bytes());
        self.done(1)
    }

    /// Host 0 writes to a key. Returns true if the connection lasts. (A WRITE of iWARP completes before the peer has looked at its key.)
    fn write(&mut self, key: u32) -> bool {
        let send = Send {
            opcode: wr::WR_WRITE,
            sges: &[(self.source.va, LEN, self.source.key)],
            remote_addr: VA + 100,
            rkey: key,
            ..Send::default()
        };
        let [qp, _] = &mut self.shared.qp;
        self.world.hosts[0].driver.post_send(qp, &send);
        self.world.run();
        let found = self.world.completions(0, &mut self.shared.cq[0]);
        assert_eq!(found.len(), 1, "{found:?}");
        let lasts = state(&mut self.world, 0, &self.shared.qp[0]) == QPS_RTS;
        if self.protocol == Protocol::Roce {
            let expected = if lasts {
                cqe::SUCCESS
            } else {
                cqe::REM_ACCESS_ERR
            };
            assert_eq!(found[0].status, expected);
        }
        lasts
    }

    /// Host 0 writes to the mapping of a client. Returns true if the data has arrived; otherwise the connection has ended.
    fn reaches(&mut self, client: u32) -> bool {
        let at = self.pages + u64::from(client) * PAGE + 100;
        let nothing = [0; LEN as usize];
        self.world.hosts[1].driver.bus.write(at, &nothing);
        let lasts = self.write(self.keys[client as usize]);
        let mut found = nothing;
        self.world.hosts[1].driver.bus.read(at, &mut found);
        let expected = if lasts {
            pattern(LEN)
        } else {
            nothing.to_vec()
        };
        assert_eq!(found, expected[..]);
        lasts
    }

    /// The hosts open another connection in place of one that has ended.
    fn reconnect(&mut self) {
        for host in 0..2 {
            let qpn = self.shared.qp[host].qpn;
            let driver = &mut self.world.hosts[host].driver;
            driver.command(DESTROY_QP, qpn, &()).unwrap();
            driver.free_from(self.free[host]);
        }
        self.world.run();
        self.shared = open(&mut self.world, self.protocol);
        self.connections += 1;
    }

    /// The clients that host 0 does not reach. Each of them costs a connection.
    fn lost(&mut self, clients: impl Iterator<Item = u32>) -> u32 {
        let mut lost = 0;
        for client in clients {
            if !self.reaches(client) {
                lost += 1;
                self.reconnect();
            }
        }
        lost
    }
}

/// Mappings that one bogus key takes with it, and connections of the run.
fn one_bogus_key(protocol: Protocol, qp_keys: bool) -> (u32, u32) {
    let mut node = Node::new(protocol, qp_keys);
    for client in 0..CLIENTS {
        assert_eq!(node.map(client), cqe::SUCCESS);
    }
    assert_eq!(node.lost(0..CLIENTS), 0);
    assert!(!node.write(BOGUS));
    node.reconnect();
    // Those who noticed map again; one in ten had no transfer under way, and keeps its key.
    let (noticed, unaware): (Vec<u32>, Vec<u32>) = (0..CLIENTS).partition(|client| client % 10 > 0);
    let lost = node.lost(unaware.into_iter());
    if qp_keys {
        for client in noticed.iter().take(10) {
            assert_eq!(node.map(*client), cqe::SUCCESS, "a lost mapping is free");
            assert!(node.reaches(*client));
        }
    } else {
        assert_eq!(node.lost(noticed.into_iter()), 0);
    }
    (lost, node.connections)
}

#[test]
fn one_bogus_key_takes_all_mappings_with_it() {
    for protocol in [Protocol::Roce, Protocol::Iwarp] {
        // The mappings of the hundred that did not notice, and a connection for each.
        assert_eq!(one_bogus_key(protocol, true), (100, 102), "{protocol:?}");
    }
}

#[test]
fn without_the_pitfall_one_bogus_key_takes_no_mapping_with_it() {
    for protocol in [Protocol::Roce, Protocol::Iwarp] {
        assert_eq!(one_bogus_key(protocol, false), (0, 2), "{protocol:?}");
    }
}

/// A mapping made on one queue pair, and another queue pair of its protection domain.
#[test]
fn the_other_queue_pair_can_use_and_invalidate_a_key_only_without_the_pitfall() {
    for protocol in [Protocol::Roce, Protocol::Iwarp] {
        for qp_keys in [false, true] {
            let mut node = Node::new(protocol, qp_keys);
            assert_eq!(node.map(0), cqe::SUCCESS);
            let other = open(&mut node.world, protocol);
            let first = std::mem::replace(&mut node.shared, other);
            let other_works = node.invalidate(0) == cqe::SUCCESS;
            assert_eq!(other_works, !qp_keys, "{protocol:?}");
            node.shared = first;
            // Its own queue pair has it still, if the other one could not take it.
            assert_eq!(node.reaches(0), qp_keys, "{protocol:?}");
            if qp_keys {
                assert_eq!(node.invalidate(0), cqe::SUCCESS);
                assert!(!node.reaches(0));
            }
        }
    }
}
