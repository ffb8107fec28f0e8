//! Extended reliable connections (IBTA annex A14): initiators, targets, and the shared receive queues that requests
//! name.

use faultline_abi::admin::{Counter, DEALLOC_XRCD, DESTROY_QP, DESTROY_SRQ};
use faultline_abi::qp::*;
use faultline_abi::{Status, cqe, event, wqe as wr};
use faultline_fabric::link_model::LinkModel;
use faultline_simulation::{Connect, Cq, Error, Mr, Qp, Rng, Send, Srq};
use faultline_simulator::{HostPager, World, expect_cqe, pager};

const LEN: u64 = 256 << 10;

/// Host 0 has an initiator; host 1 a target and two SRQs with a CQ each, in one domain.
struct Xrc {
    world: World,
    ini: Qp,
    ini_cq: Cq,
    tgt: u32,
    xrcd: u32,
    srqs: [(Srq, Cq); 2],
    mr: [Mr; 2],
}

impl Xrc {
    fn new(mut world: World, change: impl Fn(&mut Connect)) -> Self {
        let ini_cq = world.hosts[0].cq(8).unwrap();
        let config = world.hosts[0].qp_config(QPT_XRC_INI, &ini_cq);
        let ini = world.hosts[0].driver.create_qp(&config).unwrap();
        let xrcd = world.hosts[1].driver.alloc_xrcd().unwrap();
        let tgt = world.hosts[1].driver.create_xrc_target(xrcd).unwrap();
        let srqs = [0, 1].map(|_| {
            let cq = world.hosts[1].cq(8).unwrap();
            let pd = world.hosts[1].pd;
            let srq = world.hosts[1].driver.create_xrc_srq(pd, xrcd, cq.cqn);
            (srq.unwrap(), cq)
        });
        let mr = [0, 1].map(|host| world.hosts[host].mr(LEN).unwrap());
        let mut path = world.path(1, tgt);
        change(&mut path);
        let driver = &mut world.hosts[0].driver;
        driver.connect(ini.qpn, QPT_XRC_INI, &path).unwrap();
        let mut path = world.path(0, ini.qpn);
        change(&mut path);
        let driver = &mut world.hosts[1].driver;
        driver.connect(tgt, QPT_XRC_TGT, &path).unwrap();
        Self {
            world,
            ini,
            ini_cq,
            tgt,
            xrcd,
            srqs,
            mr,
        }
    }

    fn post(&mut self, opcode: u8, srqn: u32, local: (u64, u32), remote: u64) {
        let [a, b] = self.mr;
        let send = Send {
            opcode,
            sges: &[(a.va + local.0, local.1, a.key)],
            remote_addr: b.va + remote,
            rkey: b.key,
            imm: *b"xrc!",
            compare_add: 3,
            remote_qpn: srqn,
            ..Send::default()
        };
        self.world.hosts[0].driver.post_send(&mut self.ini, &send);
    }

    fn post_recv(&mut self, n: usize, tag: u32, at: u64, len: u32) {
        let sge = (self.mr[1].va + at, len, self.mr[1].key);
        let srq = &mut self.srqs[n].0;
        self.world.hosts[1].driver.post_srq_recv(srq, tag, &[sge]);
    }
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| ((i + seed).wrapping_mul(0x9e37_79b9) >> 9) as u8)
        .collect()
}

#[test]
fn every_operation_on_either_queue() {
    for by_reference in [false, true] {
        let world = World::new(2, 1);
        if by_reference {
            world.hand_over_by_reference();
        }
        let mut x = Xrc::new(world, |_| {});
        let data = pattern(1, 9000);
        let a = x.mr[0];
        x.world.hosts[0].driver.write_mr(&a, 0, &data);
        for n in [1, 0] {
            let srqn = x.srqs[n].0.srqn;
            for opcode in [wr::WR_SEND, wr::WR_SEND_IMM, wr::WR_WRITE_IMM] {
                x.post_recv(n, 7, 20_000, 9000);
                x.post(opcode, srqn, (0, 9000), 20_000);
                x.world.run();
                expect_cqe(&mut x.world, 0, &mut x.ini_cq, cqe::SUCCESS);
                let found = expect_cqe(&mut x.world, 1, &mut x.srqs[n].1, cqe::SUCCESS);
                assert_eq!((found.wqe.get(), found.byte_len.get()), (7, 9000));
                assert_eq!((found.qpn.get(), found.srqn.get()), (x.tgt, srqn));
                assert_eq!(found.flags & cqe::CQE_XRC, cqe::CQE_XRC);
                assert_eq!(found.flags & cqe::CQE_IMM != 0, opcode != wr::WR_SEND);
                let b = x.mr[1];
                assert!(x.world.hosts[1].driver.read_mr(&b, 20_000, 9000) == data);
                x.world.hosts[1].driver.write_mr(&b, 20_000, &[0; 9000]);
            }
            for (opcode, len) in [
                (wr::WR_WRITE, 9000),
                (wr::WR_READ, 9000),
                (wr::WR_FETCH_ADD, 8),
            ] {
                let at = 8 - x.mr[1].va % 8 + 40_000;
                x.post(opcode, srqn, (if len == 8 { 100_000 } else { 0 }, len), at);
                x.world.run();
                expect_cqe(&mut x.world, 0, &mut x.ini_cq, cqe::SUCCESS);
            }
        }
        // WRITE, then READ back over the source, then two additions; the second found the first.
        assert!(x.world.hosts[0].driver.read_mr(&a, 0, 9000) == data);
        let mut first = data[..8].to_vec();
        assert_eq!(x.world.hosts[0].driver.read_mr(&a, 100_000, 8), first);
        first[0] = first[0].wrapping_add(3);
        for (_, cq) in &mut x.srqs {
            assert!(x.world.completions(1, cq).is_empty());
        }
    }
}

