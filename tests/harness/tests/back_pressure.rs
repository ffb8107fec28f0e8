//! Connections and datagrams to peers of ports which take slowly, or nothing.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use faultline_config::{Config, PollMode};
use faultline_control::ports::PortView;
use faultline_harness::frames::{Frame, Network, raw_qp, send};
use faultline_harness::testbed::{Fabric, LONG, Node, connect_nodes};
use faultline_harness::traffic::exchange;
use faultline_harness::{Qp, QpType, Rng, SendWr};
use faultline_wire::packet::parse_trusted;
use tempfile::TempDir;

use crate::observed::request;

/// Octets of a message, and messages of a test: together several times what a port has room for.
const LENGTH: usize = Node::BUF / 2;
const MESSAGES: usize = 16;
/// Packets of these, at an MTU of 4096.
const PACKETS: u32 = (MESSAGES * LENGTH / 4096) as u32;

/// A process with a port, and the peer of that.
struct Wired {
    fabric: Fabric,
    /// Another process, whose NIC is behind the port, as far as the first one knows.
    far: Fabric,
    control: PathBuf,
    peer: UnixStream,
    _folder: TempDir,
}

impl Wired {
    fn new(nics: &[&str], hold_ms: u32, more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (wire, control) = (folder.path().join("wire"), folder.path().join("control"));
        let config = format!(
            "{more}\n[control]\nsocket = {control:?}\n\
             [[port]]\nname = \"wire\"\nkind = \"stream\"\nlisten = \"unix:{}\"\nhold_ms = {hold_ms}\n",
            wire.display()
        );
        let config = Config {
            poll: PollMode::Adaptive,
            ..Config::from_toml(&config).unwrap()
        };
        let fabric = Fabric::start_with(config, nics).unwrap();
        let peer = UnixStream::connect(wire).unwrap();
        until("connected", || port(&control).connected);
        let far = Config::from_toml("").unwrap();
        Self {
            fabric,
            far: Fabric::start_with(far, &["far"]).unwrap(),
            control,
            peer,
            _folder: folder,
        }
    }

    fn port(&self) -> PortView {
        port(&self.control)
    }

    /// A connection of a NIC to the far one, of which the switch learns that it is behind the port.
    fn connection(&mut self, nic: &str) -> Connection {
        let (near, far) = (
            self.fabric.node(nic).unwrap(),
            self.far.node("far").unwrap(),
        );
        let hello = Frame {
            src: far.nic.mac(),
            network: Network::Other(0x88b5),
            ..Frame::to(&near.nic)
        };
        let hello = hello.bytes();
        let length = (hello.len() as u32).to_be_bytes();
        self.peer
            .write_all(&[&length, &hello[..]].concat())
            .unwrap();
        until("learned", || self.port().rx_frames == 1);
        let (qp, far_qp) = connect_nodes(&near, &far, QpType::Uc).unwrap();
        Connection {
            near,
            qp,
            far,
            _far_qp: far_qp,
        }
    }
}

