//! Peers and networks that send anything.

use faultline_tcp::{
    Config, Connection, Instant, KeepAlive, Nanos, Segment, Start, State, Verdict, reset_for,
};
use faultline_wire::{SackBlocks, Seq, Tcp, TcpFlags, Timestamps};
use proptest::prelude::*;

use crate::support::Owner;

const OURS: Seq = Seq(0xffff_ff00);
const THEIRS: Seq = Seq(0x7fff_fff0);

/// A number near one that matters, or any.
fn near() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0..5u32, 4 => 0..3000u32, 2 => any::<u32>(), 1 => (0..70_000u32).prop_map(|n| 0u32.wrapping_sub(n))]
}

fn segment() -> impl Strategy<Value = Segment> {
    let flags = prop_oneof![
        6 => Just(TcpFlags::ACK),
        2 => Just(TcpFlags::SYN | TcpFlags::ACK),
        1 => Just(TcpFlags::SYN),
        1 => Just(TcpFlags::FIN | TcpFlags::ACK),
        3 => any::<u8>().prop_map(TcpFlags::from_bits_retain),
    ];
    let len = prop_oneof![Just(0), 1..2000u32, 0..70_000u32];
    let blocks = proptest::collection::vec((near(), near()), 0..4);
    (
        (near(), near(), flags, any::<u16>(), len, any::<bool>()),
        (
            proptest::option::of((near(), near())),
            any::<(Option<u16>, Option<u8>, bool)>(),
            blocks,
        ),
    )
        .prop_map(
            |(
                (seq, ack, flags, window, len, ce),
                (ts, (mss, window_scale, sack_permitted), blocks),
            )| {
                let mut header = Tcp {
                    seq: THEIRS.add(seq),
                    ack: OURS.add(ack),
                    flags,
                    window,
                    ..Tcp::default()
                };
                header.options.mss = mss;
                header.options.window_scale = window_scale;
                header.options.sack_permitted = sack_permitted;
                header.options.timestamps = ts.map(|(value, echo)| Timestamps { value, echo });
                let mut sack = SackBlocks::default();
                for (left, right) in blocks {
                    sack.push(OURS.add(left), OURS.add(right));
                }
                header.options.sack = sack;
                Segment {
                    header,
                    len,
                    congestion_experienced: ce,
                }
            },
        )
}

#[derive(Clone, Debug)]
enum Step {
    Receive(Segment),
    Send(u64),
    Close,
    Retract(u64),
    Abort,
    Resume,
    Verdict(Verdict),
    Pass(u64),
    Reduce(u16, u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => segment().prop_map(Step::Receive),
        2 => (0..100_000u64).prop_map(Step::Send),
        1 => Just(Step::Close),
        1 => (0..100_000u64).prop_map(Step::Retract),
        1 => Just(Step::Resume),
        1 => prop_oneof![Just(Verdict::Held), Just(Verdict::Refused), (0..3000u32).prop_map(Verdict::Taken)].prop_map(Step::Verdict),
        3 => (0..100_000u64).prop_map(Step::Pass),
        1 => (any::<u16>(), near()).prop_map(|(mss, seq)| Step::Reduce(mss, seq)),
        1 => prop_oneof![20 => Just(Step::Resume), 1 => Just(Step::Abort)],
    ]
}

/// Octets of zeros: a hostile peer may send different octets for one offset, so their values mean nothing here.
struct Anything {
    owner: Owner,
    /// The most octets after those that are taken.
    bound: u64,
}

impl Anything {
    /// A window field that is rounded up admits less than one step of the field more than the window.
    fn new(config: &Config) -> Self {
        let shift = (0..14).find(|shift| config.receive_window >> shift <= 0xffff);
        Self {
            owner: Owner::new(2),
            bound: u64::from(config.receive_window) + (1 << shift.unwrap_or(14)) - 1,
        }
    }

    fn check(&self, data: &faultline_tcp::Data) {
        let end = data.offset + u64::from(data.len);
        assert!(data.len > 0 && data.offset >= self.owner.taken);
        assert!(end <= self.owner.taken + self.bound, "{data:?}");
    }
}

impl faultline_tcp::Receiver for Anything {
    fn deliver(&mut self, data: faultline_tcp::Data) -> Verdict {
        self.check(&data);
        assert_eq!(data.offset, self.owner.taken);
        let verdict = self.owner.verdicts.pop_front();
        let verdict = verdict.unwrap_or(Verdict::Taken(data.len));
        if let Verdict::Taken(len) = verdict {
            self.owner.taken += u64::from(len.min(data.len));
        }
        verdict
    }

    fn keep(&mut self, data: faultline_tcp::Data) -> bool {
        self.check(&data);
        true
    }
}

