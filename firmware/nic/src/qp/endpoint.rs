//! State that the requester and the responder of a queue pair share: number, configuration, attributes and path.
//!
//! Only the state machine (`Qp`) changes it.

use faultline_abi::U32;
use faultline_abi::cqe::{self, Cqe};
use faultline_abi::qp::QpAttr;
use faultline_wire::bth::Psn;
use faultline_wire::mtu::PathMtu;
use faultline_wire::opcode::Opcode;
use faultline_wire::packet::RoceHeader;

use super::fault_policy::FaultPolicy;
use super::types::{Failure, QpConfig, QpType, State, StateCause};
use crate::context::Context;
use crate::core::Core;
use crate::counters::{CounterSet, Traffic};
use crate::diagnostic::Diagnostic;
use crate::dma::Dma;
use crate::fault::{FaultSource, WaitKind};
use crate::flow_control::BlockedOn;
use crate::gate::Reported;
use crate::mkey::KeyUser;
use crate::number::len32;
use crate::origin::{Origin, ReadyMode};
use crate::path::Path;
use crate::receive_queue::{RecvRing, RecvWr};

/// Identity and attributes of a queue pair.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// QP number.
    pub number: u32,
    /// Set by CREATE_QP.
    pub config: QpConfig,
    /// Counter set for events of the queue pair.
    pub counters: CounterSet,
    /// State.
    pub state: State,
    /// Attributes of MODIFY_QP.
    pub attr: QpAttr,
    /// Bytes of payload in a full packet.
    pub mtu: u32,
    /// Headers of packets to the peer of a connection.
    pub path: Option<Path>,
    /// The origin of the last packet of the connection's peer.
    pub peer: Origin,
    /// A packet of the peer had a verified MAC address.
    has_true_peer: bool,
    /// Packets and bytes that it has sent and received.
    pub traffic: Traffic,
    /// It sends nothing before [`Nic::release`](crate::Nic::release).
    pub is_held: bool,
    /// Causes for which drops of its packets were reported.
    pub reported_drops: Reported,
}

/// Attributes before the first MODIFY_QP.
fn initial_attr(fault_policy: FaultPolicy) -> QpAttr {
    QpAttr {
        fault_policy: fault_policy.number(),
        ..QpAttr::default()
    }
}

impl Endpoint {
    /// In state RESET.
    pub(crate) fn new(number: u32, config: QpConfig, fault_policy: FaultPolicy) -> Self {
        Self {
            number,
            config,
            counters: CounterSet::DEVICE,
            state: State::Reset,
            attr: initial_attr(fault_policy),
            mtu: len32(PathMtu::Mtu1024.bytes()),
            path: None,
            peer: Origin::Unknown,
            has_true_peer: false,
            traffic: Traffic::default(),
            is_held: false,
            reported_drops: Reported::default(),
        }
    }

    /// The event that it must wait for before it sends a packet. For connections only: other packets have priorities of their own.
    #[inline]
    pub(crate) fn must_wait(&self, core: &Core) -> Option<BlockedOn> {
        if !self.is_held && core.flow_control.paused().is_empty() {
            return None;
        }
        self.wait_of(core)
    }

    #[cold]
    fn wait_of(&self, core: &Core) -> Option<BlockedOn> {
        if self.is_held {
            return Some(BlockedOn::Release);
        }
        let priority = self.path.as_ref()?.priority();
        let is_paused = core.flow_control.paused().contains(priority);
        is_paused.then_some(BlockedOn::Priority(priority))
    }

    /// Enters RESET: clears the attributes.
    pub(crate) fn reset(&mut self, fault_policy: FaultPolicy) {
        self.state = State::Reset;
        self.attr = initial_attr(fault_policy);
        self.path = None;
        self.forget_peer();
        self.is_held = false;
        self.reported_drops = Reported::default();
    }

    /// Enters another state.
    pub(crate) fn set_state<M: Dma>(
        &mut self,
        cx: &mut Context<'_, M>,
        to: State,
        cause: StateCause,
    ) {
        let from = std::mem::replace(&mut self.state, to);
        if from != to {
            cx.core.qp_states.remove(from);
            cx.core.qp_states.add(to);
            if matches!(to, State::Err | State::Reset) {
                cx.core.mkeys.end_life(self.number);
            }
            cx.diagnose(Diagnostic::QpState {
                qpn: self.number,
                from,
                to,
                cause,
            });
        }
    }

    /// Raises the asynchronous event that says why the queue pair has failed.
    pub(crate) fn report_failure<M: Dma>(&self, cx: &mut Context<'_, M>, event: u8) {
        cx.diagnose(Diagnostic::QpFailed {
            qpn: self.number,
            event,
        });
        cx.raise_async(event, self.number);
    }

    /// A packet of the peer has arrived.
    #[inline]
    pub(crate) fn note_peer(&mut self, origin: Origin) {
        self.peer = origin;
        self.has_true_peer |= origin.has_true_mac();
    }

    /// The connection is one with another peer.
    pub(crate) fn forget_peer(&mut self) {
        (self.peer, self.has_true_peer) = (Origin::Unknown, false);
    }

