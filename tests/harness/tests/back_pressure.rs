//! Connections to a peer that takes frames slowly, or disconnects: the thread of the port wakes the
//! engine. `device/simulation/tests/back_pressure.rs` has the rules of holds.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use faultline_config::{Config, PollMode};
use faultline_control::ports::PortView;
use faultline_harness::frames::{Frame, Network};
use faultline_harness::testbed::{Fabric, Node, connect_nodes, until};
use faultline_harness::{Qp, QpType, SendWr};
use faultline_wire::packet::parse_trusted;
use tempfile::TempDir;

use crate::observed::request;

/// Octets of a message, and messages of a test: together several times the room of a port.
const LENGTH: usize = Node::BUF / 2;
const MESSAGES: usize = 16;
/// Packets of these, at an MTU of 4096.
const PACKETS: u32 = (MESSAGES * LENGTH / 4096) as u32;

/// A process with a port, and the peer of that.
struct Wired {
    fabric: Fabric,
    /// The process whose NIC is behind the port, for the first one another process.
    far: Fabric,
    control: PathBuf,
    peer: UnixStream,
    _folder: TempDir,
}

impl Wired {
    fn new(nics: &[&str], more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (wire, control) = (folder.path().join("wire"), folder.path().join("control"));
        let config = format!(
            "{more}\n[control]\nsocket = {control:?}\n\
             [[port]]\nname = \"wire\"\nkind = \"stream\"\nlisten = \"unix:{}\"\nhold_ms = 60000\n",
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

    /// A connection of a NIC to the far one; the switch learns that the far one is behind the port.
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

/// A connection without retransmission: a lost packet is not sent again.
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

/// Ports are on the first engine. The peer takes nothing until the port waits for it, and then everything.
#[test]
fn a_slow_peer_loses_nothing_of_another_engine() {
    let mut wired = Wired::new(&["a", "b"], "engines = 2");
    let mut connection = wired.connection("b");
    std::thread::scope(|scope| {
        scope.spawn(|| connection.send_all());
        until("held", || port(&wired.control).holds > 0);
        let mut next = None;
        for _ in 0..PACKETS {
            let frame = read(&mut wired.peer);
            let psn = parse_trusted(&frame).unwrap().header.bth.psn;
            assert_eq!(psn, next.unwrap_or(psn));
            next = Some(psn.next());
        }
    });
    assert_eq!(wired.port().dropped["overrun"], 0);
}

/// No frame that the peer takes announces the end of this hold.
#[test]
fn a_held_connection_continues_after_the_peer_has_left() {
    let mut wired = Wired::new(&["a"], "");
    let mut connection = wired.connection("a");
    connection.post_all();
    until("held", || wired.port().holds > 0);
    wired.peer.shutdown(std::net::Shutdown::Both).unwrap();
    connection.near.good_completion();
}
