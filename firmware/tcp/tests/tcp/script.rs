//! Scripts for one connection: segments that arrive, segments that must leave, calls and times.
//!
//! A line is one step. Sequence numbers are relative to the SYN of their sender.
//!
//! ```text
//! < FLAGS FROM:TO [ack N] [win N] [sack A-B,C-D] [ts VALUE/ECHO] [mss N] [ws N] [sackok] [ce]   a segment arrives
//! > FLAGS FROM:TO ...                                                                           it must leave next
//! +N                                                                                            N ms pass
//! send N | close | abort | resume                                                               calls of the owner
//! take N | refuse | hold                                                                        the next decision
//! keep nothing | keep all                                                                       out of order
//! state NAME | outcome NAME | taken N | acked N | cwnd N                                        must be so
//! ```
//!
//! FLAGS are letters of `SFRPAEW` (W: CWR), or `-`. A window is in octets. Of a segment that leaves, the options that the line names are
//! compared, and the window if it is named; a `ts` or `sack` that the line does not name must be absent. Segments that leave are
//! collected when a line that is no `>` ends, and all must be named.

use std::collections::VecDeque;

use faultline_tcp::{Config, Connection, Instant, Nanos, Segment, Start, Transmit, Verdict};
use faultline_wire::{SackBlocks, Seq, Tcp, TcpFlags, Timestamps};

use crate::support::{Owner, octets};

/// First sequence numbers of both ends; those of this end wrap around soon.
const OURS: Seq = Seq(0xffff_fe00);
const THEIRS: Seq = Seq(0x7fff_ff00);

/// Parameters with which most scripts run: one octet of data costs one octet, and times are round.
pub(crate) fn plain() -> Config {
    Config {
        mss: 1000,
        min_mss: 100,
        receive_window: 10_000,
        sack: false,
        timestamps: false,
        ecn: false,
        ..Config::default()
    }
}

#[derive(Debug, Default, PartialEq)]
struct Line {
    flags: String,
    from: i64,
    to: i64,
    ack: Option<i64>,
    win: Option<u32>,
    sack: Vec<(i64, i64)>,
    ts: Option<(u32, u32)>,
    mss: Option<u16>,
    ws: Option<u8>,
    sackok: bool,
    ce: bool,
}

fn pair<T: std::str::FromStr>(text: &str, by: char) -> (T, T) {
    let (a, b) = text.split_once(by).expect("two numbers");
    let number = |text: &str| text.parse().ok().expect("a number");
    (number(a), number(b))
}

impl Line {
    fn parse(text: &str) -> Self {
        let mut words = text.split_whitespace();
        let flags = words.next().expect("flags").to_owned();
        let (from, to) = pair(words.next().expect("numbers"), ':');
        let mut line = Self {
            flags,
            from,
            to,
            ..Self::default()
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().expect("a value");
            match word {
                "ack" => line.ack = Some(value().parse().unwrap()),
                "win" => line.win = Some(value().parse().unwrap()),
                "sack" => line.sack = value().split(',').map(|block| pair(block, '-')).collect(),
                "ts" => line.ts = Some(pair(value(), '/')),
                "mss" => line.mss = Some(value().parse().unwrap()),
                "ws" => line.ws = Some(value().parse().unwrap()),
                "sackok" => line.sackok = true,
                "ce" => line.ce = true,
                _ => panic!("{word}"),
            }
        }
        line
    }

