//! Peer queries of a connection: [`Peers`](crate::peers::Peers) has the state.

use faultline_wire::{EtherType, Ethernet, Opcode, PeerQuery, Psn, QueryEnd};

use super::endpoint::Endpoint;
use crate::context::Context;
use crate::core::MAX_LOOSE_FRAMES;
use crate::dma::Dma;
use crate::frame::FrameKind;
use crate::headers::Head;
use crate::origin::{Origin, ReadyMode};

impl Endpoint {
    /// Asks the peer whether it is a Faultline, if its packets come from a wire and nothing is known.
    pub(crate) fn query_peer<M: Dma>(&self, cx: &mut Context<'_, M>) {
        if let Some(nonce) = self.next_nonce(cx) {
            self.send_query(cx, nonce, 0);
        }
    }

    /// Handles a peer query that has come from a wire. Without a connection to its sender it has no effect.
    pub(crate) fn receive_query<M: Dma>(
        &self,
        cx: &mut Context<'_, M>,
        (ethernet, query): (&Ethernet, &PeerQuery),
    ) {
        if !self.is_query_of_peer(ethernet, query) {
            return;
        }
        cx.core.peers.answered(self.number, query.echo);
        if query.nonce != 0 {
            // To be asked is no proof, so the same frame asks back.
            let nonce = self.next_nonce(cx).unwrap_or(0);
            self.send_query(cx, nonce, query.nonce);
        }
    }

    fn next_nonce<M: Dma>(&self, cx: &mut Context<'_, M>) -> Option<u64> {
        let may_ask = cx.core.config.ready == ReadyMode::Known
            && self.peer == Origin::Unknown
            && self.is_reliable();
        may_ask.then(|| cx.core.peers.query(cx.now, self.number))?
    }

    /// True if a query is from the other end of this connection to this one. On a wire its MAC address is all that a switch may have
    /// checked, so it is compared, too.
    fn is_query_of_peer(&self, ethernet: &Ethernet, query: &PeerQuery) -> bool {
        self.is_reliable()
            && self.state.receives()
            && self.path.as_ref().is_some_and(|path| {
                let peer = QueryEnd {
                    gid: path.dgid(),
                    qpn: self.attr.dest_qpn.get(),
                };
                path.dmac() == ethernet.src && query.from == peer && query.to.gid == path.sgid()
            })
    }

    /// Queues a frame to the peer. It is lost if too many frames wait.
    fn send_query<M: Dma>(&self, cx: &mut Context<'_, M>, nonce: u64, echo: u64) {
        let Some(path) = &self.path else {
            return;
        };
        let query = PeerQuery {
            from: QueryEnd {
                gid: path.sgid(),
                qpn: self.number,
            },
            to: QueryEnd {
                gid: path.dgid(),
                qpn: self.attr.dest_qpn.get(),
            },
            nonce,
            echo,
        };
        let ethernet = Ethernet {
            ethertype: EtherType::LOCAL_EXPERIMENTAL_2,
            ..path.header(Opcode::Ready, 0, Psn::new(0)).ethernet
        };
        let mut octets = [0; Ethernet::MAX_LEN + PeerQuery::LEN];
        let written = ethernet.emit(&mut octets).and_then(|at| {
            let rest = octets.get_mut(at..).unwrap_or_default();
            Ok(at.saturating_add(query.emit(rest)?))
        });
        let Ok(len) = written else {
            return;
        };
        let frames = &mut cx.core.loose_frames;
        if frames.len() < MAX_LOOSE_FRAMES {
            let kind = FrameKind::Raw {
                dst: ethernet.dst,
                src: ethernet.src,
                head: Head::from_slice(octets.get(..len).unwrap_or_default()),
                checked: false,
            };
            frames.push_back((kind, Some(path.source())));
        }
    }
}
