//! Segments that leave.

use faultline_wire::{Seq, Tcp, TcpFlags as F, Timestamps};

use super::Connection;
use crate::pos::Pos;
use crate::segment::Transmit;
use crate::send::Pick;
use crate::state::State;
use crate::time::Instant;

/// Blocks of a selective acknowledgment beside timestamps, and without (RFC 2018 section 3).
const SACK_BLOCKS: [usize; 2] = [4, 3];

impl Connection {
    /// The next segment to send, if there is one now.
    ///
    /// `align(offset, max)` returns the number of octets of data, from 1 to `max`, that a segment beginning at `offset` shall have: an
    /// owner that ends segments where its messages end returns less than `max` (MPA: RFC 5044 section 5). It is called again for a
    /// retransmission. A peer with a small window gets shorter segments. 0: the data cannot be read now. Then acknowledgments leave, and
    /// the owner calls again when it can; the retransmission timer continues.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        align: impl FnOnce(u64, u32) -> u32,
    ) -> Option<Transmit> {
        let transmit = self.next_segment(now, align);
        if transmit.is_some() {
            self.update_timers(now);
        }
        transmit
    }

    fn next_segment(
        &mut self,
        now: Instant,
        align: impl FnOnce(u64, u32) -> u32,
    ) -> Option<Transmit> {
        if let Some((seq, flags)) = self.reset.take() {
            return Some(control(self.header(seq, flags, 0)));
        }
        if self.state == State::Closed {
            return None;
        }
        if self.send.una() == Pos(0) {
            return self.next_syn(now);
        }
        let pick = match core::mem::take(&mut self.probe_due) {
            true => self.send.probe(align),
            false => self.send.pick(align),
        };
        if let Some(pick) = pick {
            return Some(self.data(pick, now));
        }
        if core::mem::take(&mut self.keep_alive_due) {
            // The octet before the next one: the peer has it, and says so (RFC 9293 section 3.8.4).
            let seq = self.send.seq(self.send.nxt()).add(u32::MAX);
            return Some(self.acknowledgment(seq, now));
        }
        self.receive.is_ack_due().then(|| {
            let seq = self.send.seq(self.send.control_pos());
            self.acknowledgment(seq, now)
        })
    }

    /// A SYN, with the options that this end offers, or that both ends have.
    fn next_syn(&mut self, now: Instant) -> Option<Transmit> {
        if self.send.nxt() != Pos(0) {
            return None;
        }
        let is_retransmission = self.send.max() > Pos(0);
        let is_answer = self.state != State::SynSent;
        let flags = match (is_answer, is_answer && self.ecn) {
            (true, true) => F::SYN | F::ACK | F::ECE,
            (true, false) => F::SYN | F::ACK,
            (false, _) if self.config.ecn && !is_retransmission => F::SYN | F::ECE | F::CWR,
            (false, _) => F::SYN,
        };
        // The window of a SYN is never scaled (RFC 7323 section 2.2).
        let window = match is_answer {
            true => self.receive.advertise(self.send.mss().into(), 0, true),
            false => u16::try_from(self.config.receive_window).unwrap_or(u16::MAX),
        };
        let mut header = self.header(self.send.seq(Pos(0)), flags, window);
        header.options.mss = Some(self.config.mss);
        header.options.window_scale = (!is_answer || self.scaled).then_some(self.receive.shift);
        header.options.sack_permitted = if is_answer {
            self.sack
        } else {
            self.config.sack
        };
        header.options.timestamps = match (is_answer, self.stamps) {
            (true, None) => None,
            (false, _) if !self.config.timestamps => None,
            (_, stamps) => Some(Timestamps {
                value: self.stamp(now),
                echo: stamps.map_or(0, |stamps| stamps.recent),
            }),
        };
        self.send.sent_syn(now);
        Some(Transmit {
            is_retransmission,
            ..control(header)
        })
    }

    /// A segment with data or a FIN, which acknowledges, too.
    fn data(&mut self, pick: Pick, now: Instant) -> Transmit {
        let is_retransmission = self.send.sent(&pick, now);
        let mut flags = F::ACK;
        flags.set(F::FIN, pick.fin);
        let last = pick.start + u64::from(pick.len);
        flags.set(F::PSH, pick.len > 0 && self.send.is_last(last));
        flags.set(
            F::CWR,
            !is_retransmission && pick.len > 0 && self.send.take_cwr(),
        );
        let header = self.stamped(self.send.seq(pick.start), flags, false, now);
        Transmit {
            header,
            offset: pick.start.offset(),
            len: pick.len,
            // Not of retransmissions (RFC 3168 section 6.1.5).
            ecn_capable: self.ecn && !is_retransmission && pick.len > 0,
            is_retransmission,
        }
    }

    /// A segment without data.
    fn acknowledgment(&mut self, seq: Seq, now: Instant) -> Transmit {
        let mut header = self.stamped(seq, F::ACK, true, now);
        if self.sack {
            let [without, beside] = SACK_BLOCKS;
            let max = if self.stamps.is_some() {
                beside
            } else {
                without
            };
            header.options.sack = self.receive.sack_blocks(max);
        }
        control(header)
    }

    /// A header that acknowledges what has arrived. A segment with data has no selective acknowledgment, so that all full segments have
    /// one length: another segment carries it.
    fn stamped(&mut self, seq: Seq, mut flags: F, is_pure: bool, now: Instant) -> Tcp {
        flags.set(F::ECE, self.congestion_echo);
        let has_sack = is_pure || !self.sack;
        let mss = self.send.mss().into();
        let window = self.receive.advertise(mss, self.receive.shift, has_sack);
        let mut header = self.header(seq, flags, window);
        header.options.timestamps = self.stamps.map(|stamps| Timestamps {
            value: self.stamp(now),
            echo: stamps.recent,
        });
        header
    }

    /// A header without options.
    pub(super) fn header(&self, seq: Seq, flags: F, window: u16) -> Tcp {
        let has_ack = flags.contains(F::ACK);
        Tcp {
            src_port: self.local_port,
            dst_port: self.remote_port,
            seq,
            ack: if has_ack { self.receive.ack() } else { Seq(0) },
            flags,
            window,
            ..Tcp::default()
        }
    }
}

fn control(header: Tcp) -> Transmit {
    Transmit {
        header,
        offset: 0,
        len: 0,
        ecn_capable: false,
        is_retransmission: false,
    }
}
