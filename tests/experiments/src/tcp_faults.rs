//! What a page fault at the receiver does to the sender's TCP, beside RoCE.

use anyhow::{Context, Result, ensure};
use faultline_abi::cqe;
use faultline_abi::qp::{
    FAULT_POLICY_DROP, FAULT_POLICY_RNR, FAULT_POLICY_STALL, FAULT_POLICY_TERMINATE, QPT_RC,
};
use faultline_abi::wqe::WR_WRITE;
use faultline_nic::{ReadyMode, Transport};
use faultline_simulation::{Cq, Driver, Mr, Qp, Send};
use faultline_simulator::{HostPager, World};
use faultline_wire::ip::PROTOCOL_TCP;
use faultline_wire::packet::parse;
use faultline_wire::{Ethernet, Ip, Seq, Tcp};

use crate::document::{Experiment, Table};
use crate::units::{digits, time};

/// Times of a fault in nanoseconds.
const FAULTS: [u64; 4] = [100_000, 1_000_000, 10_000_000, 100_000_000];
/// The fault beside which the neighbour is measured, and frames are counted.
const SHOWN: usize = 2;
/// A frame of 1500 octets at 100 Gbit/s.
const FRAME_NS: u64 = 120;
const MTU: u16 = 1500;
/// WRITEs of the stream: how many, octets of each, outstanding at a time, and the one that meets the absent page.
const WRITES: u32 = 1000;
const LEN: u32 = 4096;
const DEPTH: u32 = 128;
const FAULTING: u32 = 500;
/// Each octet of the source.
const DATA: u8 = 0xa5;
/// A round trip: 1 µs in each direction, and two frames.
const ROUND_TRIP: u64 = 2_300;
/// Octets of the WRITEs of the neighbour, one at a time, and the time between them.
const NEIGHBOUR_LEN: u32 = 64;
const NEIGHBOUR_GAP: u64 = 200_000;
/// Code of the local ACK timeout of RoCE: 67 ms.
const TIMEOUT: u8 = 14;
const VA: u64 = 0x5000_0000_0000;

/// A protocol and a fault policy.
struct Case {
    name: &'static str,
    /// What the debate says of it.
    said: &'static str,
    transport: Transport,
    policy: u8,
    ready: ReadyMode,
}

const fn case(
    name: &'static str,
    said: &'static str,
    (transport, policy, ready): (Transport, u8, ReadyMode),
) -> Case {
    Case {
        name,
        said,
        transport,
        policy,
        ready,
    }
}

const CASES: [Case; 9] = {
    use ReadyMode::{Known, Never};
    use Transport::{Iwarp, Roce};
    let no_signal = "001: \"There is no way to signal that a page is not ready and the remote should not send.\"";
    let drop = "000: \"drop the packet before acking it\"; 001: \"it means TCP retransmit and slow start and all that\"";
    let stall =
        "000: \"simply unacceptable for one end of an RDMA connection to back up the network\"";
    let end = "000: \"If there is a fault, the connection MAY be torn down\"";
    [
        case(
            "iWARP `rnr` (hold)",
            no_signal,
            (Iwarp, FAULT_POLICY_RNR, Known),
        ),
        case("iWARP `drop`", drop, (Iwarp, FAULT_POLICY_DROP, Known)),
        case("iWARP `stall`", stall, (Iwarp, FAULT_POLICY_STALL, Known)),
        case(
            "iWARP `terminate`",
            end,
            (Iwarp, FAULT_POLICY_TERMINATE, Known),
        ),
        case("RoCE `rnr`", no_signal, (Roce, FAULT_POLICY_RNR, Known)),
        case(
            "RoCE `rnr`, no READY",
            no_signal,
            (Roce, FAULT_POLICY_RNR, Never),
        ),
        case(
            "RoCE `drop`, no READY",
            drop,
            (Roce, FAULT_POLICY_DROP, Never),
        ),
        case("RoCE `stall`", stall, (Roce, FAULT_POLICY_STALL, Known)),
        case(
            "RoCE `terminate`",
            end,
            (Roce, FAULT_POLICY_TERMINATE, Known),
        ),
    ]
};