#[test]
fn messages_come_once_and_in_order_in_spite_of_losses() {
    for seed in 0..10 {
        let mut x = Xrc::new(World::new(2, seed), |c| {
            c.timeout = 8;
            c.path_mtu = 1;
            c.min_rnr_timer = 1;
        });
        x.world.impair(LinkModel {
            loss: 40_000,
            duplicate: 40_000,
            reorder: 40_000,
            corrupt: 20_000,
            ..LinkModel::PLAIN
        });
        let mut rng = Rng::new(seed);
        let mut expected = [vec![], vec![]];
        for tag in 0..40u32 {
            let n = rng.below(2) as usize;
            let len = rng.below(3000) as u32;
            x.post_recv(n, tag, u64::from(tag) * 3000, 3000);
            let data = pattern(u64::from(tag), len as usize);
            let a = x.mr[0];
            x.world.hosts[0]
                .driver
                .write_mr(&a, u64::from(tag) * 3000, &data);
            let srqn = x.srqs[n].0.srqn;
            x.post(wr::WR_SEND, srqn, (u64::from(tag) * 3000, len), 0);
            expected[n].push((tag, len));
        }
        x.world.run();
        assert_eq!(x.world.completions(0, &mut x.ini_cq).len(), 40);
        for (n, expected) in expected.iter().enumerate() {
            let found = x.world.completions(1, &mut x.srqs[n].1);
            let found: Vec<(u32, u32)> = found
                .iter()
                .map(|cqe| (cqe.wqe.get(), cqe.byte_len.get()))
                .collect();
            assert_eq!(found, *expected);
            for (tag, len) in found {
                let b = x.mr[1];
                let at = u64::from(tag) * 3000;
                let data = x.world.hosts[1].driver.read_mr(&b, at, len as usize);
                assert!(data == pattern(u64::from(tag), len as usize));
            }
        }
    }
}

#[test]
fn an_empty_queue_answers_not_ready() {
    let mut x = Xrc::new(World::new(2, 1), |c| c.min_rnr_timer = 1);
    let srqn = x.srqs[0].0.srqn;
    x.post(wr::WR_SEND, srqn, (0, 100), 0);
    x.world.run_for(100_000);
    assert!(x.world.completions(0, &mut x.ini_cq).is_empty());
    x.post_recv(1, 1, 0, 100);
    x.world.run_for(100_000);
    assert!(x.world.completions(0, &mut x.ini_cq).is_empty());
    x.post_recv(0, 2, 0, 100);
    x.world.run();
    expect_cqe(&mut x.world, 0, &mut x.ini_cq, cqe::SUCCESS);
    let found = expect_cqe(&mut x.world, 1, &mut x.srqs[0].1, cqe::SUCCESS);
    assert_eq!(found.wqe.get(), 2);
    // proves: IB_DEVICE_RC_RNR_NAK_GEN
    assert!(
        x.world.hosts[1]
            .driver
            .counter(Counter::rnr_nak_sent)
            .unwrap()
            > 0
    );
}

#[test]
fn a_queue_of_another_domain_or_kind_is_refused() {
    for which in 0..4 {
        for opcode in [wr::WR_SEND, wr::WR_WRITE, wr::WR_READ, wr::WR_FETCH_ADD] {
            let mut x = Xrc::new(World::new(2, 1), |_| {});
            let pd = x.world.hosts[1].pd;
            let cqn = x.srqs[0].1.cqn;
            let driver = &mut x.world.hosts[1].driver;
            let other = driver.alloc_xrcd().unwrap();
            let srqn = match which {
                0 => driver.create_xrc_srq(pd, other, cqn).unwrap().srqn,
                1 => driver.create_srq(pd, 0, 4, 2, 0).unwrap().srqn,
                2 => 0,
                _ => 0xff_ffff,
            };
            let at = 8 - x.mr[1].va % 8;
            x.post(opcode, srqn, (0, 8), at);
            x.world.run();
            expect_cqe(&mut x.world, 0, &mut x.ini_cq, cqe::REM_INV_REQ_ERR);
            let b = x.mr[1];
            assert_eq!(x.world.hosts[1].driver.read_mr(&b, at, 8), [0; 8]);
            let events = x.world.hosts[1].driver.async_events();
            assert!(events.contains(&(event::QP_REQUEST_ERROR, x.tgt)));
        }
    }
}

