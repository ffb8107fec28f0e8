//! Two hosts and a network between them that loses, reorders, duplicates and marks packets, in virtual time.

use std::collections::BTreeMap;

use faultline_tcp::{Config, Connection, Instant, Listener, Nanos, Secret, State, Tuple};
use faultline_wire::Gid;
use faultline_wire::ip::mark_congestion;

use crate::support::{Owner, packet, parse};

/// One host. Its stream has the number of the host.
pub(crate) trait Host {
    fn input(&mut self, packet: &[u8], now: Instant);
    fn output(&mut self, now: Instant) -> Option<Vec<u8>>;
    /// Called at each deadline, and after each packet.
    fn wake(&mut self, now: Instant);
    fn deadline(&mut self, now: Instant) -> Option<Instant>;
    /// Octets of the peer's stream that have arrived.
    fn received(&self) -> u64;
    /// Both directions have ended in order.
    fn is_finished(&self) -> bool;
}

/// A network.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Network {
    /// Chances in 1000.
    pub(crate) loss: u32,
    pub(crate) duplication: u32,
    pub(crate) reordering: u32,
    pub(crate) marking: u32,
    pub(crate) delay: Nanos,
}

/// What has happened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Report {
    pub(crate) ended: Instant,
    pub(crate) packets: u64,
    pub(crate) lost: u64,
}

/// Runs both hosts until they are finished.
pub(crate) fn run(network: Network, seed: u64, one: &mut dyn Host, two: &mut dyn Host) -> Report {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut now = Instant(1_000_000_000);
    let mut report = Report::default();
    let mut flying: BTreeMap<(Instant, u64), (bool, Vec<u8>)> = BTreeMap::new();
    let mut idle_turns = 0;
    loop {
        let mut moved = false;
        for to_two in [true, false] {
            let host: &mut dyn Host = if to_two { &mut *one } else { &mut *two };
            host.wake(now);
            while let Some(mut packet) = host.output(now) {
                moved = true;
                report.packets += 1;
                assert!(
                    report.packets < 3_000_000,
                    "a storm of packets: {network:?} {seed}"
                );
                let mut chance = |of: u32| random.u32(0..1000) < of;
                if chance(network.loss) {
                    report.lost += 1;
                    continue;
                }
                let copies = if chance(network.duplication) { 2 } else { 1 };
                if packet[1] & 3 != 0 && chance(network.marking) {
                    mark_ip(&mut packet);
                }
                for _ in 0..copies {
                    let late = if random.u32(0..1000) < network.reordering {
                        random.u64(0..3 * network.delay.0.max(1))
                    } else {
                        0
                    };
                    let at = now + network.delay + Nanos(late);
                    flying.insert(
                        (at, report.packets * 2 + flying.len() as u64 % 2),
                        (to_two, packet.clone()),
                    );
                }
            }
        }
        if one.is_finished() && two.is_finished() {
            report.ended = now;
            return report;
        }
        let arrival = flying.keys().next().map(|(at, _)| *at);
        let next = [arrival, one.deadline(now), two.deadline(now)];
        let next = next.into_iter().flatten().min();
        let next = next.unwrap_or_else(|| {
            let (a, b) = (one.received(), two.received());
            panic!("nothing will happen: {network:?} {seed}, {a} and {b} octets received")
        });
        idle_turns = if moved || next > now {
            0
        } else {
            idle_turns + 1
        };
        assert!(
            idle_turns < 100,
            "a deadline that never passes: {network:?} {seed}"
        );
        now = now.max(next);
        assert!(now.0 < 40_000 * 1_000_000_000, "hours: {network:?} {seed}");
        while let Some(entry) = flying.first_entry()
            && entry.key().0 <= now
        {
            let (to_two, packet) = entry.remove();
            let host: &mut dyn Host = if to_two { &mut *two } else { &mut *one };
            host.input(&packet, now);
        }
    }
}

/// Sets "congestion experienced" in an IPv4 packet.
fn mark_ip(packet: &mut [u8]) {
    let mut frame = vec![0; 12];
    frame.extend_from_slice(&[8, 0]);
    frame.extend_from_slice(packet);
    assert!(mark_congestion(&mut frame));
    packet.copy_from_slice(&frame[14..]);
}

/// A host with a connection of ours.
pub(crate) struct Ours {
    number: u8,
    peer: u8,
    pub(crate) connection: Option<Connection>,
    listener: Option<Listener>,
    pub(crate) owner: Owner,
    /// Octets to send, and how many of them were handed over.
    to_send: u64,
    handed: u64,
    /// Octets of a record: segments end where records end.
    record: u64,
    secret: Secret,
    is_closed: bool,
    /// Octets are held at this chance in 1000 until the next deadline of the host.
    pub(crate) holding: u32,
    /// Octets in order are refused at this chance in 1000.
    pub(crate) refusing: u32,
    random: fastrand::Rng,
    resume_at: Option<Instant>,
    pub(crate) retransmissions: u64,
}

const PORT: u16 = 4000;

