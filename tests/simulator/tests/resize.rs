//! Shared receive queues that move to another ring.

use faultline_abi::admin::{RESIZE_SRQ, ResizeSrq, RingDesc};
use faultline_abi::qp::QPT_RC;
use faultline_abi::wqe as wr;
use faultline_abi::{Status, U32, U64, cqe};
use faultline_simulation::{Cq, Error, Mr, Qp, QpConfig, Rng, Send, Srq};
use faultline_simulator::{World, expect_cqe};

struct Setup {
    world: World,
    cq: [Cq; 2],
    requester: Qp,
    srq: Srq,
    mr: Mr,
    /// Tag of the next request, and of the oldest that is posted.
    next: u32,
    oldest: u32,
}

impl Setup {
    fn new(limit: u32) -> Self {
        let mut world = World::new(2, 1);
        let cq = [0, 1].map(|i| world.hosts[i].cq(10).unwrap());
        let pd = world.hosts[1].pd;
        let mr = world.hosts[1].mr(4096).unwrap();
        let driver = &mut world.hosts[1].driver;
        let srq = driver.create_srq(pd, 0, 2, 3, limit).unwrap();
        let config = QpConfig {
            srqn: Some(srq.srqn),
            ..world.hosts[1].qp_config(QPT_RC, &cq[1])
        };
        let responder = world.hosts[1].driver.create_qp(&config).unwrap();
        let requester = world.hosts[0].qp(QPT_RC, &cq[0]).unwrap();
        for (from, qpn, peer) in [
            (0, requester.qpn, responder.qpn),
            (1, responder.qpn, requester.qpn),
        ] {
            let path = world.path(1 - from, peer);
            let driver = &mut world.hosts[from].driver;
            driver.connect(qpn, QPT_RC, &path).unwrap();
        }
        Self {
            world,
            cq,
            requester,
            srq,
            mr,
            next: 0,
            oldest: 0,
        }
    }

    fn post(&mut self) {
        let mr = self.mr;
        // Two pieces, so that an entry that is cut short shows.
        let sges = [(mr.va, 3, mr.key), (mr.va + 100, 61, mr.key)];
        let driver = &mut self.world.hosts[1].driver;
        driver.post_srq_recv(&mut self.srq, self.next, &sges);
        self.next += 1;
    }

    fn use_one(&mut self) {
        let send = Send {
            opcode: wr::WR_SEND,
            inline: Some(b"shared"),
            ..Send::default()
        };
        let driver = &mut self.world.hosts[0].driver;
        driver.post_send(&mut self.requester, &send);
        self.world.run();
        expect_cqe(&mut self.world, 0, &mut self.cq[0], cqe::SUCCESS);
        let got = expect_cqe(&mut self.world, 1, &mut self.cq[1], cqe::SUCCESS);
        assert_eq!(got.wqe.get(), self.oldest);
        self.oldest += 1;
        let driver = &self.world.hosts[1].driver;
        assert_eq!(driver.read_mr(&self.mr, 0, 3), b"sha");
        assert_eq!(driver.read_mr(&self.mr, 100, 3), b"red");
    }

    fn posted(&self) -> u32 {
        self.next - self.oldest
    }

    fn resize(&mut self, log_depth: u8) -> Result<(), Status> {
        let driver = &mut self.world.hosts[1].driver;
        match driver.resize_srq(&mut self.srq, log_depth) {
            Err(Error::Refused(status)) => Err(status),
            other => {
                other.unwrap();
                Ok(())
            }
        }
    }
}

/// Requests stay in order and none is lost, for any number of taken requests and any position of
/// the rings.
#[test]
fn posted_requests_move_along() {
    let mut s = Setup::new(0);
    let mut rng = Rng::new(7);
    let mut log_depth = 2;
    for _ in 0..60 {
        for _ in 0..rng.below(7) {
            if s.posted() < 1 << log_depth {
                s.post();
            }
        }
        for _ in 0..rng.below(5).min(u64::from(s.posted())) {
            s.use_one();
        }
        let wanted = rng.below(6) as u8;
        let fits = s.posted() <= 1 << wanted;
        // proves: IB_DEVICE_SRQ_RESIZE, IBV_SRQ_MAX_WR
        assert_eq!(
            s.resize(wanted),
            if fits { Ok(()) } else { Err(Status::InUse) }
        );
        if fits {
            log_depth = wanted;
        }
    }
    assert!(s.oldest > 60, "only {} were used", s.oldest);
    while s.posted() > 0 {
        s.use_one();
    }
}

#[test]
fn too_small_rings_are_refused_without_a_change() {
    let mut s = Setup::new(3);
    for _ in 0..4 {
        s.post();
    }
    // The limit would never be reached.
    assert_eq!(s.resize(1), Err(Status::BadAttribute));
    assert_eq!(s.resize(16), Err(Status::BadDepth));
    let srqn = s.srq.srqn;
    let driver = &mut s.world.hosts[1].driver;
    let mut refused = |srqn, cmd: &ResizeSrq| match driver.command(RESIZE_SRQ, srqn, cmd) {
        Err(Error::Refused(status)) => status,
        other => panic!("not refused: {other:?}"),
    };
    let nowhere = ResizeSrq {
        ring: RingDesc {
            addr: U64::new(1 << 50),
            num_pages: U32::new(1),
            page_shift: 12,
            ..RingDesc::default()
        },
        log_depth: 3,
        ..ResizeSrq::default()
    };
    assert_eq!(refused(srqn, &nowhere), Status::DmaError);
    let reserved = ResizeSrq {
        reserved: [0, 0, 0, 0, 0, 0, 1],
        ..nowhere
    };
    assert_eq!(refused(srqn, &reserved), Status::ReservedNotZero);
    let short = ResizeSrq {
        log_depth: 8,
        ..nowhere
    };
    assert_eq!(refused(srqn, &short), Status::BadRing);
    assert_eq!(refused(srqn + 99, &nowhere), Status::BadSrq);
    for _ in 0..4 {
        s.use_one();
    }
    assert_eq!(s.resize(3), Ok(()));
    s.post();
    s.use_one();
}