/// Queue pairs of both hosts, and the CQ of the requester.
struct Connection {
    cq: Cq,
    qps: [Qp; 2],
}

/// The segments of a TCP sender, host 0, and the acknowledgments that it gets.
#[derive(Default)]
struct Flight {
    sent: Option<Seq>,
    acknowledged: Option<Seq>,
}

impl Flight {
    fn see(&mut self, host: usize, segment: &Segment) {
        let later = |old: Option<Seq>, new: Seq| match old {
            Some(old) if new.diff(old) <= 0 => Some(old),
            _ => Some(new),
        };
        match host {
            0 => self.sent = later(self.sent, segment.tcp.seq.add(segment.len)),
            _ => self.acknowledged = later(self.acknowledged, segment.tcp.ack),
        }
    }

    /// Octets in flight.
    fn octets(&self) -> u64 {
        let ends = self.sent.zip(self.acknowledged);
        let octets = ends.map(|(sent, acknowledged)| sent.diff(acknowledged));
        octets.map_or(0, |octets| u64::try_from(octets).unwrap_or(0))
    }
}

/// A TCP segment.
struct Segment {
    tcp: Tcp,
    /// Octets of data.
    len: u32,
}

impl Segment {
    fn parse(frame: &[u8]) -> Option<Self> {
        let (_, at_ip) = Ethernet::parse(frame).ok()?;
        let (ip, ip_len) = Ip::parse(frame.get(at_ip..)?).ok()?;
        if ip.protocol() != PROTOCOL_TCP {
            return None;
        }
        let (tcp, tcp_len) = Tcp::parse(frame.get(at_ip + ip_len..)?).ok()?;
        let len = u32::try_from(ip.payload_len().checked_sub(tcp_len)?).ok()?;
        Some(Self { tcp, len })
    }
}

/// What a fault has done.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    /// Time from the repair until the page has its data; `None`: it gets none.
    recovery: Option<u64>,
    /// Octets in flight a round trip after that.
    window: u64,
    /// Frames of the stream that its sender sent between fault and repair.
    frames: u64,
    /// Longest WRITE of the neighbour.
    neighbour: u64,
}

struct Bench {
    world: World,
    pager: HostPager,
    stream: Connection,
    neighbour: Connection,
    source: Mr,
    target: Mr,
    /// Key of the region with the absent page.
    key: u32,
    flight: Flight,
    fault_at: Option<u64>,
    repaired_at: Option<u64>,
    /// When the page has got its data.
    placed_at: Option<u64>,
    /// WRITEs of the stream that were posted, and that are complete.
    posted: u32,
    done: u32,
    has_failed: bool,
    /// When the WRITE of the neighbour was posted, and when the next one will be.
    neighbour_at: Option<u64>,
    neighbour_next: u64,
    outcome: Outcome,
}

fn connect(world: &mut World, case: &Case) -> Result<Connection> {
    let cq = world.hosts[0].cq(9)?;
    let other = world.hosts[1].cq(9)?;
    let qps = [
        world.hosts[0].qp(QPT_RC, &cq)?,
        world.hosts[1].qp(QPT_RC, &other)?,
    ];
    let [a, b] = [qps[0].qpn, qps[1].qpn];
    match case.transport {
        Transport::Iwarp => world.open_stream([(0, a), (1, b)], MTU),
        Transport::Roce => world.connect_qps(QPT_RC, [a, b], |path| path.timeout = TIMEOUT),
    }
    world.hosts[1].driver.set_fault_policy(b, case.policy)?;
    Ok(Connection { cq, qps })
}

impl Bench {
    fn new(case: &Case, fault: u64) -> Result<Self> {
        let mut world = World::with_config(2, 1, |config| {
            config.transport = case.transport;
            config.ready = case.ready;
        });
        world.pace(FRAME_NS);
        let stream = connect(&mut world, case)?;
        let neighbour = connect(&mut world, case)?;
        let mut pager = HostPager::new(&mut world, 1, 8, 6);
        pager.delay = fault;
        let region = pager.register(&mut world, VA, 1 << 20);
        pager.map_page(&mut world, region, VA / u64::from(LEN), true);
        let key = pager.regions[region].key;
        let source = world.hosts[0].mr(LEN.into())?;
        let target = world.hosts[1].mr(LEN.into())?;
        world.hosts[0]
            .driver
            .write_mr(&source, 0, &[DATA; LEN as usize]);
        world.run();
        world.start_capture();
        Ok(Self {
            world,
            pager,
            stream,
            neighbour,
            source,
            target,
            key,
            flight: Flight::default(),
            fault_at: None,
            repaired_at: None,
            placed_at: None,
            posted: 0,
            done: 0,
            has_failed: false,
            neighbour_at: None,
            neighbour_next: 0,
            outcome: Outcome::default(),
        })
    }