fn run(mut connection: Connection, config: &Config, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut owner = Anything::new(config);
    let mut now = Instant(0);
    let mut provided = 0;
    for step in steps {
        let window_before = connection.taken();
        match step {
            Step::Receive(segment) => {
                connection.receive(&segment, now, &mut owner);
                let _ = reset_for(&segment);
            }
            Step::Send(octets) => {
                provided += if connection.send(octets, now) {
                    octets
                } else {
                    0
                }
            }
            Step::Close => connection.close(now),
            Step::Retract(keep) => {
                if connection.retract(keep, now) {
                    assert!(keep <= provided);
                    provided = keep;
                }
            }
            Step::Abort => connection.abort(),
            Step::Resume => connection.resume(now, &mut owner),
            Step::Verdict(verdict) => owner.owner.verdicts.push_back(verdict),
            Step::Pass(ms) => {
                now = now + Nanos::from_millis(ms);
                connection.handle_deadline(now);
            }
            Step::Reduce(mss, seq) => connection.reduce_mss(mss, OURS.add(seq), now),
        }
        // A pass has an end: windows bound it.
        let mut segments = 0;
        while let Some(transmit) = connection.poll_transmit(now, |_, max| max) {
            segments += 1;
            prop_assert!(segments < 5000, "a storm");
            prop_assert!(transmit.header.emit(&mut [0; Tcp::MAX_LEN]).is_ok());
            prop_assert!(
                transmit.offset + u64::from(transmit.len) <= provided,
                "{transmit:?}"
            );
        }
        // A deadline that is due would make the caller spin.
        let is_late = connection
            .next_deadline()
            .is_some_and(|deadline| deadline <= now);
        prop_assert!(!is_late, "{:?}", connection.next_deadline());
        prop_assert!(connection.acknowledged() <= provided);
        prop_assert!(
            connection.taken() == owner.owner.taken && connection.taken() >= window_before
        );
        prop_assert_eq!(
            connection.outcome().is_some(),
            connection.state() == State::Closed
        );
    }
    Ok(())
}

fn config() -> impl Strategy<Value = Config> {
    (any::<[bool; 4]>(), 1..2_000_000u32, 1..2000u16).prop_map(
        |([sack, timestamps, ecn, keep_alive], receive_window, mss)| Config {
            sack,
            timestamps,
            ecn,
            receive_window,
            mss,
            min_mss: 100,
            max_retransmissions: 3,
            keep_alive: keep_alive.then_some(KeepAlive {
                idle: Nanos::from_millis(10_000),
                interval: Nanos::from_millis(1000),
                probes: 2,
            }),
            ..Config::default()
        },
    )
}

/// The handshake, without which most segments are ignored.
fn handshake(options: &Config) -> Segment {
    let mut header = Tcp {
        seq: THEIRS,
        ack: OURS.add(1),
        flags: TcpFlags::SYN | TcpFlags::ACK,
        window: 30_000,
        ..Tcp::default()
    };
    header.options.mss = Some(1000);
    header.options.sack_permitted = options.sack;
    header.options.window_scale = Some(2);
    Segment {
        header,
        len: 0,
        congestion_experienced: false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn nothing_panics_or_spins(config in config(), opens in any::<bool>(), steps in proptest::collection::vec(step(), 0..60)) {
        let start = Start { seq: OURS, clock: 5 };
        let connection = Connection::connect(config, 1, 2, start);
        let mut all = Vec::new();
        if opens {
            // The SYN leaves with the first step.
            all.push(Step::Pass(0));
            all.push(Step::Receive(handshake(&config)));
        }
        all.extend(steps);
        run(connection, &config, all)?;
    }

    #[test]
    fn nothing_panics_behind_a_listener(config in config(), syn in segment(), steps in proptest::collection::vec(step(), 0..40)) {
        let start = Start { seq: OURS, clock: 5 };
        let accepted = Connection::accept(config, &syn, start, Instant(0));
        let is_syn = syn.header.flags & (TcpFlags::SYN | TcpFlags::ACK | TcpFlags::RST | TcpFlags::FIN) == TcpFlags::SYN;
        prop_assert_eq!(accepted.is_some(), is_syn);
        if let Some(connection) = accepted {
            run(connection, &config, steps)?;
        }
    }
}

/// Sends segments of these lengths to an owner that holds everything, whatever the window field says. Returns the last window field.
fn fill(config: Config, owner: &mut Anything, lens: &[u32]) -> u16 {
    let start = Start {
        seq: OURS,
        clock: 5,
    };
    let mut connection = Connection::connect(config, 1, 2, start);
    let now = Instant(0);
    assert!(connection.poll_transmit(now, |_, max| max).is_some());
    connection.receive(&handshake(&config), now, owner);
    let mut last = connection.poll_transmit(now, |_, max| max).unwrap().header;
    for len in lens {
        let header = Tcp {
            seq: last.ack,
            ack: OURS.add(1),
            flags: TcpFlags::ACK,
            window: 1000,
            ..Tcp::default()
        };
        let segment = Segment {
            header,
            len: *len,
            congestion_experienced: false,
        };
        owner.owner.verdicts.push_back(Verdict::Held);
        connection.receive(&segment, now, owner);
        while let Some(transmit) = connection.poll_transmit(now, |_, max| max) {
            last = transmit.header;
        }
    }
    assert_eq!(connection.taken(), 0);
    last.window
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn held_data_closes_the_window(receive_window in 65_536..200_000u32, lens in proptest::collection::vec(1000..3000u32, 200)) {
        let config = Config { receive_window, sack: false, timestamps: false, ..Config::default() };
        prop_assert_eq!(fill(config, &mut Anything::new(&config), &lens), 0);
    }
}

#[test]
fn a_window_that_is_too_large_counts_as_the_largest() {
    let config = |receive_window| Config {
        receive_window,
        sack: false,
        timestamps: false,
        ..Config::default()
    };
    let mut owner = Anything::new(&config(1 << 30));
    assert_eq!(fill(config(u32::MAX), &mut owner, &[1 << 27; 20]), 0);
}

/// 10,000 idle connections cost 2.5 KiB each with all that belongs to them: this is the part of TCP.
#[test]
fn a_connection_is_small() {
    let size = size_of::<Connection>();
    assert!(size <= 1280, "{size}");
}
