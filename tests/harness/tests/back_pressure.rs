//! Connections and datagrams to peers of ports which take slowly, or nothing.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use faultline_config::{Config, PollMode};
use faultline_control::ports::PortView;
use faultline_harness::frames::{Frame, Network, raw_qp, send};
use faultline_harness::testbed::{Fabric, Node, connect_nodes, until};
use faultline_harness::traffic::exchange;
use faultline_harness::{Qp, QpType, Rng, SendWr};
use faultline_wire::packet::parse_trusted;
use tempfile::TempDir;

use crate::held_clock::HeldClock;
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
        Self::named("wire", nics, hold_ms, more)
    }

    /// With a name of the port, and so of its thread.
    fn named(name: &str, nics: &[&str], hold_ms: u32, more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (wire, control) = (folder.path().join("wire"), folder.path().join("control"));
        let config = format!(
            "{more}\n[control]\nsocket = {control:?}\n\
             [[port]]\nname = \"{name}\"\nkind = \"stream\"\nlisten = \"unix:{}\"\nhold_ms = {hold_ms}\n",
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

    /// Sends datagrams until the socket of the port has no room for one more, and returns how many these are. `name`: the port's,
    /// which must be the only one of this name in the test program.
    fn fill(&self, name: &str, connection: &mut Connection) -> u64 {
        let (near, mac) = (&mut connection.near, connection.far.nic.mac());
        let mut raw = raw_qp(near, &near.cq, 4).unwrap();
        let frame = Frame {
            dst: mac,
            src: near.nic.mac(),
            network: Network::Other(0x88b5),
            data: &[0; 4096],
            ..Frame::to(&near.nic)
        };
        let frame = frame.bytes();
        let mut sent = 0;
        loop {
            send(near, &mut raw, &frame);
            sent += 1;
            // The port's thread waits for more frames, or, if the socket has not all of these, for room in it.
            until("the thread waits", || waits(&format!("port-{name}")));
            let octets = rustix::io::ioctl_fionread(&self.peer).unwrap();
            if octets < sent * (4 + frame.len() as u64) {
                return sent;
            }
        }
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

/// True if a thread of this process waits, and not only for a processor.
fn waits(name: &str) -> bool {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let mut stats = threads.flatten().filter_map(|thread| {
        let comm = std::fs::read_to_string(thread.path().join("comm")).ok()?;
        (comm.trim() == name).then(|| std::fs::read_to_string(thread.path().join("stat")).ok())?
    });
    let stat = stats.next().expect("no such thread");
    // See proc(5): the state is behind the name.
    stat.rsplit(") ").next().unwrap().starts_with('S')
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

/// The peer takes nothing until the port waits for it, and then about 20 MB/s.
fn nothing_is_lost(nics: &[&str], sender: &str, more: &str) {
    let mut wired = Wired::new(nics, 60_000, more);
    let mut connection = wired.connection(sender);
    std::thread::scope(|scope| {
        scope.spawn(|| connection.send_all());
        until("held", || port(&wired.control).holds > 0);
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
    const PORT: &str = "idle-peer";
    let mut wired = Wired::named(PORT, &["a"], 200, "");
    let mut connection = wired.connection("a");
    let filled = wired.fill(PORT, &mut connection);
    let before = wired.port();
    assert_eq!(before.holds, 0, "{before:?}");
    let start = Instant::now();
    connection.send_all();
    assert!(start.elapsed() >= Duration::from_millis(200));
    let held = wired.port();
    assert_eq!(held.holds, 1, "{held:?}");
    let lost = held.dropped["overrun"];
    assert!(lost > u64::from(PACKETS) / 2, "{held:?}");
    let mut peer = wired.peer.try_clone().unwrap();
    // It takes what is there, and 20 MB/s from then on.
    for _ in 0..filled + u64::from(PACKETS) - lost {
        read(&mut peer);
    }
    // The time of a hold does not pass, however long the peer waits for a processor.
    let control = wired.control.clone();
    let clock = HeldClock::hold(&control);
    clock.standing(|| {
        std::thread::scope(|scope| {
            scope.spawn(|| connection.send_all());
            until("held again", || port(&control).holds > 1);
            read_all(&mut wired.peer, || {
                std::thread::sleep(Duration::from_micros(100));
            });
        });
    });
    clock.release();
    let port = wired.port();
    assert_eq!(port.dropped["overrun"], lost);
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
