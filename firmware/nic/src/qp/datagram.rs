//! Datagrams: UD and GSI.

use faultline_abi::admin::Counter;
use faultline_abi::cqe::{self, Cqe};
use faultline_abi::wqe as wr;
use faultline_abi::{U32, event};
use faultline_wire::deth::Deth;
use faultline_wire::ip::Ip;
use faultline_wire::opcode::Opcode;
use faultline_wire::packet::RoceHeader;

use super::fault::IngressNeed;
use super::requester::Unbuilt;
use super::responder::TOO_LONG;
use super::work_request::SendWr;
use super::{Failure, Misplaced, Qp, QpType, State};
use crate::context::Context;
use crate::core::Core;
use crate::dma::Dma;
use crate::fault::Need;
use crate::frame::{Payload, TxFrame};
use crate::mkey::Access;
use crate::srq::{RecvWr, TakeError};

/// Bytes in front of a datagram: a GRH, or an IPv4 header in the last 20 of them (IBTA A17.4.5.2).
const GRH_LEN: usize = 40;
/// Q_Key of QP1 (IBTA 3.5.3).
const GSI_QKEY: u32 = 0x8001_0000;
/// Q_Keys with this bit are privileged: the QP's own is sent instead (IBTA 10.2.5).
const PRIVILEGED_QKEY: u32 = 1 << 31;

impl Qp {
    /// Completes the datagram that was handed over before, then gives the next one.
    pub(super) fn poll_datagram<M: Dma>(&mut self, cx: &mut Context<'_, M>) -> Option<TxFrame> {
        let wr = self.next_unconnected(cx)?;
        let built = match wr.failed {
            Some(failure) => Err(Unbuilt::Failed(failure)),
            None => self.build_datagram(cx.core, &wr),
        };
        self.hand_over_unconnected(cx, wr, built)
    }

    /// Completes the work request that was handed over before, and gives the next one.
    pub(super) fn next_unconnected<M: Dma>(&mut self, cx: &mut Context<'_, M>) -> Option<SendWr> {
        if self.waits.requester.is_some() {
            return None;
        }
        if let Some(wr) = self.requester.pop() {
            if std::mem::take(&mut self.requester.held) {
                return Some(wr);
            }
            self.complete_send(cx, &wr, None);
        }
        if !self.state.sends() {
            return None;
        }
        if self.state != State::Rts || self.sq.fetched == self.sq.producer {
            self.check_drained(cx);
            return None;
        }
        Some(self.read_work_request(cx.mem))
    }