    /// True if a packet is from the peer of the connection (IBTA 9.6.1.4). The MAC address is compared if it was
    /// verified, and on a connection whose peer is a guest of this process. A packet from a router has the MAC address
    /// of the router.
    #[inline]
    pub(crate) fn is_from_peer(&self, header: &RoceHeader, origin: Origin) -> bool {
        let Some(path) = &self.path else {
            return false;
        };
        let has_mac = origin.has_true_mac() || self.has_true_peer;
        path.is_way_back(&header.ip) && (!has_mac || path.dmac() == header.ethernet.src)
    }

    /// Whether lost packets are sent again.
    pub(crate) fn is_reliable(&self) -> bool {
        self.config.kind.is_reliable()
    }

    /// The user of memory keys that it acts as.
    pub(crate) fn key_user(&self) -> KeyUser {
        self.key_user_in(self.config.pd)
    }

    /// The same for a key of another protection domain, that of an SRQ.
    pub(crate) fn key_user_in(&self, pd: u32) -> KeyUser {
        KeyUser {
            pd,
            qpn: self.number,
        }
    }

    /// Whether peers have this right (`ACCESS_REMOTE_*`).
    pub(crate) fn allows(&self, right: u32) -> bool {
        self.attr.access.get() & right != 0
    }

    /// True if READY may be sent to the peer, and is accepted from it.
    pub(crate) fn exchanges_ready(&self, core: &Core) -> bool {
        let includes = || match core.config.ready {
            ReadyMode::Known => match self.peer {
                Origin::Faultline => true,
                Origin::Guest => false,
                Origin::Unknown => core.peers.is_faultline(self.number),
            },
            ReadyMode::Always => true,
            ReadyMode::Never => false,
        };
        self.is_reliable() && includes()
    }

    /// Fault policy.
    pub(crate) fn fault_policy(&self) -> FaultPolicy {
        // MODIFY_QP accepts no others.
        FaultPolicy::from_abi(self.attr.fault_policy).unwrap_or_default()
    }

    /// This queue pair as the source of a page fault; `wait` is the part of it that waits for the page.
    pub(crate) fn fault_source(&self, wait: WaitKind) -> FaultSource {
        FaultSource {
            qpn: self.number,
            wait,
        }
    }

    /// The opcode of this QP's service that corresponds to an opcode of RC; `None` if the service does not have the operation.
    #[inline]
    pub(crate) fn opcode(&self, rc: Opcode) -> Option<Opcode> {
        if self.config.kind == QpType::Rc {
            return Some(rc);
        }
        rc.with_service(self.config.kind.service()?)
    }

    /// Headers of a packet to the peer, with the opcode of this QP's service. `None` before a path is set, and if the service
    /// does not have the operation.
    #[inline(always)]
    pub(crate) fn header(&self, rc: Opcode, psn: Psn) -> Option<RoceHeader> {
        let path = self.path.as_ref()?;
        Some(path.header(self.opcode(rc)?, self.attr.dest_qpn.get(), psn))
    }

    /// Completes a receive work request. `entry` has the result; the work request, the queue pair and the CQ are filled
    /// in here.
    pub(crate) fn complete_receive<M: Dma>(
        &self,
        cx: &mut Context<'_, M>,
        wr: &RecvWr,
        entry: Cqe,
    ) {
        let mut entry = Cqe {
            wqe: U32::new(wr.tag),
            qpn: U32::new(self.number),
            ..entry
        };
        let mut cqn = self.config.recv_cqn;
        if let Some(srqn) = wr.srqn
            && let Some(srq) = cx.core.srqs.get_mut(srqn)
        {
            cqn = srq.cqn().unwrap_or(cqn);
            if srq.xrc.is_some() {
                entry.flags |= cqe::CQE_XRC;
                entry.srqn = U32::new(srqn);
            }
            if let Some(tags) = &mut srq.tags {
                entry.srqn = U32::new(srqn);
                if let Some(class) = wr.class {
                    tags.describe(&mut entry, class);
                }
            }
        }
        cx.complete(cqn, entry);
    }

    /// Completes a receive work request in error.
    pub(crate) fn fail_receive<M: Dma>(
        &self,
        cx: &mut Context<'_, M>,
        wr: &RecvWr,
        failure: Failure,
    ) {
        let entry = Cqe {
            opcode: cqe::RECV,
            status: failure.status,
            vendor_err: failure.vendor,
            ..Cqe::default()
        };
        self.complete_receive(cx, wr, entry);
    }

    /// Flushes the receive work requests that are posted in a ring now, until the turn is over. Returns true if none is left.
    pub(crate) fn flush_receives<M: Dma>(
        &self,
        cx: &mut Context<'_, M>,
        ring: &mut RecvRing,
        turn: u64,
    ) -> bool {
        let Ok(posted) = ring.posted(cx.mem, u32::MAX) else {
            return true;
        };
        for _ in 0..posted {
            if cx.core.is_over(turn) {
                return false;
            }
            let Ok(wr) = ring.take(cx.mem) else {
                return true;
            };
            self.fail_receive(cx, &wr, Failure::FLUSHED);
        }
        true
    }
}