    /// Posts what the stream and its neighbour may have outstanding.
    fn post(&mut self) {
        let now = self.world.now();
        let driver = &mut self.world.hosts[0].driver;
        let write = |len: u32, remote_addr: u64, rkey: u32, qp: &mut Qp, driver: &mut Driver<_>| {
            let send = Send {
                opcode: WR_WRITE,
                sges: &[(self.source.va, len, self.source.key)],
                remote_addr,
                rkey,
                ..Send::default()
            };
            driver.post_send(qp, &send);
        };
        while !self.has_failed && self.posted < WRITES && self.posted - self.done < DEPTH {
            let page = if self.posted == FAULTING { LEN } else { 0 };
            let qp = &mut self.stream.qps[0];
            write(LEN, VA + u64::from(page), self.key, qp, driver);
            self.posted += 1;
        }
        if self.neighbour_at.is_none() && self.neighbour_next <= now {
            let qp = &mut self.neighbour.qps[0];
            write(NEIGHBOUR_LEN, self.target.va, self.target.key, qp, driver);
            self.neighbour_at = Some(now);
            self.neighbour_next = now + NEIGHBOUR_GAP;
        }
    }

    /// Reads the frames that have left since the last call.
    fn look(&mut self) {
        let [from, to] = [0, 1].map(|side: usize| self.stream.qps[side].qpn);
        let port = World::stream_port(from);
        let is_faulting = self.fault_at.is_some() && self.repaired_at.is_none();
        for (host, frame) in self.world.take_capture() {
            let is_own = match Segment::parse(&frame) {
                Some(segment) => {
                    let ports = [segment.tcp.src_port, segment.tcp.dst_port];
                    let is_own = ports.contains(&port);
                    if is_own {
                        self.flight.see(host, &segment);
                    }
                    is_own
                }
                None => parse(&frame).is_ok_and(|packet| packet.header.bth.dest_qp == to),
            };
            self.outcome.frames += u64::from(is_faulting && host == 0 && is_own);
        }
    }

    /// Reads the completions that are there.
    fn take_completions(&mut self) {
        let now = self.world.now();
        for entry in self.world.completions(0, &mut self.stream.cq) {
            self.has_failed |= entry.status != cqe::SUCCESS;
            self.done += 1;
        }
        for entry in self.world.completions(0, &mut self.neighbour.cq) {
            let posted_at = self.neighbour_at.take().unwrap_or(now);
            let took = now - posted_at;
            self.outcome.neighbour = self.outcome.neighbour.max(took);
            self.has_failed |= entry.status != cqe::SUCCESS;
        }
    }

    /// Looks at the page that was absent, and at the window a round trip after it has its data.
    fn look_at_page(&mut self) {
        let now = self.world.now();
        let Some(repaired_at) = self.repaired_at else {
            return;
        };
        match self.placed_at {
            None => {
                let last = self.pager.read(&self.world, 0, (2 * LEN - 1).into(), 1);
                if last == [DATA] {
                    self.placed_at = Some(now);
                    self.outcome.recovery = Some(now - repaired_at);
                }
            }
            Some(at) if now >= at + ROUND_TRIP && self.outcome.window == 0 => {
                self.outcome.window = self.flight.octets();
            }
            Some(_) => {}
        }
    }

