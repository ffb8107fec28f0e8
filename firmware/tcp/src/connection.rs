//! A connection: its calls, and what they change. Segments that arrive are in `arrive`, segments that leave in `leave`.

mod arrive;
mod leave;

use faultline_wire::{Seq, Tcp, TcpFlags};

use crate::config::Config;
use crate::isn::Start;
use crate::limit::ChallengeLimit;
use crate::pos::Pos;
use crate::receive::Receive;
use crate::segment::{Receiver, Segment};
use crate::send::Send;
use crate::state::{Event, Outcome, State};
use crate::time::{Instant, Nanos};
use crate::timers::{Timer, Timers};

/// Largest shift count of a window field (RFC 7323 section 2.3).
const MAX_SHIFT: u8 = 14;
/// Octets of the timestamps option with its padding.
const TIMESTAMPS_LEN: u16 = 12;
/// Maximum segment size of a peer that states none (RFC 9293, MUST-15).
const DEFAULT_MSS: u16 = 536;

/// The timestamps of a connection (RFC 7323).
#[derive(Clone, Copy, Debug)]
struct Stamps {
    /// TS.Recent, and when it was stored.
    recent: u32,
    stored: Instant,
}

/// One end of a TCP connection.
///
/// # Arguments
///
/// - `now`: nanoseconds since any fixed point. It never goes back.
/// - `owner`: decides about data that arrives.
/// - Offsets count octets of data in one direction from 0.
///
/// # Calls that take events
///
/// | Event | Call |
/// |---|---|
/// | a segment for the [`Tuple`](crate::Tuple) of this connection, with a right checksum | [`receive`](Connection::receive) |
/// | more data to send | [`send`](Connection::send) |
/// | no more data to send | [`close`](Connection::close) |
/// | data that has not been sent is replaced | [`retract`](Connection::retract) |
/// | held data can be used | [`resume`](Connection::resume) |
/// | the time of [`next_deadline`](Connection::next_deadline) | [`handle_deadline`](Connection::handle_deadline) |
/// | segments of the peer are held in front of this end, and a timer is due | [`wait_longer`](Connection::wait_longer) |
/// | the own interface has a smaller MTU | [`limit_mss`](Connection::limit_mss) |
/// | an ICMP message "packet too big" that quotes a segment | [`reduce_mss`](Connection::reduce_mss) |
/// | the owner gives up | [`abort`](Connection::abort) |
///
/// # Calls that return actions
///
/// After each event: [`poll_transmit`](Connection::poll_transmit) until it returns `None`, or as often as one connection may send before
/// others have their turn; then [`next_deadline`](Connection::next_deadline). [`acknowledged`](Connection::acknowledged) tells which data
/// is no longer needed. In state [`State::Closed`] there is an [`outcome`](Connection::outcome), and a reset may be left to send, and
/// data may be [held](Connection::is_held); then the value can be dropped.
///
/// # Duties of the owner
///
/// Data that was added with [`send`](Connection::send) can be read, unchanged, until it is acknowledged. A connection waits as long as its
/// peer answers, also in FIN-WAIT-2 and with a window of zero: an owner that waits no longer aborts it.
#[derive(Clone, Debug)]
pub struct Connection {
    config: Config,
    state: State,
    outcome: Option<Outcome>,
    /// The peer has sent the first SYN to a listener.
    is_passive: bool,
    local_port: u16,
    remote_port: u16,
    send: Send,
    receive: Receive,
    timers: Timers,
    /// The timestamp clock at time 0.
    clock: u32,
    /// `Some` if both ends use timestamps.
    stamps: Option<Stamps>,
    /// Both ends use selective acknowledgments.
    sack: bool,
    /// Both ends use window scales.
    scaled: bool,
    /// Both ends use explicit congestion notification.
    ecn: bool,
    /// Acknowledgments echo a congestion mark, until the peer has reduced its window.
    congestion_echo: bool,
    limit: ChallengeLimit,
    /// The limit of answers to keep-alives and window probes, which forged segments cannot use up.
    liveness_limit: ChallengeLimit,
    /// Sequence number and flags of a reset to send.
    reset: Option<(Seq, TcpFlags)>,
    /// A window probe has to leave.
    probe_due: bool,
    /// A keep-alive probe has to leave.
    keep_alive_due: bool,
    /// Keep-alive probes without an answer.
    unanswered_keep_alives: u8,
    /// The last segment of the peer.
    heard_at: Instant,
}

impl Connection {
    /// Opens a connection: a SYN is the next segment.
    pub fn connect(config: Config, local_port: u16, remote_port: u16, start: Start) -> Self {
        Self::new(config, local_port, remote_port, start)
    }

