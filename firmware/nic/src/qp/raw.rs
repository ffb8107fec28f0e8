//! Raw Ethernet: whole frames, as the netdev uses them.

use faultline_abi::admin::Counter;
use faultline_abi::cqe::{self, Cqe};
use faultline_abi::wqe as wr;
use faultline_abi::{U32, event};
use faultline_wire::{Ethernet, MacAddr};

use super::fault::{Arrival, IngressNeed};
use super::requester::{SendWr, Unbuilt};
use super::{Failure, Misplaced, Qp};
use crate::core::Core;
use crate::dma::Dma;
use crate::fault::Need;
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
        let wr = self.next_unconnected(core, now, mem)?;
        let built = match wr.failed {
            Some(failure) => Err(Unbuilt::Failed(failure)),
            None => self.build_frame(core, mem, &wr),
        };
        self.hand_over_unconnected(core, now, mem, wr, built)
    }

    fn build_frame<M: Dma>(&self, core: &Core, mem: &M, wr: &SendWr) -> Result<TxFrame, Unbuilt> {
        if wr.opcode != wr::WR_RAW || wr.flags & wr::WR_FLAG_CSUM != 0 {
            return Err(Failure::new(cqe::LOC_QP_OP_ERR, cqe::OPCODE).into());
        }
        let longest = usize::from(core.netdev.mtu) + Ethernet::MAX_LEN;
        if !(Ethernet::LEN..=longest).contains(&(wr.length as usize)) {
            return Err(Failure::new(cqe::LOC_LEN_ERR, cqe::LENGTH).into());
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

    /// A frame arrives that this QP is to have, from a flow with this tag. Gives false if it has stopped the input and must be held.
    pub(crate) fn receive_frame<M: Dma>(
        &mut self,
        core: &mut Core,
        now: Instant,
        mem: &M,
        tag: u32,
        frame: Payload<'_, M>,
    ) -> bool {
        if !self.state.receives() {
            core.counters.inc(Counter::rx_filtered);
            return true;
        }
        self.receive_or_park(core, now, mem, Arrival::Frame { tag }, frame)
    }

    pub(super) fn receive_frame_now<M: Dma>(
        &mut self,
        core: &mut Core,
        now: Instant,
        mem: &M,
        tag: u32,
        frame: Payload<'_, M>,
    ) -> Result<(), IngressNeed> {
        let wr = match self.take_receive(core, now, mem, self.config.srqn) {
            Ok(wr) => wr,
            Err(TakeError::Empty) => {
                core.counters.inc(Counter::rx_no_buffer);
                return Ok(());
            }
            Err(TakeError::Broken) => {
                self.fail_with_event(core, now, mem, event::QP_FATAL);
                return Ok(());
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
                return Ok(());
            }
            Err(Misplaced::Absent(absent, hint)) => {
                self.responder.put_back(wr);
                return Err(IngressNeed {
                    need: Need::new(absent, hint, 0),
                    receive: true,
                });
            }
            Err(Misplaced::Failed(failure)) => {
                // One bad buffer or frame does not stop an interface.
                self.complete_receive(core, now, mem, &wr, failure);
                return Ok(());
            }
        }
        let entry = Cqe {
            wqe: U32::new(wr.tag),
            qpn: U32::new(self.number),
            byte_len: U32::new(frame.len() as u32),
            opcode: cqe::RECV,
            flow_tag: U32::new(tag),
            ..Cqe::default()
        };
        core.complete(mem, now, self.config.recv_cqn, entry);
        Ok(())
    }
}
