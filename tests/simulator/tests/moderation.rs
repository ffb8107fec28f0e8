//! Completion queues that gather completions before an event.

use faultline_abi::admin::{DESTROY_CQ, DESTROY_QP, MODIFY_CQ, ModifyCq};
use faultline_abi::qp::QPT_RC;
use faultline_abi::wqe as wr;
use faultline_abi::{Status, U16, U32, cqe, event};
use faultline_simulation::{Error, Send};
use faultline_simulator::{Pair, World};

const US: u64 = 1000;

struct Setup {
    world: World,
    pair: Pair,
}

impl Setup {
    /// Host 0's notices wait so.
    fn new(count: u16, period: u16) -> Self {
        let mut world = World::new(2, 1);
        let pair = world.connect(QPT_RC, 4096, |_| {});
        let driver = &mut world.hosts[0].driver;
        driver.moderate_cq(&pair.cq[0], count, period).unwrap();
        world.run();
        Self { world, pair }
    }

    fn arm(&mut self) {
        self.world.hosts[0].driver.arm_cq(&self.pair.cq[0], false);
    }

    /// Posts `count` WRITEs, which complete one by one.
    fn write(&mut self, count: u32, key: u32) {
        let (mr, remote) = (self.pair.mr[0], self.pair.mr[1]);
        let send = Send {
            opcode: wr::WR_WRITE,
            sges: &[(mr.va, 8, key)],
            remote_addr: remote.va,
            rkey: remote.key,
            ..Send::default()
        };
        for _ in 0..count {
            let driver = &mut self.world.hosts[0].driver;
            driver.post_send(&mut self.pair.qp[0], &send);
        }
    }

    fn well(&mut self, count: u32) {
        let key = self.pair.mr[0].key;
        self.write(count, key);
    }

    /// Completions since the last call.
    fn completions(&mut self) -> usize {
        self.world.completions(0, &mut self.pair.cq[0]).len()
    }

    fn notices(&mut self) -> usize {
        let host = &mut self.world.hosts[0];
        std::iter::from_fn(|| host.driver.poll_event(&mut host.eq))
            .inspect(|notice| assert_eq!(notice.kind, event::COMPLETION))
            .count()
    }
}

#[test]
fn a_notice_comes_with_the_last_completion_of_the_count() {
    let mut s = Setup::new(4, 50_000);
    for _ in 0..3 {
        s.arm();
        s.well(3);
        s.world.run_for(1000 * US);
        assert_eq!((s.completions(), s.notices()), (3, 0));
        s.well(1);
        s.world.run_for(1000 * US);
        assert_eq!((s.completions(), s.notices()), (1, 1));
        // Nothing is left that would tell later.
        s.world.run();
        assert_eq!(s.notices(), 0);
    }
}

#[test]
fn a_notice_comes_at_the_end_of_the_period_if_they_are_fewer() {
    for count in [0, 100] {
        let mut s = Setup::new(count, 500);
        for _ in 0..3 {
            s.arm();
            // The first one counts: later ones don't delay the notice.
            for _ in 0..4 {
                s.well(1);
                s.world.run_for(100 * US);
                assert_eq!((s.completions(), s.notices()), (1, 0));
            }
            s.world.run_for(200 * US);
            // proves: IBV_CQ_ATTR_MODERATE
            assert_eq!(s.notices(), 1);
            s.well(10);
            s.world.run();
            assert_eq!((s.completions(), s.notices()), (10, 0), "not armed");
        }
    }
}

#[test]
fn without_moderation_nothing_waits() {
    for (count, period) in [(0, 0), (1, 0), (1, 60_000)] {
        let mut s = Setup::new(count, period);
        s.arm();
        s.well(1);
        s.world.run_for(100 * US);
        assert_eq!(s.notices(), 1, "{count} {period}");
    }
}

#[test]
fn an_error_does_not_wait() {
    let mut s = Setup::new(100, 60_000);
    s.arm();
    s.well(1);
    s.world.run_for(100 * US);
    assert_eq!(s.notices(), 0);
    s.write(1, 0);
    s.world.run_for(100 * US);
    assert_eq!(s.notices(), 1);
    let last = s.world.completions(0, &mut s.pair.cq[0]).pop().unwrap();
    assert_eq!(last.status, cqe::LOC_PROT_ERR);
    s.world.run();
    assert_eq!(s.notices(), 0);
}

/// Completions before the CQ is armed cause an event at once, and a change of moderation ends each delay.
#[test]
fn nothing_is_forgotten() {
    let mut s = Setup::new(100, 60_000);
    s.well(1);
    s.world.run_for(100 * US);
    s.arm();
    assert_eq!(s.notices(), 1);
    assert_eq!(s.completions(), 1);
    s.arm();
    s.well(1);
    s.world.run_for(100 * US);
    assert_eq!(s.notices(), 0);
    let driver = &mut s.world.hosts[0].driver;
    driver.moderate_cq(&s.pair.cq[0], 0, 0).unwrap();
    assert_eq!(s.notices(), 1);
}

#[test]
fn a_destroyed_queue_raises_no_event() {
    let mut s = Setup::new(100, 60_000);
    s.arm();
    s.well(1);
    s.world.run_for(100 * US);
    let driver = &mut s.world.hosts[0].driver;
    driver.command(DESTROY_QP, s.pair.qp[0].qpn, &()).unwrap();
    driver.command(DESTROY_CQ, s.pair.cq[0].cqn, &()).unwrap();
    s.world.run();
    assert_eq!(s.notices(), 0);
}

#[test]
fn invalid_moderation_is_refused() {
    let mut s = Setup::new(0, 0);
    let cqn = s.pair.cq[0].cqn;
    let driver = &mut s.world.hosts[0].driver;
    let mut refused = |cqn, cmd: &ModifyCq| match driver.command(MODIFY_CQ, cqn, cmd) {
        Err(Error::Refused(status)) => status,
        other => panic!("not refused: {other:?}"),
    };
    let endless = ModifyCq {
        count: U16::new(2),
        ..ModifyCq::default()
    };
    assert_eq!(refused(cqn, &endless), Status::BadParameter);
    let reserved = ModifyCq {
        reserved: U32::new(1),
        ..ModifyCq::default()
    };
    assert_eq!(refused(cqn, &reserved), Status::ReservedNotZero);
    assert_eq!(refused(cqn + 77, &ModifyCq::default()), Status::BadCq);
}
