//! The VLANs of a configuration, at the sockets. `device/simulation/tests/vlans.rs` shows the fate of frames.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use faultline_abi::admin::{SET_GID, SetGid};
use faultline_abi::steering::{CreateFlow, FLOW_KIND_ALL_DEFAULT};
use faultline_abi::{U16, cqe};
use faultline_config::{Config, PollMode};
use faultline_harness::frames::{Frame, Network, RawReceiver, raw_qp, rule, send};
use faultline_harness::testbed::{Fabric, LONG, Node, until};
use faultline_harness::traffic::{exchange_anew, impatient};
use faultline_harness::{Flow, Qp, QpType, Rng, SendWr, connect};
use tempfile::TempDir;

use crate::observed;

/// Access ports of VLANs 10 and 20, and a NIC with tagged frames of both.
const NICS: &str = "[[nic]]\nname = \"a\"\npvid = 10\n\
                    [[nic]]\nname = \"b\"\npvid = 20\n\
                    [[nic]]\nname = \"c\"\nvlans = [10, 20]\n";

struct Process {
    fabric: Fabric,
    directory: TempDir,
}

impl Process {
    /// With these NICs, and the further keys of `config`.
    fn start(config: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = config.replace("FOLDER", directory.path().to_str().unwrap());
        let config = Config::from_toml(&format!("{config}{NICS}")).unwrap();
        let config = Config {
            poll: PollMode::Adaptive,
            ..config
        };
        Self {
            fabric: Fabric::start_controlled(config, &["a", "b", "c"]).unwrap(),
            directory,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn request(&self, path: &str) -> serde_json::Value {
        let answer = observed::request(&self.fabric.control(), "GET", path, "");
        serde_json::from_str(&answer).unwrap()
    }

    /// Packets of a NIC that were dropped because of their VLAN.
    fn dropped(&self, nic: &str) -> u64 {
        let state = self.request(&format!("/v1/nics/{nic}"));
        state["link"]["vlan_dropped"].as_u64().unwrap()
    }
}

/// A NIC that sends frames, and receives all frames that reach it.
struct Station {
    node: Node,
    sender: Qp,
    receiver: RawReceiver,
    _flow: Flow,
}

impl Station {
    fn new(node: Node) -> Self {
        let sender = raw_qp(&node, &node.cq, 6).unwrap();
        let receiver = RawReceiver::new(&node, &node.eq).unwrap();
        let all = CreateFlow {
            kind: FLOW_KIND_ALL_DEFAULT,
            ..rule(0, 0, 0)
        };
        let flow = node.nic.flow(&receiver.qp, &all, None).unwrap();
        Self {
            node,
            sender,
            receiver,
            _flow: flow,
        }
    }

    fn frame<'a>(&self, dst: [u8; 6], vlan: Option<u16>, data: &'a [u8]) -> Frame<'a> {
        Frame {
            dst,
            src: self.node.nic.mac(),
            vlan,
            data,
            ..Frame::to(&self.node.nic)
        }
    }

    fn send(&mut self, frame: &Frame<'_>) {
        send(&mut self.node, &mut self.sender, &frame.bytes());
    }

    fn received(&mut self) -> Vec<Vec<u8>> {
        let frames = std::iter::from_fn(|| self.receiver.receive());
        frames.map(|(_, frame)| frame).collect()
    }

    /// Waits for one frame, which comes from outside.
    fn receive(&mut self) -> Vec<u8> {
        let mut received = None;
        until("a frame", || {
            received = self.receiver.receive();
            received.is_some()
        });
        received.unwrap().1
    }
}

/// The entry of the GID table decides about the tag.
fn use_vlan(node: &Node, vlan: u16) {
    let gid = SetGid {
        gid: node.nic.gid(),
        mac: node.nic.mac(),
        vlan: U16::new(vlan),
        valid: 1,
        ..SetGid::default()
    };
    node.nic.admin(SET_GID, 0, &gid).unwrap();
}