/// A network that loses a third of the packets needs many attempts, also of the last acknowledgment: the retransmission timeout, up to 60 s,
/// keeps its length until a measurement.
fn patient(config: Config) -> Config {
    Config {
        max_retransmissions: 60,
        max_syn_retransmissions: 60,
        time_wait: Nanos::from_millis(1_200_000),
        ..config
    }
}

impl Ours {
    fn new(number: u8, peer: u8, to_send: u64, record: u64) -> Self {
        Self {
            number,
            peer,
            connection: None,
            listener: None,
            owner: Owner::new(peer),
            to_send,
            handed: 0,
            record,
            secret: Secret([number.into(), 7]),
            is_closed: false,
            holding: 0,
            refusing: 0,
            random: fastrand::Rng::with_seed(number.into()),
            resume_at: None,
            retransmissions: 0,
        }
    }

    fn tuple(&self) -> Tuple {
        Tuple {
            local: Gid::from_ipv4([10, 0, 0, self.number]),
            local_port: PORT,
            remote: Gid::from_ipv4([10, 0, 0, self.peer]),
            remote_port: PORT,
        }
    }

    pub(crate) fn active(config: Config, number: u8, peer: u8, to_send: u64, record: u64) -> Self {
        let mut host = Self::new(number, peer, to_send, record);
        let start = host.secret.start(&host.tuple(), Instant(1_000_000_000));
        host.connection = Some(Connection::connect(patient(config), PORT, PORT, start));
        host
    }

    pub(crate) fn passive(config: Config, number: u8, peer: u8, to_send: u64, record: u64) -> Self {
        let mut host = Self::new(number, peer, to_send, record);
        host.listener = Some(Listener::new(patient(config), 4));
        host
    }

    /// Hands over data in pieces, as long as less than a window of it is not acknowledged, then closes.
    fn feed(&mut self, now: Instant) {
        let Some(connection) = &mut self.connection else {
            return;
        };
        let unsent = self.handed - connection.acknowledged();
        let more = (self.to_send - self.handed).min(100_000);
        if more > 0 && unsent < 200_000 {
            assert!(connection.send(more, now));
            self.handed += more;
        }
        let is_early = connection.state() == State::SynSent;
        if self.handed == self.to_send && !self.is_closed && !is_early {
            connection.close(now);
            self.is_closed = true;
        }
    }
}

impl Host for Ours {
    fn input(&mut self, packet: &[u8], now: Instant) {
        let (segment, data) = parse(packet);
        self.owner.segment = data;
        if self.connection.is_none() {
            let tuple = self.tuple();
            let start = self.secret.start(&tuple, now);
            let listener = self.listener.as_mut().unwrap();
            match listener.complete(&tuple, &segment) {
                Some(connection) => self.connection = Some(connection),
                None => {
                    assert!(listener.receive(&tuple, &segment, start, now));
                    return;
                }
            }
        }
        let connection = self.connection.as_mut().unwrap();
        let chance = self.random.u32(0..1000);
        if chance < self.holding {
            self.owner.verdicts.push_back(faultline_tcp::Verdict::Held);
            self.resume_at.get_or_insert(now + Nanos::from_millis(70));
        } else if chance < self.holding + self.refusing {
            self.owner
                .verdicts
                .push_back(faultline_tcp::Verdict::Refused);
        }
        connection.receive(&segment, now, &mut self.owner);
        self.owner.verdicts.clear();
    }

    fn output(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.feed(now);
        let transmit = match (&mut self.connection, &mut self.listener) {
            (Some(connection), _) => {
                let record = self.record;
                connection.poll_transmit(now, |offset, max| {
                    let rest = record - offset % record;
                    rest.min(max.into()) as u32
                })
            }
            (None, Some(listener)) => listener.poll_transmit(now).map(|(_, transmit)| transmit),
            (None, None) => None,
        }?;
        self.retransmissions += u64::from(transmit.is_retransmission);
        Some(packet(self.number, self.peer, &transmit))
    }

    fn wake(&mut self, now: Instant) {
        if let Some(connection) = &mut self.connection {
            connection.handle_deadline(now);
            if self.resume_at.is_some_and(|at| at <= now) {
                self.resume_at = None;
                connection.resume(now, &mut self.owner);
            }
        }
        if let Some(listener) = &mut self.listener {
            listener.handle_deadline(now);
        }
    }

    fn deadline(&mut self, _: Instant) -> Option<Instant> {
        let connection = self.connection.as_ref();
        let deadlines = [
            connection.and_then(Connection::next_deadline),
            self.listener.as_ref().and_then(Listener::next_deadline),
            self.resume_at,
        ];
        deadlines.into_iter().flatten().min()
    }

    fn received(&self) -> u64 {
        self.owner.taken
    }

    fn is_finished(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| {
            let state = connection.state();
            assert!(
                state != State::Closed
                    || connection.outcome() == Some(faultline_tcp::Outcome::Finished),
                "host {}: {:?}, {} octets taken, {} acknowledged",
                self.number,
                connection.outcome(),
                connection.taken(),
                connection.acknowledged()
            );
            matches!(state, State::Closed | State::TimeWait) && connection.is_finished_by_peer()
        })
    }
}