    /// The segment of the peer, whose window field is shifted by `shift`.
    fn segment(&self, shift: u8) -> (Segment, Vec<u8>) {
        const LETTERS: [(char, TcpFlags); 7] = [
            ('S', TcpFlags::SYN),
            ('F', TcpFlags::FIN),
            ('R', TcpFlags::RST),
            ('P', TcpFlags::PSH),
            ('A', TcpFlags::ACK),
            ('E', TcpFlags::ECE),
            ('W', TcpFlags::CWR),
        ];
        let letters = LETTERS.into_iter();
        let flags = letters
            .filter(|(letter, _)| self.flags.contains(*letter))
            .fold(TcpFlags::empty(), |flags, (_, flag)| flags | flag);
        let control = flags & (TcpFlags::SYN | TcpFlags::FIN);
        let len = self.to - self.from - i64::from(control.bits().count_ones());
        let seq = |base: Seq, at: i64| base.add(at as u32);
        let mut sack = SackBlocks::default();
        for (left, right) in &self.sack {
            assert!(sack.push(seq(OURS, *left), seq(OURS, *right)));
        }
        let shift = if flags.contains(TcpFlags::SYN) {
            0
        } else {
            shift
        };
        let mut header = Tcp {
            src_port: 2,
            dst_port: 1,
            seq: seq(THEIRS, self.from),
            ack: self.ack.map_or(Seq(0), |ack| seq(OURS, ack)),
            flags,
            window: (self.win.unwrap_or(20_000) >> shift) as u16,
            ..Tcp::default()
        };
        header.options.mss = self.mss;
        header.options.window_scale = self.ws;
        header.options.sack_permitted = self.sackok;
        header.options.sack = sack;
        header.options.timestamps = self.ts.map(|(value, echo)| Timestamps { value, echo });
        let segment = Segment {
            header,
            len: len as u32,
            congestion_experienced: self.ce,
        };
        // The offset of the first octet is one less than its position.
        let data = octets(2, (self.from.max(1) - 1) as u64, len as u64);
        (segment, data)
    }

    /// A segment of ours, as a line with the options that `like` names.
    fn of(transmit: &Transmit, shift: u8, like: &Self) -> Self {
        let header = &transmit.header;
        let letters = "FSRPAUEW".chars().enumerate();
        let flags: String = "SFRPAEW"
            .chars()
            .filter(|wanted| {
                let mut letters = letters.clone();
                letters
                    .any(|(bit, letter)| letter == *wanted && header.flags.bits() >> bit & 1 == 1)
            })
            .collect();
        let control = header.flags & (TcpFlags::SYN | TcpFlags::FIN);
        let len = i64::from(transmit.len) + i64::from(control.bits().count_ones());
        let from = i64::from(header.seq.diff(OURS));
        if transmit.len > 0 {
            assert_eq!(transmit.offset as i64, from - 1, "offset");
        }
        let has_ack = header.flags.contains(TcpFlags::ACK);
        let shift = if header.flags.contains(TcpFlags::SYN) {
            0
        } else {
            shift
        };
        let blocks = header.options.sack;
        let relative = |seq: Seq| i64::from(seq.diff(THEIRS));
        Self {
            flags: if flags.is_empty() { "-".into() } else { flags },
            from,
            to: from + len,
            ack: has_ack.then(|| relative(header.ack)),
            win: like.win.map(|_| u32::from(header.window) << shift),
            sack: blocks
                .as_slice()
                .iter()
                .map(|(a, b)| (relative(*a), relative(*b)))
                .collect(),
            ts: header.options.timestamps.map(|ts| (ts.value, ts.echo)),
            mss: like.mss.and(header.options.mss),
            ws: like.ws.and(header.options.window_scale),
            sackok: like.sackok && header.options.sack_permitted,
            ce: like.ce && transmit.ecn_capable,
        }
    }
}

/// A connection that runs a script.
pub(crate) struct Script {
    pub(crate) connection: Option<Connection>,
    pub(crate) config: Config,
    pub(crate) owner: Owner,
    pub(crate) now: Instant,
    sent: VecDeque<Transmit>,
    /// Shift counts of window fields: of this end, and of the peer.
    shifts: (u8, u8),
    /// Octets that a segment has at most.
    pub(crate) record: u32,
}

impl Script {
    /// A host that answers a SYN.
    pub(crate) fn passive(config: Config) -> Self {
        Self {
            connection: None,
            config,
            owner: Owner::new(2),
            now: Instant(0),
            sent: VecDeque::new(),
            shifts: (0, 0),
            record: u32::MAX,
        }
    }

    /// A host that sends a SYN.
    pub(crate) fn active(config: Config) -> Self {
        let mut script = Self::passive(config);
        let start = Start {
            seq: OURS,
            clock: 100,
        };
        script.connection = Some(Connection::connect(config, 1, 2, start));
        script.poll();
        script
    }

    /// An established connection, opened by this end.
    pub(crate) fn established(config: Config) -> Self {
        let mut script = Self::active(config);
        script.sent.clear();
        script.run("< SA 0:1 ack 1 mss 1000\n> A 1:1 ack 1");
        script
    }

    pub(crate) fn get(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("a connection")
    }