/// Each engine has a switch of its own.
#[test]
fn connections_pass_between_members_of_a_vlan_on_three_engines() {
    let process = Process::start("engines = 3\n");
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| process.fabric.node(name).unwrap());
    let mut rng = Rng::new(3);
    for (node, vlan) in [(&mut a, 10), (&mut b, 20)] {
        use_vlan(&c, vlan);
        for _ in 0..5 {
            exchange_anew(node, &mut c, &mut rng);
            exchange_anew(&mut c, node, &mut rng);
        }
    }
    let (mut qa, qb) = (a.qp(QpType::Rc).unwrap(), b.qp(QpType::Rc).unwrap());
    connect(&qa, &qb, &impatient()).unwrap();
    qa.post_send(&SendWr::write_inline(b"of another VLAN", b.mr.remote(0)).signaled())
        .unwrap();
    assert_eq!(a.completion().status, cqe::RETRY_EXC_ERR);
    assert!(process.dropped("a") > 0);
    assert_eq!([process.dropped("b"), process.dropped("c")], [0, 0]);
    process.fabric.assert_passes_are_short();
}

const BROADCAST: [u8; 6] = [0xff; 6];
/// Longer than the NIC's own copy of headers.
const DATA: &[u8] = &[0x5a; 300];

/// A peer of a `stream` port.
struct Peer(UnixStream);

impl Peer {
    fn connect(process: &Process) -> Self {
        let socket = UnixStream::connect(process.path("wire")).unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        until("connected", || {
            process.request("/v1/ports")[0]["connected"] == true
        });
        Self(socket)
    }

    fn send(&mut self, frame: &[u8]) {
        let length = (frame.len() as u32).to_be_bytes();
        self.0.write_all(&[&length, frame].concat()).unwrap();
    }

    fn receive(&mut self) -> Vec<u8> {
        let mut length = [0; 4];
        self.0.read_exact(&mut length).unwrap();
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        self.0.read_exact(&mut frame).unwrap();
        frame
    }
}

#[test]
fn frames_of_an_external_port_have_the_tag_of_their_vlan() {
    let process = Process::start(
        "[[port]]\nname = \"wire\"\nkind = \"stream\"\nlisten = \"unix:FOLDER/wire\"\npvid = 20\nvlans = [10]\n",
    );
    let [mut a, mut b, mut c] =
        ["a", "b", "c"].map(|name| Station::new(process.fabric.node(name).unwrap()));
    let mut peer = Peer::connect(&process);
    let from_peer = |vlan| Frame {
        dst: BROADCAST,
        src: [2, 0, 0, 0, 0, 9],
        vlan,
        network: Network::Other(0x88b5),
        data: DATA,
        ..Frame::to(&a.node.nic)
    };
    let [untagged, of_10, of_20, of_30] =
        [None, Some(10), Some(20), Some(30)].map(|vlan| from_peer(vlan).bytes());
    // Of no VLAN of the port; then in its VLAN with and without tag, and in another one.
    peer.send(&of_30);
    peer.send(&of_20);
    assert_eq!(
        [b.receive(), c.receive()],
        [untagged.clone(), of_20.clone()]
    );
    peer.send(&untagged);
    assert_eq!([b.receive(), c.receive()], [untagged.clone(), of_20]);
    peer.send(&of_10);
    assert_eq!([a.receive(), c.receive()], [untagged, of_10]);
    assert_eq!(
        [&mut a, &mut b, &mut c].map(|station| station.received().len()),
        [0; 3]
    );
    let dropped = &process.request("/v1/ports")[0]["dropped"];
    assert_eq!(dropped["vlan"], 1, "{dropped}");
    // NICs of two VLANs do not reach each other.
    let frame = a.frame(b.node.nic.mac(), None, DATA);
    a.send(&frame);
    assert_eq!(b.received().len(), 0);
    assert_eq!(process.dropped("a"), 1);
    // To the peer, which is known in both VLANs.
    for (from, vlan) in [(&mut a, Some(10)), (&mut b, None)] {
        let frame = from.frame([2, 0, 0, 0, 0, 9], None, DATA);
        from.send(&frame);
        let expected = Frame { vlan, ..frame };
        assert_eq!(peer.receive(), expected.bytes());
    }
    assert_eq!(c.received().len(), 0, "not flooded");
    process.fabric.assert_passes_are_short();
}
