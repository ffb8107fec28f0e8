//! Power state D3hot: no DMA, no interrupts, no registers. D0 continues with the former state (No_Soft_Reset).

use std::time::Duration;

use faultline_abi::admin::Counter;
use faultline_abi::doorbell::{self, Doorbell};
use faultline_abi::{MAGIC, cqe, regs};
use faultline_config::PollMode;
use faultline_harness::testbed::{Fabric, LONG, connect_nodes};
use faultline_harness::traffic::{Neighbours, exchange, impatient};
use faultline_harness::{QpType, Reset, Rng, SendWr, connect, pattern};

/// Exchanges of the neighbours, each of which takes several passes of the engine: it could take a doorbell some hundred times.
const EXCHANGES: usize = 50;

#[test]
fn d3hot_stops_all_work_and_d0_continues_it() {
    for poll in [PollMode::Adaptive, PollMode::Never] {
        let fabric = Fabric::start(poll, &["a", "b", "c", "d"]).unwrap();
        let neighbours = Neighbours::start(&fabric, ["c", "d"]).unwrap();
        let (mut a, mut b) = (fabric.node("a").unwrap(), fabric.node("b").unwrap());
        let (mut qa, mut qb) = connect_nodes(&a, &b, QpType::Rc).unwrap();
        let mut rng = Rng::new(1);
        exchange((&mut a, &mut qa), (&mut b, &mut qb), &mut rng);
        let (mut lost, other) = (a.qp(QpType::Rc).unwrap(), b.qp(QpType::Rc).unwrap());
        connect(&lost, &other, &impatient()).unwrap();

        a.buf.write(0, &pattern(1, 8));
        b.buf.write(0, &pattern(2, 100));
        b.eq.arm().unwrap();
        b.cq.arm(false).unwrap();
        let received = b.nic.counters().unwrap()[Counter::rx_packets];
        b.nic.set_d3hot(true).unwrap();
        // Into its memory.
        let write = SendWr::write_inline(b"must not arrive", b.mr.remote(0));
        lost.post_send(&write.signaled()).unwrap();
        assert_eq!(a.completion().status, cqe::RETRY_EXC_ERR);
        assert_eq!(b.buf.to_vec(0, 100), pattern(2, 100));
        // Out of its memory: a doorbell in its page, and one that is trapped.
        let source = [b.mr.sge(0, 100)];
        let write = SendWr::write(&source, a.mr.remote(0));
        let index = qb.post_send(&write.signaled()).unwrap();
        let bell = Doorbell {
            kind: doorbell::SQ,
            object: qb.number(),
            value: index + 1,
        };
        b.nic.kick(b.context.page(), bell).unwrap();
        for _ in 0..EXCHANGES {
            neighbours.unharmed();
            assert_eq!(a.buf.to_vec(0, 8), pattern(1, 8));
            assert!(b.cq.poll().is_none() && !b.eq.sleep(Duration::ZERO).unwrap());
        }
        // Its registers do not answer and do not change.
        assert_eq!(b.nic.read_reg(regs::MAGIC).unwrap(), u32::MAX);
        b.nic.write_reg(regs::CONTROL, regs::RESET).unwrap();
        neighbours.unharmed();

        b.nic.set_d3hot(false).unwrap();
        let wc = b.good_completion();
        assert_eq!((wc.id, wc.qpn), (index, qb.number()));
        qb.retire(&wc);
        assert_eq!(a.buf.to_vec(0, 100), pattern(2, 100));
        assert!(b.eq.sleep(LONG).unwrap(), "the interrupt comes now");
        assert_eq!(b.nic.read_reg(regs::MAGIC).unwrap(), MAGIC);
        // Only the acknowledgement was received: state is kept, and no frame was taken.
        assert_eq!(b.nic.counters().unwrap()[Counter::rx_packets], received + 1);
        exchange((&mut b, &mut qb), (&mut a, &mut qa), &mut rng);

        // A reset ends D3hot.
        b.nic.set_d3hot(true).unwrap();
        b.nic.reset(Reset::Function).unwrap();
        assert_eq!(b.nic.read_reg(regs::MAGIC).unwrap(), MAGIC);
        neighbours.finish();
    }
}