fn port(control: &Path) -> PortView {
    let ports = request(control, "GET", "/v1/ports", "");
    let ports: Vec<PortView> = serde_json::from_str(&ports).unwrap();
    ports.into_iter().next().unwrap()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LONG, "never {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A connection without retransmission: what is lost is not sent again.
struct Connection {
    near: Node,
    qp: Qp,
    far: Node,
    _far_qp: Qp,
}

impl Connection {
    fn post_all(&mut self) {
        let sges = [self.near.mr.sge(0, LENGTH)];
        let write = SendWr::write(&sges, self.far.mr.remote(0));
        for _ in 1..MESSAGES {
            self.qp.post_send(&write).unwrap();
        }
        self.qp.post_send(&write.signaled()).unwrap();
    }

    fn send_all(&mut self) {
        self.post_all();
        self.qp.retire(&self.near.good_completion());
    }
}

/// The next frame that the peer gets.
fn read(peer: &mut UnixStream) -> Vec<u8> {
    let mut length = [0; 4];
    peer.read_exact(&mut length).unwrap();
    let mut frame = vec![0; u32::from_be_bytes(length) as usize];
    peer.read_exact(&mut frame).unwrap();
    frame
}

/// The peer reads all packets, in the order in which they were sent; before each one it does this.
fn read_all(peer: &mut UnixStream, mut before_packet: impl FnMut()) {
    let mut next = None;
    for _ in 0..PACKETS {
        before_packet();
        let frame = read(peer);
        let psn = parse_trusted(&frame).unwrap().header.bth.psn;
        assert_eq!(psn, next.unwrap_or(psn));
        next = Some(psn.next());
    }
}

/// The peer takes about 20 MB/s, which the port waits for.
fn nothing_is_lost(nics: &[&str], sender: &str, more: &str) {
    let mut wired = Wired::new(nics, 60_000, more);
    let mut connection = wired.connection(sender);
    std::thread::scope(|scope| {
        scope.spawn(|| connection.send_all());
        read_all(&mut wired.peer, || {
            std::thread::sleep(Duration::from_micros(100));
        });
    });
    let port = wired.port();
    assert_eq!(port.dropped["overrun"], 0);
    assert!(port.holds > 0, "{port:?}");
}

#[test]
fn a_slow_peer_loses_nothing() {
    nothing_is_lost(&["a"], "a", "");
}

/// Ports are on the first engine.
#[test]
fn a_slow_peer_loses_nothing_of_another_engine() {
    nothing_is_lost(&["a", "b"], "b", "engines = 2");
}

/// A peer that takes nothing costs a connection the hold time, once. When the peer takes frames again, the port waits for it again.
#[test]
fn a_peer_that_takes_nothing_holds_nobody_for_long() {
    let mut wired = Wired::new(&["a"], 200, "");
    let mut connection = wired.connection("a");
    let start = Instant::now();
    connection.send_all();
    assert!(start.elapsed() >= Duration::from_millis(200));
    let port = wired.port();
    // A second one if the port's thread fills the socket's buffer only after the first has begun: then there is room again.
    assert!((1..=2).contains(&port.holds), "{port:?}");
    assert!(port.dropped["overrun"] > u64::from(PACKETS) / 2, "{port:?}");
    let before = port.holds;
    let mut peer = wired.peer.try_clone().unwrap();
    // It takes what is there, and 20 MB/s from then on.
    let lost = port.dropped["overrun"];
    for _ in 0..u64::from(PACKETS) - lost {
        read(&mut peer);
    }
    std::thread::scope(|scope| {
        scope.spawn(|| connection.send_all());
        read_all(&mut wired.peer, || {
            std::thread::sleep(Duration::from_micros(100));
        });
    });
    let port = wired.port();
    assert_eq!(port.dropped["overrun"], lost);
    assert!(port.holds > before, "{port:?}");
}

/// While a connection waits for the peer, others of the same NIC go on. When the peer takes its packets, or goes away, it goes on, too.
#[test]
fn others_do_not_wait() {
    for goes_away in [false, true] {
        let mut wired = Wired::new(&["a", "b"], 60_000, "");
        let mut connection = wired.connection("a");
        connection.post_all();
        until("held", || port(&wired.control).holds > 0);
        let (a, mut b) = (&mut connection.near, wired.fabric.node("b").unwrap());
        let (mut qa, mut qb) = connect_nodes(a, &b, QpType::Rc).unwrap();
        exchange((a, &mut qa), (&mut b, &mut qb), &mut Rng::new(3));
        // Datagrams to the same peer are lost, if need be.
        let mut raw = raw_qp(a, &a.cq, 4).unwrap();
        let frame = Frame {
            dst: connection.far.nic.mac(),
            src: a.nic.mac(),
            network: Network::Other(0x88b5),
            data: &[0; 4096],
            ..Frame::to(&a.nic)
        };
        let frame = frame.bytes();
        for _ in 0..PACKETS {
            send(a, &mut raw, &frame);
        }
        assert!(wired.port().dropped["overrun"] > 0);
        match goes_away {
            true => wired.peer.shutdown(std::net::Shutdown::Both).unwrap(),
            false => {
                let mut peer = wired.peer.try_clone().unwrap();
                std::thread::spawn(move || std::io::copy(&mut peer, &mut std::io::sink()));
            }
        }
        connection.near.good_completion();
    }
}