    /// Answers a SYN: a segment with SYN and without ACK and RST, otherwise returns `None`. Ports are those of the segment.
    pub fn accept(config: Config, syn: &Segment, start: Start, now: Instant) -> Option<Self> {
        use TcpFlags as F;
        let header = &syn.header;
        if header.flags & (F::SYN | F::ACK | F::RST | F::FIN) != F::SYN {
            return None;
        }
        let mut connection = Self::new(config, header.dst_port, header.src_port, start);
        connection.is_passive = true;
        connection.synchronize(header, now);
        connection.state = connection.state.after(Event::SynReceived);
        // A SYN that offers explicit congestion notification has both bits, its answer one (RFC 3168 section 6.1.1).
        let offer = F::ECE | F::CWR;
        connection.ecn = config.ecn && header.flags & offer == offer;
        Some(connection)
    }

    fn new(config: Config, local_port: u16, remote_port: u16, start: Start) -> Self {
        let receive_window = config.receive_window.min(Config::MAX_RECEIVE_WINDOW);
        let config = Config {
            receive_window,
            ..config
        };
        let shift = shift_for(config.receive_window);
        Self {
            config,
            state: State::SynSent,
            outcome: None,
            is_passive: false,
            local_port,
            remote_port,
            send: Send::new(start.seq, config.mss.into()),
            receive: Receive::new(Seq(0), config.receive_window, shift),
            timers: Timers::default(),
            clock: start.clock,
            stamps: None,
            sack: false,
            scaled: false,
            ecn: false,
            congestion_echo: false,
            limit: ChallengeLimit::default(),
            liveness_limit: ChallengeLimit::default(),
            reset: None,
            probe_due: false,
            keep_alive_due: false,
            unanswered_keep_alives: 0,
            heard_at: Instant(0),
        }
    }

    /// The state.
    pub fn state(&self) -> State {
        self.state
    }

