//! TCP: segments of any peer to a connection, and any decisions and calls of its owner.

use faultline_tcp::{
    Config, Connection, Data, Instant, KeepAlive, Nanos, Receiver, Segment, Start, State, Verdict,
    reset_for,
};
use faultline_wire::{SackBlocks, Seq, Tcp, TcpFlags, Timestamps};

use crate::input::Input;

const OURS: Seq = Seq(0xffff_ff00);
const THEIRS: Seq = Seq(0x7fff_fff0);
/// Steps of an input.
const STEPS: usize = 64;
/// Segments that may leave after a step: windows bound them.
const STORM: u32 = 5000;
/// Octets that the owner adds at a time.
const SENT: u64 = 100_000;

/// The owner. It takes what is delivered, unless it has another decision for it.
struct Owner {
    taken: u64,
    verdict: Option<Verdict>,
    /// The most octets after those that are taken: the window, and less than one step of the window field.
    bound: u64,
}

impl Owner {
    fn new(config: &Config) -> Self {
        let window = config.receive_window;
        let shift = (0..14).find(|shift| window >> shift <= 0xffff);
        Self {
            taken: 0,
            verdict: None,
            bound: u64::from(window) + (1 << shift.unwrap_or(14)) - 1,
        }
    }

    fn check(&self, data: &Data) {
        let end = data.offset + u64::from(data.len);
        assert!(data.len > 0 && data.offset >= self.taken, "{data:?}");
        assert!(end <= self.taken + self.bound, "{data:?}");
    }
}

impl Receiver for Owner {
    fn deliver(&mut self, data: Data) -> Verdict {
        self.check(&data);
        assert_eq!(data.offset, self.taken);
        let verdict = self.verdict.take().unwrap_or(Verdict::Taken(data.len));
        if let Verdict::Taken(len) = verdict {
            self.taken += u64::from(len.min(data.len));
        }
        verdict
    }

    fn keep(&mut self, data: Data) -> bool {
        self.check(&data);
        self.verdict != Some(Verdict::Refused)
    }
}

/// A number near one that matters, or any.
fn near(input: &mut Input<'_>) -> u32 {
    match input.u8() % 8 {
        0..=2 => u32::from(input.u8()) % 5,
        3..=5 => u32::from(input.u16()) % 3000,
        6 => u32::from(input.u16()).wrapping_neg(),
        _ => input.u32(),
    }
}

fn segment(input: &mut Input<'_>) -> Segment {
    let flags = match input.u8() % 8 {
        0..=4 => TcpFlags::ACK,
        5 => TcpFlags::SYN | TcpFlags::ACK,
        6 => TcpFlags::FIN | TcpFlags::ACK,
        _ => TcpFlags::from_bits_retain(input.u8()),
    };
    let mut header = Tcp {
        seq: THEIRS.add(near(input)),
        ack: OURS.add(near(input)),
        flags,
        window: input.u16(),
        ..Tcp::default()
    };
    let has = input.u8();
    let options = &mut header.options;
    options.mss = (has & 1 != 0).then(|| input.u16());
    options.window_scale = (has & 2 != 0).then(|| input.u8());
    options.sack_permitted = has & 4 != 0;
    options.timestamps = (has & 8 != 0).then(|| Timestamps {
        value: near(input),
        echo: near(input),
    });
    let mut sack = SackBlocks::default();
    for _ in 0..has >> 6 {
        sack.push(OURS.add(near(input)), OURS.add(near(input)));
    }
    options.sack = sack;
    Segment {
        header,
        len: match has & 16 {
            0 => 0,
            _ => u32::from(input.u16()),
        },
        congestion_experienced: has & 32 != 0,
    }
}

fn config(input: &mut Input<'_>) -> Config {
    let has = input.u8();
    Config {
        sack: has & 1 != 0,
        timestamps: has & 2 != 0,
        ecn: has & 4 != 0,
        receive_window: 1 + (u32::from(input.u16()) << (has >> 5)),
        mss: 1 + input.u16() % 2000,
        min_mss: 100,
        max_retransmissions: 3,
        delayed_ack: Nanos::from_millis(if has & 8 != 0 { 40 } else { 0 }),
        keep_alive: (has & 16 != 0).then_some(KeepAlive {
            idle: Nanos::from_millis(10_000),
            interval: Nanos::from_millis(1000),
            probes: 2,
        }),
        ..Config::default()
    }
}

/// A connection with its owner, and what is true of both at any time.
struct End {
    connection: Connection,
    owner: Owner,
    now: Instant,
    /// Octets that the owner has added.
    provided: u64,
}

impl End {
    fn step(&mut self, input: &mut Input<'_>) {
        let (connection, now) = (&mut self.connection, self.now);
        match input.u8() % 16 {
            0..=7 => {
                let segment = segment(input);
                connection.receive(&segment, now, &mut self.owner);
                let _ = reset_for(&segment);
            }
            8 | 9 => {
                let octets = u64::from(input.u32()) % SENT;
                if connection.send(octets, now) {
                    self.provided += octets;
                }
            }
            10 => connection.resume(now, &mut self.owner),
            11 => {
                self.owner.verdict = Some(match input.u8() % 3 {
                    0 => Verdict::Held,
                    1 => Verdict::Refused,
                    _ => Verdict::Taken(u32::from(input.u16())),
                });
            }
            12 | 13 => {
                self.now = now + Nanos::from_millis(u64::from(input.u32()) % SENT);
                connection.handle_deadline(self.now);
            }
            14 => connection.reduce_mss(input.u16(), OURS.add(near(input)), now),
            _ => match input.u8() % 4 {
                0 => connection.close(now),
                1 => connection.abort(),
                _ => {}
            },
        }
    }

    fn check(&mut self, taken: u64) {
        let connection = &mut self.connection;
        let mut segments = 0;
        while let Some(transmit) = connection.poll_transmit(self.now, |_, max| max) {
            segments += 1;
            assert!(segments < STORM, "a storm");
            let header = transmit.header.emit(&mut [0; Tcp::MAX_LEN]);
            assert!(header.is_ok(), "{transmit:?}");
            let end = transmit.offset + u64::from(transmit.len);
            assert!(end <= self.provided, "{transmit:?}");
        }
        // A deadline that is due would make the caller spin.
        let deadline = connection.next_deadline();
        assert!(deadline.is_none_or(|at| at > self.now), "{deadline:?}");
        assert!(connection.acknowledged() <= self.provided);
        assert_eq!(connection.taken(), self.owner.taken);
        assert!(connection.taken() >= taken);
        assert_eq!(
            connection.outcome().is_some(),
            connection.state() == State::Closed
        );
    }
}

/// The connection sends only what it has, keeps no more than its window, has no deadline that is due, and ends a pass.
pub fn segments(data: &[u8]) {
    let mut input = Input(data);
    let config = config(&mut input);
    let start = Start {
        seq: OURS,
        clock: 5,
    };
    let now = Instant(0);
    let connection = match input.u8() % 4 {
        0 => match Connection::accept(config, &segment(&mut input), start, now) {
            Some(connection) => connection,
            None => return,
        },
        _ => Connection::connect(config, 1, 2, start),
    };
    let mut end = End {
        connection,
        owner: Owner::new(&config),
        now,
        provided: 0,
    };
    end.check(0);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let taken = end.connection.taken();
        end.step(&mut input);
        end.check(taken);
    }
}