#[test]
fn keys_are_of_the_queues_protection_domain() {
    let mut x = Xrc::new(World::new(2, 1), |_| {});
    let driver = &mut x.world.hosts[1].driver;
    let pd = driver.alloc_pd().unwrap();
    let cqn = x.srqs[0].1.cqn;
    let srq = driver.create_xrc_srq(pd, x.xrcd, cqn).unwrap();
    let good = x.srqs[0].0.srqn;
    x.post(wr::WR_WRITE, good, (0, 8), 0);
    x.world.run();
    expect_cqe(&mut x.world, 0, &mut x.ini_cq, cqe::SUCCESS);
    x.post(wr::WR_WRITE, srq.srqn, (0, 8), 0);
    x.world.run();
    expect_cqe(&mut x.world, 0, &mut x.ini_cq, cqe::REM_ACCESS_ERR);
}

#[test]
fn objects_belong_to_their_domain() {
    let mut x = Xrc::new(World::new(2, 1), |_| {});
    let (xrcd, tgt) = (x.xrcd, x.tgt);
    let srqns = x.srqs.each_ref().map(|(srq, _)| srq.srqn);
    let pd = x.world.hosts[1].pd;
    let cqn = x.srqs[0].1.cqn;
    let driver = &mut x.world.hosts[1].driver;
    let refused = |status| Err(Error::Refused(status));
    let none = [0u8; 0];
    assert_eq!(driver.create_xrc_target(99), refused(Status::BadXrcd));
    let wrong = driver.create_xrc_srq(pd, 99, cqn).map(|srq| srq.srqn);
    assert_eq!(wrong, refused(Status::BadXrcd));
    let wrong = driver
        .create_xrc_srq(pd, xrcd, 0xff_ffff)
        .map(|srq| srq.srqn);
    assert_eq!(wrong, refused(Status::BadCq));
    let dealloc = |driver: &mut faultline_simulation::Driver<_>| {
        driver.command(DEALLOC_XRCD, xrcd, &none).map(|_| 0u32)
    };
    assert_eq!(dealloc(driver), refused(Status::InUse));
    driver.command(DESTROY_QP, tgt, &none).unwrap();
    assert_eq!(dealloc(driver), refused(Status::InUse));
    for srqn in srqns {
        driver.command(DESTROY_SRQ, srqn, &none).unwrap();
    }
    assert_eq!(dealloc(driver), Ok(0));
    assert_eq!(dealloc(driver), refused(Status::BadXrcd));
    // An ordinary queue pair can't use such a queue.
    let xrcd = driver.alloc_xrcd().unwrap();
    let srq = driver.create_xrc_srq(pd, xrcd, cqn).unwrap();
    let cq = x.world.hosts[1].cq(4).unwrap();
    let mut config = x.world.hosts[1].qp_config(QPT_RC, &cq);
    config.srqn = Some(srq.srqn);
    let wrong = x.world.hosts[1].driver.create_qp(&config).map(|qp| qp.qpn);
    assert_eq!(wrong, refused(Status::BadSrq));
}

#[test]
fn memory_may_be_absent_on_both_sides() {
    for opcode in [wr::WR_SEND, wr::WR_WRITE, wr::WR_READ] {
        let mut x = Xrc::new(World::new(2, 1), |_| {});
        let mut pagers = [0, 1].map(|host| {
            let mut pager = HostPager::new(&mut x.world, host, 32, 6);
            pager.register(&mut x.world, 0x7000_0100, 1 << 20);
            pager
        });
        let data = pattern(4, 15_000);
        let source = usize::from(opcode == wr::WR_READ);
        pagers[source].write(&x.world, 0, 5000, &data);
        let [local, remote] = [0, 1].map(|host: usize| pagers[host].sge(0, 5000, 15_000));
        let srq = &mut x.srqs[1].0;
        x.world.hosts[1].driver.post_srq_recv(srq, 5, &[remote]);
        let send = Send {
            opcode,
            sges: &[local],
            remote_addr: remote.0,
            rkey: remote.2,
            remote_qpn: x.srqs[1].0.srqn,
            ..Send::default()
        };
        x.world.hosts[0].driver.post_send(&mut x.ini, &send);
        let [a, b] = &mut pagers;
        pager::run(&mut x.world, &mut [a, b]);
        expect_cqe(&mut x.world, 0, &mut x.ini_cq, cqe::SUCCESS);
        for pager in &pagers {
            assert!(pager.read(&x.world, 0, 5000, 15_000) == data);
            // proves: IBV_ODP_SUPPORT_SRQ_RECV
            assert!(!pager.records.is_empty());
        }
        let received = x.world.completions(1, &mut x.srqs[1].1).len();
        assert_eq!(received, usize::from(opcode == wr::WR_SEND));
        // The requester is told of repaired pages, as with RC.
        let mut counter =
            |host: usize, counter| x.world.hosts[host].driver.counter(counter).unwrap();
        let [sent, taken] = [(1, Counter::ready_notices), (0, Counter::ready_received)]
            .map(|(host, which)| counter(host, which));
        assert!(sent > 0 && sent == taken, "{sent} {taken}");
    }
}