    /// How the connection has ended; `None` while it exists.
    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome
    }

    /// Octets of data that the peer has acknowledged. The owner need not keep them.
    pub fn acknowledged(&self) -> u64 {
        self.send.acknowledged()
    }

    /// Octets of the peer's data that the owner has taken.
    pub fn taken(&self) -> u64 {
        self.receive.taken()
    }

    /// True if a segment with the addresses and ports of this connection is for it. In TIME-WAIT it is only if it may be an old one, or its FIN
    /// again: a new connection may have the same ports (RFC 9293 section 3.10.7.4). In state [`State::Closed`] none is.
    pub fn receives(&self, segment: &Segment) -> bool {
        use TcpFlags as F;
        match self.state {
            State::Closed => false,
            State::TimeWait => !segment.header.flags.contains(F::SYN) && self.has_arrived(segment),
            _ => true,
        }
    }

    /// True if everything in a segment has arrived before, within the last window.
    fn has_arrived(&self, segment: &Segment) -> bool {
        let start = self.receive.pos(segment.header.seq);
        let end = start.map(|start| start + segment.sequence_len());
        let (nxt, window) = (self.receive.nxt(), u64::from(self.config.receive_window));
        end.is_some_and(|end| end <= nxt && end + window >= nxt)
    }

    /// True if the owner holds data ([`Verdict::Held`](crate::Verdict::Held)).
    pub fn is_held(&self) -> bool {
        self.receive.is_held()
    }

    /// True if the owner has taken all data of the peer, which sends no more.
    pub fn is_finished_by_peer(&self) -> bool {
        self.receive.is_finished()
    }

    /// Octets of memory that the connection has allocated besides its own size. Only loss makes it more than 0: see the limits of the crate.
    pub fn allocated(&self) -> usize {
        let of_receive = self.receive.allocated();
        self.send.allocated().saturating_add(of_receive)
    }

    /// Octets of data in a full segment.
    pub fn max_payload(&self) -> u32 {
        self.send.mss()
    }

    /// The congestion window in octets.
    pub fn congestion_window(&self) -> u64 {
        self.send.congestion_window()
    }

    /// The window of the peer in octets.
    pub fn peer_window(&self) -> u64 {
        self.send.window()
    }

    /// Octets that are sent and not acknowledged; a SYN or FIN counts as one.
    pub fn in_flight(&self) -> u64 {
        self.send.flight()
    }

    /// The smoothed round-trip time; `None` before the first measurement.
    pub fn round_trip_time(&self) -> Option<Nanos> {
        self.send.rtt.smoothed()
    }

    /// Adds `octets` of data to send after all earlier ones. Returns false if the owner has closed or the connection has ended.
    pub fn send(&mut self, octets: u64, now: Instant) -> bool {
        if !self.state.can_send() {
            return false;
        }
        self.send.restart_if_idle(now, &self.config);
        self.send.push(octets);
        self.update_timers(now);
        true
    }

    /// Ends the data to send: a FIN follows it. The peer may continue to send.
    pub fn close(&mut self, now: Instant) {
        if !self.state.can_send() {
            return;
        }
        self.send.finish();
        self.state = self.state.after(Event::Close);
        if self.state == State::Closed {
            self.end(Outcome::Aborted);
        }
        self.update_timers(now);
    }

    /// Takes back the data from offset `keep` on, and the [`close`](Connection::close) behind it, of which nothing has been sent. Returns
    /// false, and changes nothing, if a part has been sent. The owner can then send something else in place of it.
    pub fn retract(&mut self, keep: u64, now: Instant) -> bool {
        if !self.state.is_open() || !self.send.retract(keep) {
            return false;
        }
        self.state = self.state.after(Event::Retract);
        self.update_timers(now);
        true
    }

    /// Ends the connection at once, with a reset to the peer (RFC 9293 section 3.10.5).
    pub fn abort(&mut self) {
        match self.state {
            State::Closed => return,
            State::SynSent | State::Closing | State::LastAck | State::TimeWait => (),
            _ => {
                use TcpFlags as F;
                // After the SYN, whose acknowledgment may be under way.
                let seq = self.send.seq(self.send.control_pos().max(Pos::DATA));
                self.reset = Some((seq, F::RST | F::ACK));
            }
        }
        self.end(Outcome::Aborted);
    }

    /// Delivers held data again. The window opens by what the owner takes, and the peer is told at once.
    ///
    /// Also in state [`State::Closed`]: the peer has an acknowledgment for this data, and may have finished in order while it was held.
    /// After [`Outcome::Reset`] or another failure the owner may discard the data instead (RFC 9293 section 3.10.7.4: a reset flushes
    /// what is queued).
    pub fn resume(&mut self, now: Instant, owner: &mut impl Receiver) {
        self.receive.deliver_kept(owner);
        if self.state.is_open() && self.receive.can_open(self.send.mss().into()) {
            self.receive.request_ack();
        }
        self.update_timers(now);
    }

    /// Reduces the maximum segment size after an ICMP message (RFC 1191, RFC 8201): `mss` as [`Config::mss`], `quoted` the sequence
    /// number of the segment that was too big. A message about data that is not in flight is a forgery and ignored (RFC 5927), and so
    /// is a second one within a round-trip time.
    pub fn reduce_mss(&mut self, mss: u16, quoted: Seq, now: Instant) {
        let in_flight = self.send.una()..self.send.max();
        let is_ours = self
            .send
            .pos(quoted)
            .is_some_and(|pos| in_flight.contains(&pos));
        let payload = self.payload_of(mss.max(self.config.min_mss));
        if self.state.is_open() && is_ours && payload < self.send.mss() {
            self.send.reduce_mss(payload, now);
            self.update_timers(now);
        }
    }

    /// Reduces the maximum segment size of later segments, because the own interface has smaller packets: `mss` as [`Config::mss`]. A
    /// larger one than before changes nothing: the peer has been told the first one.
    pub fn limit_mss(&mut self, mss: u16) {
        self.config.mss = self.config.mss.min(mss);
        let payload = self.payload_of(mss);
        if payload < self.send.mss() {
            self.send.set_mss(payload);
        }
    }

    /// The time at which [`Connection::handle_deadline`] has work. Every other call may change it.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Handles the timers that are due. A call that is late, or made too early, is harmless.
    pub fn handle_deadline(&mut self, now: Instant) {
        while let Some(timer) = self.timers.take_due(now) {
            self.expire(timer, now);
        }
        self.update_timers(now);
    }

    /// Starts the timers again that wait for an answer of the peer, if they are due: its segments are held in front of this end, so that
    /// nothing is known to be lost. To be called before [`Connection::handle_deadline`].
    pub fn wait_longer(&mut self, now: Instant) {
        let timeouts = [
            (Timer::Retransmit, self.send.rtt.timeout(&self.config)),
            (Timer::Persist, self.send.probe_timeout(&self.config)),
        ];
        for (timer, timeout) in timeouts {
            if self.timers.is_due(timer, now) {
                self.timers.set(timer, now + timeout);
            }
        }
    }

    fn expire(&mut self, timer: Timer, now: Instant) {
        let max = match self.send.una() {
            Pos(0) => self.config.max_syn_retransmissions,
            _ => self.config.max_retransmissions,
        };
        let gives_up = self.send.unanswered() >= max;
        match timer {
            Timer::Retransmit | Timer::Persist if gives_up => self.end(Outcome::TimedOut),
            Timer::Retransmit => self.send.timed_out(),
            Timer::Persist => self.probe_due = true,
            Timer::DelayedAck => self.receive.end_delay(),
            Timer::KeepAlive => self.expire_keep_alive(now),
            Timer::TimeWait => self.end(Outcome::Finished),
        }
    }

    fn expire_keep_alive(&mut self, now: Instant) {
        let Some(keep_alive) = self.config.keep_alive else {
            return;
        };
        // Data in flight has the retransmission timer.
        if self.send.flight() == 0 && now.since(self.heard_at) >= keep_alive.idle {
            if self.unanswered_keep_alives >= keep_alive.probes {
                self.end(Outcome::TimedOut);
                return;
            }
            self.unanswered_keep_alives = self.unanswered_keep_alives.saturating_add(1);
            self.keep_alive_due = true;
            self.timers.set(Timer::KeepAlive, now + keep_alive.interval);
        }
    }

    /// Starts and stops timers after an event.
    fn update_timers(&mut self, now: Instant) {
        if self.state == State::Closed {
            return;
        }
        let timeout = now + self.send.rtt.timeout(&self.config);
        if self.send.flight() > 0 {
            self.timers.start(Timer::Retransmit, timeout);
        } else {
            self.timers.stop(Timer::Retransmit);
        }
        if self.send.needs_probe() {
            let timeout = now + self.send.probe_timeout(&self.config);
            self.timers.start(Timer::Persist, timeout);
        } else {
            self.timers.stop(Timer::Persist);
            self.probe_due = false;
        }
        if self.config.delayed_ack == Nanos(0) {
            self.receive.end_delay();
        }
        if self.receive.is_ack_delayed() {
            self.timers
                .start(Timer::DelayedAck, now + self.config.delayed_ack);
        } else {
            self.timers.stop(Timer::DelayedAck);
        }
        if let Some(keep_alive) = self.config.keep_alive
            && matches!(self.state, State::Established | State::CloseWait)
        {
            self.timers.start(Timer::KeepAlive, now + keep_alive.idle);
        } else {
            self.timers.stop(Timer::KeepAlive);
        }
        if self.state == State::TimeWait {
            self.timers
                .start(Timer::TimeWait, now + self.config.time_wait);
        }
    }

    /// The connection has ended.
    fn end(&mut self, outcome: Outcome) {
        self.state = self.state.after(Event::End);
        self.outcome = Some(outcome);
        self.timers.stop_all();
    }

    /// Octets of data in a full segment, if the peer or path permits segments of `mss`.
    fn payload_of(&self, mss: u16) -> u32 {
        let options = if self.stamps.is_some() {
            TIMESTAMPS_LEN
        } else {
            0
        };
        let mss = mss.min(self.config.mss).saturating_sub(options);
        mss.max(1).into()
    }

    /// Takes the parameters of the peer's SYN.
    fn synchronize(&mut self, syn: &Tcp, now: Instant) {
        let options = &syn.options;
        self.scaled = options.window_scale.is_some();
        let shift = match options.window_scale {
            Some(shift) => {
                self.send.shift = shift.min(MAX_SHIFT);
                self.receive.shift
            }
            None => 0,
        };
        self.receive = Receive::new(syn.seq, self.config.receive_window, shift);
        self.sack = self.config.sack && options.sack_permitted;
        self.stamps = options
            .timestamps
            .filter(|_| self.config.timestamps)
            .map(|stamps| Stamps {
                recent: stamps.value,
                stored: now,
            });
        let mss = options.mss.unwrap_or(DEFAULT_MSS).max(self.config.min_mss);
        let payload = self.payload_of(mss);
        self.send.set_mss(payload);
        self.heard_at = now;
    }

    /// True if a reset is left to send.
    pub(crate) fn has_reset(&self) -> bool {
        self.reset.is_some()
    }

    /// The value of the timestamp clock, in milliseconds (RFC 7323 section 5.4).
    fn stamp(&self, now: Instant) -> u32 {
        let ms = ((now.0 / 1_000_000) & 0xffff_ffff) as u32;
        self.clock.wrapping_add(ms)
    }
}

/// The smallest shift count with which a window fits into its field.
fn shift_for(window: u32) -> u8 {
    let fits = |shift: &u8| window.wrapping_shr(u32::from(*shift)) <= 0xffff;
    (0..MAX_SHIFT).find(fits).unwrap_or(MAX_SHIFT)
}
