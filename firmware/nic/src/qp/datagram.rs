//! Datagrams: UD and GSI.

use faultline_abi::U32;
use faultline_abi::admin::Counter;
use faultline_abi::cqe::{self, Cqe};
use faultline_abi::wqe::{WR_FLAG_CSUM, WR_FLAG_SOLICITED};
use faultline_wire::deth::{Deth, GSI_QKEY};
use faultline_wire::ip::Ip;
use faultline_wire::mtu::PathMtu;
use faultline_wire::opcode::Opcode;
use faultline_wire::packet::RoceHeader;

use super::endpoint::Endpoint;
use super::requester::{BuildError, MessageRange, Requester, Sent};
use super::responder::{Responder, Stopped, completion};
use super::types::{Failure, QpType};
use super::work_request::{SendOp, SendWr};
use crate::context::Context;
use crate::core::Core;
use crate::dma::Dma;
use crate::frame::{FrameKind, TxFrame};
use crate::number::len32;
use crate::payload::Payload;

/// Bytes in front of a datagram: a GRH, or an IPv4 header in the last 20 of them (IBTA A17.4.5.2).
const GRH_LEN: usize = 40;
/// Q_Keys with this bit are privileged: the QP's own is sent instead (IBTA 10.2.5).
const PRIVILEGED_QKEY: u32 = 1 << 31;

impl Requester {
    /// Completes the datagram that was handed over before, then makes `frame` the next one.
    pub(crate) fn poll_datagram<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        frame: &mut TxFrame,
    ) -> Result<Sent, Failure> {
        let Some(wr) = self.next_unconnected(qp, cx) else {
            return Ok(Sent::Nothing);
        };
        if let Some(priority) = paused_priority(cx.core, &wr) {
            return Ok(self.hold_unconnected(cx, wr, priority));
        }
        let built = match wr.failed {
            Some(failure) => Err(BuildError::Failed(failure)),
            None => self.build_datagram(qp, cx.core, &wr, frame),
        };
        self.hand_over_unconnected(qp, cx, wr, built)
    }

    fn build_datagram(
        &mut self,
        qp: &Endpoint,
        core: &Core,
        wr: &SendWr,
        frame: &mut TxFrame,
    ) -> Result<(), BuildError> {
        const AH: Failure = Failure::new(cqe::LOC_QP_OP_ERR, cqe::AH);
        const OPCODE: Failure = Failure::new(cqe::LOC_QP_OP_ERR, cqe::OPCODE);
        let Some(SendOp::Datagram { to, imm }) = wr.op else {
            return Err(OPCODE.into());
        };
        if wr.has(WR_FLAG_CSUM) {
            return Err(OPCODE.into());
        }
        let ah = core.ahs.get(to.ah).ok_or(AH)?;
        if ah.pd != qp.config.pd {
            return Err(AH.into());
        }
        let mtu = PathMtu::for_ip_mtu(usize::from(core.netdev.mtu));
        if wr.length as usize > mtu.map_or(0, |mtu| mtu.bytes()) {
            return Err(Failure::new(cqe::LOC_LEN_ERR, cqe::LENGTH).into());
        }
        frame.clear_payload();
        frame.payload_len = wr.length as usize;
        let range = MessageRange::to_send(0, wr.length);
        self.gather(qp, core, wr, range, &mut frame.payload)?;
        let psn = self.next_psn();
        self.set_next_psn(psn.next());
        let opcode = match imm {
            None => Opcode::UdSendOnly,
            Some(_) => Opcode::UdSendOnlyWithImmediate,
        };
        let mut header = ah.path.datagram_header(opcode, (qp.number, to.qpn), psn);
        header.bth.solicited = wr.has(WR_FLAG_SOLICITED);
        header.deth = Some(Deth {
            qkey: sent_qkey(qp, to.qkey),
            src_qp: qp.number,
        });
        header.imm = imm;
        self.set_datagram_source(ah.path.source());
        frame.kind = FrameKind::Roce(header);
        Ok(())
    }
}

/// The priority of a datagram, if that is paused.
fn paused_priority(core: &Core, wr: &SendWr) -> Option<u8> {
    let paused = core.flow_control.paused();
    if paused.is_empty() {
        return None;
    }
    let Some(SendOp::Datagram { to, .. }) = wr.op else {
        return None;
    };
    let priority = core.ahs.get(to.ah)?.path.priority();
    paused.contains(priority).then_some(priority)
}

/// A privileged Q_Key in a work request means the QP's own (IBTA 10.2.5). The kernel's QPs may specify that of QP1.
fn sent_qkey(qp: &Endpoint, qkey: u32) -> u32 {
    let own = qkey & PRIVILEGED_QKEY != 0 && !(qp.config.uctx == 0 && qkey == GSI_QKEY);
    if own { qp.attr.qkey.get() } else { qkey }
}

impl Responder {
    /// Receives a datagram. One with any error is dropped and counted (IBTA 9.8.3).
    pub(crate) fn receive_datagram<M: Dma>(
        &mut self,
        qp: &Endpoint,
        cx: &mut Context<'_, M>,
        header: &RoceHeader,
        payload: Payload<'_, M>,
    ) -> Result<(), Stopped> {
        let Some(deth) = header.deth else {
            return Ok(());
        };
        let expected = match qp.config.kind {
            QpType::Gsi => GSI_QKEY,
            _ => qp.attr.qkey.get(),
        };
        if deth.qkey != expected {
            cx.count(Counter::rx_bad_qkey);
            return Ok(());
        }
        let grh = global_header(header, payload.len());
        let psn = header.bth.psn.get();
        let Some(wr) = self.receive_whole(qp, cx, &grh, payload, psn)? else {
            return Ok(());
        };
        let mut entry = Cqe {
            byte_len: U32::new(len32(GRH_LEN.saturating_add(payload.len()))),
            src_qp: U32::new(deth.src_qp),
            opcode: cqe::RECV,
            smac: header.ethernet.src.0,
            ip_version: if matches!(header.ip, Ip::V4(_)) { 4 } else { 6 },
            ..completion(header)
        };
        entry.flags |= cqe::CQE_GRH;
        if let Some(vlan) = header.ethernet.vlan {
            entry.flags |= cqe::CQE_VLAN;
            entry.vlan_tci.set(u16::from(vlan.pcp) << 13 | vlan.vid);
            entry.sl = vlan.pcp;
        }
        qp.complete_receive(cx, &wr, entry);
        Ok(())
    }
}

/// The 40 bytes in front of a received datagram. A packet that was not sent over a wire has no length in its header yet.
fn global_header(header: &RoceHeader, payload_len: usize) -> [u8; GRH_LEN] {
    let mut grh = [0; GRH_LEN];
    let ip = header.emitted_ip(payload_len).unwrap_or(header.ip);
    let start = GRH_LEN.saturating_sub(ip.header_len());
    if let Some(out) = grh.get_mut(start..) {
        // It was parsed or made as a header of this length, so it fits.
        let _ = ip.emit(out);
    }
    grh
}