    /// What becomes of a work request: its buffers may be used again only after the frame has left, so it
    /// completes at the next call.
    pub(super) fn hand_over_unconnected<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        wr: SendWr,
        built: Result<TxFrame, Unbuilt>,
    ) -> Option<TxFrame> {
        self.requester.push(&cx.core.budget, wr);
        match built {
            Ok(frame) => Some(frame),
            Err(unbuilt) => {
                if let Some(failure) = self.wait_or_fail(cx, unbuilt) {
                    self.fail_request(cx, failure);
                } else {
                    self.requester.held = true;
                }
                None
            }
        }
    }

    fn build_datagram(&mut self, core: &Core, wr: &SendWr) -> Result<TxFrame, Unbuilt> {
        const AH: Failure = Failure::new(cqe::LOC_QP_OP_ERR, cqe::AH);
        let opcode = match wr.opcode {
            wr::WR_SEND => Opcode::UdSendOnly,
            wr::WR_SEND_IMM => Opcode::UdSendOnlyWithImmediate,
            _ => return Err(Failure::new(cqe::LOC_QP_OP_ERR, cqe::OPCODE).into()),
        };
        if wr.flags & wr::WR_FLAG_CSUM != 0 {
            return Err(Failure::new(cqe::LOC_QP_OP_ERR, cqe::OPCODE).into());
        }
        let ah = core.ahs.get(wr.ah).ok_or(AH)?;
        if ah.pd != self.config.pd {
            return Err(AH.into());
        }
        let mtu = faultline_wire::mtu::PathMtu::for_ip_mtu(usize::from(core.netdev.mtu));
        if wr.length as usize > mtu.map_or(0, |mtu| mtu.bytes()) {
            return Err(Failure::new(cqe::LOC_LEN_ERR, cqe::LENGTH).into());
        }
        let payload = self.gather(core, wr, 0, wr.length, Access::LocalRead)?;
        let psn = self.requester.next_psn();
        self.requester.set_next_psn(psn.next());
        let mut header = ah.path.header(opcode, wr.remote_qpn & 0xff_ffff, psn);
        header.bth.solicited = wr.flags & wr::WR_FLAG_SOLICITED != 0;
        header.deth = Some(Deth {
            qkey: self.sent_qkey(wr.qkey),
            src_qp: self.number,
        });
        if wr.opcode == wr::WR_SEND_IMM {
            header.imm = Some(u32::from_be_bytes(wr.imm.to_le_bytes()));
        }
        Ok(TxFrame::packet(header, payload, wr.length as usize))
    }

    /// A privileged Q_Key in a work request stands for the QP's own (IBTA 10.2.5). The kernel's QPs may name
    /// that of QP1.
    fn sent_qkey(&self, qkey: u32) -> u32 {
        let own = qkey & PRIVILEGED_QKEY != 0 && !(self.config.uctx == 0 && qkey == GSI_QKEY);
        if own { self.attr.qkey.get() } else { qkey }
    }

    /// A datagram arrives. Whatever is wrong with it, it is dropped and counted (IBTA 9.8.3).
    pub(super) fn receive_datagram<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        payload: Payload<'_, M>,
    ) -> Result<(), IngressNeed> {
        let Some(deth) = header.deth else {
            return Ok(());
        };
        let expected = match self.config.kind {
            QpType::Gsi => GSI_QKEY,
            _ => self.attr.qkey.get(),
        };
        if deth.qkey != expected {
            cx.count(Counter::rx_bad_qkey);
            return Ok(());
        }
        let wr = match self.take_receive(cx, self.config.srqn) {
            Ok(wr) => wr,
            Err(TakeError::Empty) => {
                cx.count(Counter::out_of_buffer);
                return Ok(());
            }
            Err(TakeError::Broken) => {
                self.fail_with_event(cx, event::QP_FATAL);
                return Ok(());
            }
        };
        let len = GRH_LEN + payload.len();
        if len as u64 > wr.capacity {
            self.drop_too_long(cx, wr);
            return Ok(());
        }
        let grh = global_header(header, payload.len());
        let placed = self
            .scatter(cx, &wr, 0, Payload::Bytes(&grh))
            .and_then(|()| self.scatter(cx, &wr, GRH_LEN as u64, payload));
        match placed {
            Ok(()) => {}
            Err(Misplaced::Lost) => {
                self.responder.put_back(wr);
                return Ok(());
            }
            Err(Misplaced::Absent(absent, hint)) => {
                self.responder.put_back(wr);
                return Err(IngressNeed {
                    need: Need::new(absent, hint, header.bth.psn.get()),
                    receive: true,
                });
            }
            Err(Misplaced::Failed(failure)) => {
                self.complete_receive(cx, &wr, failure);
                self.fail(cx);
                return Ok(());
            }
        }
        let mut flags = cqe::CQE_GRH;
        if header.imm.is_some() {
            flags |= cqe::CQE_IMM;
        }
        if header.bth.solicited {
            flags |= cqe::CQE_SOLICITED;
        }
        let mut entry = Cqe {
            wqe: U32::new(wr.tag),
            qpn: U32::new(self.number),
            byte_len: U32::new(len as u32),
            imm: U32::from_bytes(header.imm.unwrap_or(0).to_be_bytes()),
            src_qp: U32::new(deth.src_qp),
            opcode: cqe::RECV,
            flags,
            smac: header.ethernet.src.0,
            ip_version: if matches!(header.ip, Ip::V4(_)) { 4 } else { 6 },
            ..Cqe::default()
        };
        if let Some(vlan) = header.ethernet.vlan {
            entry.flags |= cqe::CQE_VLAN;
            entry.vlan_tci.set(u16::from(vlan.pcp) << 13 | vlan.vid);
            entry.sl = vlan.pcp;
        }
        cx.complete(self.config.recv_cqn, entry);
        Ok(())
    }

    /// More has come than the buffer takes. Whoever sent it does not hear of it and must not be able to stop the
    /// queue: the buffer stays for the next message. One of an SRQ completes in error, so that the program sees why
    /// it gets nothing (IBTA 9.9.6.3, classes D and E).
    pub(super) fn drop_too_long<M: Dma>(&mut self, cx: &mut Context<'_, M>, wr: RecvWr) {
        cx.count(Counter::resp_local_length_error);
        if wr.srqn.is_some() {
            self.complete_receive(cx, &wr, TOO_LONG);
        } else {
            self.responder.put_back(wr);
        }
    }
}

/// The 40 bytes in front of a received datagram. A packet that was not sent over a wire has no length in its header yet.
fn global_header(header: &RoceHeader, payload_len: usize) -> [u8; GRH_LEN] {
    let mut grh = [0; GRH_LEN];
    let ip = header.emitted_ip(payload_len).unwrap_or(header.ip);
    let start = GRH_LEN - ip.header_len().min(GRH_LEN);
    if let Some(out) = grh.get_mut(start..) {
        // It was parsed or made as a header of this length, so it fits.
        let _ = ip.emit(out);
    }
    grh
}