    fn poll(&mut self) {
        let record = self.record;
        let Some(connection) = &mut self.connection else {
            return;
        };
        while let Some(transmit) = connection.poll_transmit(self.now, |_, max| max.min(record)) {
            self.sent.push_back(transmit);
            assert!(self.sent.len() < 1000, "a storm");
        }
    }

    /// Time passes, with all deadlines in between.
    fn pass(&mut self, ms: u64) {
        let end = self.now + Nanos::from_millis(ms);
        while let Some(connection) = &mut self.connection
            && let Some(deadline) = connection.next_deadline()
            && deadline <= end
        {
            self.now = self.now.max(deadline);
            connection.handle_deadline(self.now);
            self.poll();
        }
        self.now = end;
    }

    fn arrive(&mut self, text: &str) {
        let line = Line::parse(text);
        if let Some(shift) = line.ws {
            let ours = (0..14).find(|shift| self.config.receive_window >> shift <= 0xffff);
            self.shifts = (ours.unwrap(), shift);
        }
        let (segment, data) = line.segment(self.shifts.1);
        self.owner.segment = data;
        let start = Start {
            seq: OURS,
            clock: 100,
        };
        match &mut self.connection {
            Some(connection) => {
                connection.receive(&segment, self.now, &mut self.owner);
            }
            None => {
                self.connection = Connection::accept(self.config, &segment, start, self.now);
            }
        }
    }

    fn expect(&mut self, text: &str, at: &str) {
        let wanted = Line::parse(text);
        let Some(transmit) = self.sent.pop_front() else {
            panic!("{at}: nothing was sent");
        };
        let sent = Line::of(&transmit, self.shifts.0, &wanted);
        assert_eq!(sent, wanted, "{at}");
    }

    /// Runs a script. Everything that was sent must be named.
    pub(crate) fn run(&mut self, script: &str) {
        for (number, text) in script.lines().enumerate() {
            let text = text.trim();
            let at = format!("line {}: {text}", number + 1);
            if let Some(line) = text.strip_prefix('>') {
                self.expect(line, &at);
                continue;
            }
            if text.is_empty() {
                continue;
            }
            let unnamed = self
                .sent
                .front()
                .map(|sent| Line::of(sent, self.shifts.0, &Line::default()));
            assert_eq!(unnamed, None, "before {at}");
            self.step(text, &at);
            self.poll();
        }
        let unnamed = self
            .sent
            .front()
            .map(|sent| Line::of(sent, self.shifts.0, &Line::default()));
        assert_eq!(unnamed, None, "at the end");
    }

    fn step(&mut self, text: &str, at: &str) {
        let now = self.now;
        if let Some(line) = text.strip_prefix('<') {
            return self.arrive(line);
        }
        if let Some(ms) = text.strip_prefix('+') {
            return self.pass(ms.parse().expect("milliseconds"));
        }
        let (command, value) = text.split_once(' ').unwrap_or((text, ""));
        let number = || value.parse::<u64>().expect("a number");
        let owner = &mut self.owner;
        match (command, value) {
            ("take", _) => owner.verdicts.push_back(Verdict::Taken(number() as u32)),
            ("refuse", _) => owner.verdicts.push_back(Verdict::Refused),
            ("hold", _) => owner.verdicts.push_back(Verdict::Held),
            ("keep", _) => owner.keeps_nothing = value == "nothing",
            ("taken", _) => assert_eq!(owner.taken, number(), "{at}"),
            _ => {
                let connection = self.connection.as_mut().expect("a connection");
                match command {
                    "send" => assert!(connection.send(number(), now), "{at}"),
                    "close" => connection.close(now),
                    "abort" => connection.abort(),
                    "resume" => connection.resume(now, &mut self.owner),
                    "state" => assert_eq!(format!("{:?}", connection.state()), value, "{at}"),
                    "outcome" => {
                        let outcome = connection.outcome().map(|outcome| format!("{outcome:?}"));
                        assert_eq!(outcome.as_deref(), Some(value), "{at}");
                    }
                    "acked" => assert_eq!(connection.acknowledged(), number(), "{at}"),
                    "cwnd" => assert_eq!(connection.congestion_window(), number(), "{at}"),
                    _ => panic!("{at}"),
                }
            }
        }
    }
}
