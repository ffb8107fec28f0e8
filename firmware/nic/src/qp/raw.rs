//! Raw Ethernet: whole frames, as the netdev uses them.

use faultline_abi::admin::Counter;
use faultline_abi::cqe::{self, Cqe};
use faultline_abi::wqe as wr;
use faultline_abi::{U32, event};
use faultline_wire::{Ethernet, MacAddr};

use super::requester::SendWr;
use super::{Failure, Misplaced, Qp, State};
use crate::core::Core;
use crate::dma::Dma;
use crate::frame::{FrameKind, Payload, TxFrame};
use crate::mkey::Access;
use crate::srq::TakeError;
use crate::time::Instant;

impl Qp {
    /// Completes the frame that was handed over before, then gives the next one.
    pub(super) fn poll_raw<M: Dma>(
        &mut self,
        core: &mut Core,
        now: Instant,
        mem: &M,
    ) -> Option<TxFrame> {
        if let Some(wr) = self.requester.pending.pop_front() {
            self.complete_send(core, now, mem, &wr, None);
        }
        if !self.state.sends() {
            return None;
        }
        if self.state != State::Rts || self.sq.fetched == self.sq.producer {
            self.check_drained(core, now, mem);
            return None;
        }
        let wr = self.read_work_request(mem);
        let built = match wr.failed {
            Some(failure) => Err(failure),
            None => self.build_frame(core, mem, &wr),
        };
        self.requester.pending.push_back(wr);
        match built {
            Ok(frame) => Some(frame),
            Err(failure) => {
                self.fail_request(core, now, mem, failure);
                None
            }
        }
    }

    fn build_frame<M: Dma>(&self, core: &Core, mem: &M, wr: &SendWr) -> Result<TxFrame, Failure> {
        if wr.opcode != wr::WR_RAW || wr.flags & wr::WR_FLAG_CSUM != 0 {
            return Err(Failure::new(cqe::LOC_QP_OP_ERR, cqe::OPCODE));
        }
        let longest = usize::from(core.netdev.mtu) + Ethernet::MAX_LEN;
        if !(Ethernet::LEN..=longest).contains(&(wr.length as usize)) {
            return Err(Failure::new(cqe::LOC_LEN_ERR, cqe::LENGTH));
        }
        let payload = self.gather(core, wr, 0, wr.length, Access::LocalRead)?;
        let mut addresses = [0; 12];
        let view = Payload::Guest {
            mem,
            segments: &payload,
            skip: 0,
            len: wr.length as usize,
        };
        view.read(0, &mut addresses)
            .map_err(|_| Failure::new(cqe::LOC_PROT_ERR, cqe::DMA))?;
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5] = addresses;
        Ok(TxFrame {
            kind: FrameKind::Raw {
                dst: MacAddr([d0, d1, d2, d3, d4, d5]),
                src: MacAddr([s0, s1, s2, s3, s4, s5]),
            },
            payload,
            payload_len: wr.length as usize,
            packets: 1,
        })
    }

    /// A frame arrives that this QP is to have.
    pub(crate) fn receive_frame<M: Dma>(
        &mut self,
        core: &mut Core,
        now: Instant,
        mem: &M,
        frame: Payload<'_, M>,
    ) {
        if !self.state.receives() {
            core.counters.inc(Counter::rx_filtered);
            return;
        }
        let wr = match self.take_receive(core, now, mem) {
            Ok(wr) => wr,
            Err(TakeError::Empty) => {
                core.counters.inc(Counter::rx_no_buffer);
                return;
            }
            Err(TakeError::Broken) => {
                self.fail_with_event(core, now, mem, event::QP_FATAL);
                return;
            }
        };
        let placed = if frame.len() as u64 > wr.capacity {
            Err(Misplaced::Failed(Failure::new(
                cqe::LOC_LEN_ERR,
                cqe::LENGTH,
            )))
        } else {
            self.scatter(core, mem, &wr, 0, frame)
        };
        match placed {
            Ok(()) => {}
            Err(Misplaced::Lost) => {
                self.responder.put_back(wr);
                return;
            }
            Err(Misplaced::Failed(failure)) => {
                // One bad buffer or frame does not stop an interface.
                self.complete_receive(core, now, mem, &wr, failure);
                return;
            }
        }
        let entry = Cqe {
            wqe: U32::new(wr.tag),
            qpn: U32::new(self.number),
            byte_len: U32::new(frame.len() as u32),
            opcode: cqe::RECV,
            ..Cqe::default()
        };
        core.complete(mem, now, self.config.recv_cqn, entry);
    }
}