    /// Runs until all WRITEs of the stream are complete, or one has failed.
    fn run(mut self) -> Result<Outcome> {
        while self.done < WRITES && !self.has_failed {
            self.pager.collect(&mut self.world);
            if self.fault_at.is_none() && !self.pager.records.is_empty() {
                self.fault_at = Some(self.world.now());
            }
            self.look_at_page();
            self.take_completions();
            self.post();
            let next = self.neighbour_at.is_none().then_some(self.neighbour_next);
            let due = self.pager.next_at().into_iter().chain(next).min();
            if self.world.step(due.unwrap_or(u64::MAX)) {
                self.look();
                continue;
            }
            let due = due.context("nothing more happens")?;
            self.world.advance_to(due);
            self.pager.answer_due(&mut self.world);
            if self.repaired_at.is_none()
                && self.fault_at.is_some()
                && self.pager.next_at().is_none()
            {
                self.repaired_at = Some(due);
            }
        }
        ensure!(
            self.fault_at.is_some() || self.has_failed,
            "there was no fault"
        );
        // A Terminate message, and its acknowledgment.
        self.world.run();
        Ok(self.outcome)
    }
}

fn size(octets: u64) -> String {
    format!("{} KiB", digits(octets as f64 / 1024.0))
}

/// A table of all cases.
fn table() -> Result<Table> {
    let faults = FAULTS.map(|fault| format!("fault of {}", time(fault as f64)));
    let shown = time(FAULTS[SHOWN] as f64);
    let frames = format!("frames during {shown}");
    let neighbour = format!("neighbour's longest WRITE, {shown}");
    let mut columns = vec!["Policy", "The debate"];
    columns.extend(faults.iter().map(String::as_str));
    columns.extend([frames.as_str(), neighbour.as_str()]);
    let mut table = Table::new(
        "Time from the repair of a page until it has its data; iWARP: octets that the sender has in flight a round trip later",
        &columns,
    );
    for case in &CASES {
        let mut cells = vec![case.name.to_owned(), case.said.to_owned()];
        let mut last = Vec::new();
        for (index, fault) in FAULTS.into_iter().enumerate() {
            let outcome = Bench::new(case, fault)?.run()?;
            let window = outcome.window;
            cells.push(match (outcome.recovery, case.transport) {
                (None, _) => "fails".to_owned(),
                (Some(took), Transport::Roce) => time(took as f64),
                (Some(took), Transport::Iwarp) => {
                    format!("{}, {}", time(took as f64), size(window))
                }
            });
            if index == SHOWN {
                last = vec![outcome.frames.to_string(), time(outcome.neighbour as f64)];
            }
        }
        cells.extend(last);
        table.add(cells);
    }
    Ok(table)
}

/// The experiment.
///
/// # Errors
/// A simulation fails.
pub fn experiment() -> Result<Experiment> {
    Ok(Experiment {
        title: "What a fault does to TCP",
        asked: "What does a fault at the receiver do to a sender that takes a lost segment for congestion, under each fault policy, beside RoCE?",
        published: "The debate has no figures. Its texts 000 (13 February 2008, on iWARP) and 001 (February 2008) say what the table quotes.",
        method: "Simulator: a stream of 1,000 WRITEs of 4 KiB, 128 outstanding, on a line of 100 Gbit/s that takes 1 µs, in packets of 1,500 octets \
                 (RoCE: path MTU 1024). The 501st meets an absent page. The window of the receiver is 256 KiB. Frames are those of the stream between \
                 fault and repair. The neighbour, another connection of the same NICs, writes 64 octets each 200 µs."
            .to_owned(),
        tables: vec![table()?],
        pictures: Vec::new(),
        differs: "*Hold* is the READY that 001 misses: the window closes, and the answer to the fault opens it. The data is in the NIC already, the \
                  congestion window stays, and the stream has its whole window in flight a round trip later. *Drop* costs what 001 expects, \
                  and more: the repeated segment is refused too, so the sender waits for its retransmission timeout (200 ms, as Linux), however \
                  short the fault is, and begins with two segments. Nothing tells it that the page is present. *Stall* loses \
                  nothing, but its neighbour waits as long as the fault lasts: head of line. Damming: a stream of TCP has one order, so all requests \
                  behind the fault wait, for the repair with hold, for the timeout with drop. Flood: a TCP sender sends its window and then \
                  probes; the RNR NAK of RoCE lets the stream be repeated until the page is present. The service of the fault, which takes the time of the \
                  column, is the same for all.",
    })
}
