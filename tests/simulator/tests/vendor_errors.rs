//! Vendor errors of completions as ConnectX adapters have them, for each status that has a published value.

use faultline_abi::cqe;
use faultline_abi::qp::{QPS_ERR, QPT_RC};
use faultline_abi::wqe as wr;
use faultline_nic::VendorErrors;
use faultline_simulation::Send;
use faultline_simulator::{Pair, World};

const LEN: u32 = 4096;

struct Setup {
    world: World,
    pair: Pair,
}

impl Setup {
    fn new(vendor_errors: VendorErrors, kind: u8) -> Self {
        let mut world = World::with_config(2, 1, |config| config.vendor_errors = vendor_errors);
        let pair = world.connect(kind, LEN.into(), |c| {
            (c.rnr_retry, c.retry_cnt) = (1, 1);
        });
        Self { world, pair }
    }

    fn send(&mut self, opcode: u8, (len, lkey): (u32, u32), rkey: u32) {
        let [mr, remote] = self.pair.mr;
        let send = Send {
            opcode,
            sges: &[(mr.va, len, lkey)],
            remote_addr: remote.va,
            rkey,
            ..Send::default()
        };
        let driver = &mut self.world.hosts[0].driver;
        driver.post_send(&mut self.pair.qp[0], &send);
    }

    fn receive(&mut self, len: u32, lkey: u32) {
        let mr = self.pair.mr[1];
        let driver = &mut self.world.hosts[1].driver;
        driver.post_recv(&mut self.pair.qp[1], 1, &[(mr.va, len, lkey)]);
    }

    /// Status and vendor error of the first completion of a host.
    fn first(&mut self, host: usize) -> (u8, u8) {
        self.world.run();
        let found = self.world.completions(host, &mut self.pair.cq[host]);
        (found[0].status, found[0].vendor_err)
    }
}

/// A host, and what goes wrong.
type Case = (usize, fn(&mut Setup));

const CASES: [Case; 10] = [
    // Longer than any message.
    (0, |s| {
        let key = s.pair.mr[0].key;
        s.send(wr::WR_WRITE, ((1 << 30) + 1, key), 0);
    }),
    // No such operation.
    (0, |s| {
        let key = s.pair.mr[0].key;
        s.send(0xee, (8, key), 0);
    }),
    (0, |s| {
        let rkey = s.pair.mr[1].key;
        s.send(wr::WR_WRITE, (8, 0), rkey);
    }),
    (0, |s| {
        let qpn = s.pair.qp[0].qpn;
        s.world.hosts[0].driver.set_state(qpn, QPS_ERR).unwrap();
        let key = s.pair.mr[0].key;
        s.send(wr::WR_SEND, (8, key), 0);
    }),
    // Longer than the receive.
    (0, |s| {
        let [key, remote] = s.pair.mr.map(|mr| mr.key);
        s.receive(7, remote);
        s.send(wr::WR_SEND, (8, key), 0);
    }),
    (0, |s| {
        let key = s.pair.mr[0].key;
        s.send(wr::WR_WRITE, (8, key), 0);
    }),
    // The receive has a wrong key.
    (0, |s| {
        let key = s.pair.mr[0].key;
        s.receive(8, 0);
        s.send(wr::WR_SEND, (8, key), 0);
    }),
    (0, |s| {
        s.world.lose(|_, _| true);
        let key = s.pair.mr[0].key;
        s.send(wr::WR_SEND, (8, key), 0);
    }),
    (0, |s| {
        let key = s.pair.mr[0].key;
        s.send(wr::WR_SEND, (8, key), 0);
    }),
    (1, |s| {
        let [key, remote] = s.pair.mr.map(|mr| mr.key);
        s.receive(7, remote);
        s.send(wr::WR_SEND, (8, key), 0);
    }),
];

#[test]
fn each_status_has_the_published_value() {
    let expected = [
        (cqe::LOC_LEN_ERR, 0x69),
        (cqe::LOC_QP_OP_ERR, 0x6f),
        (cqe::LOC_PROT_ERR, 0x51),
        (cqe::WR_FLUSH_ERR, 0xf9),
        (cqe::REM_INV_REQ_ERR, 0x8a),
        (cqe::REM_ACCESS_ERR, 0x88),
        (cqe::REM_OP_ERR, 0x89),
        (cqe::RETRY_EXC_ERR, 0x81),
        (cqe::RNR_RETRY_EXC_ERR, 0x87),
        // Of receives only that of flushed ones is known.
        (cqe::LOC_LEN_ERR, 0),
    ];
    for ((host, fail), expected) in CASES.into_iter().zip(expected) {
        let mut s = Setup::new(VendorErrors::ConnectX, QPT_RC);
        fail(&mut s);
        assert_eq!(s.first(host), expected);
        let mut s = Setup::new(VendorErrors::Own, QPT_RC);
        fail(&mut s);
        let (status, vendor) = s.first(host);
        // FAULTLINE_VENDOR_ERR_*.
        assert!(status == expected.0 && vendor < 16, "{status} {vendor:#x}");
    }
}

/// A completion without an error has no vendor error.
#[test]
fn success_has_none() {
    let mut s = Setup::new(VendorErrors::ConnectX, QPT_RC);
    let [key, rkey] = s.pair.mr.map(|mr| mr.key);
    s.send(wr::WR_WRITE, (8, key), rkey);
    assert_eq!(s.first(0), (cqe::SUCCESS, 0));
}
