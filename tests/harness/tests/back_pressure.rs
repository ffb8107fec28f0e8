//! NICs that send to peers of ports which take slowly, or nothing.

#![cfg(test)]

mod observed;

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use faultline::control::ports::PortView;
use faultline::{Config, PollMode};
use faultline_harness::frames::{Frame, Network, raw_qp, send};
use faultline_harness::testbed::{Fabric, LONG, Node, connect_nodes};
use faultline_harness::traffic::exchange;
use faultline_harness::{QpType, Rng};
use tempfile::TempDir;

use observed::request;

/// Frames of a test, together several times what a port has room for.
const FRAMES: u32 = 2000;
const FRAME: usize = 4096;

/// A process with a port, and the peer of that.
struct Wired {
    fabric: Fabric,
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
        Self {
            fabric,
            control,
            peer,
            _folder: folder,
        }
    }

    fn port(&self) -> PortView {
        port(&self.control)
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

/// A NIC sends numbered frames to an address that only the peer of a port can have.
fn send_all(node: &mut Node) {
    let mut qp = raw_qp(node, &node.cq, 4).unwrap();
    let mut data = [0; FRAME];
    for number in 0..FRAMES {
        data[..4].copy_from_slice(&number.to_be_bytes());
        let frame = Frame {
            dst: [2, 0, 0, 0, 0, 9],
            src: node.nic.mac(),
            network: Network::Other(0x88b5),
            data: &data,
            ..Frame::to(&node.nic)
        };
        send(node, &mut qp, &frame.bytes());
    }
}

/// The peer reads all frames, in the order in which they were sent; before each one it does this.
fn read_all(peer: &mut UnixStream, mut before_frame: impl FnMut()) {
    let mut frame = vec![0; 14 + FRAME];
    for number in 0..FRAMES {
        before_frame();
        let mut length = [0; 4];
        peer.read_exact(&mut length).unwrap();
        assert_eq!(u32::from_be_bytes(length) as usize, frame.len());
        peer.read_exact(&mut frame).unwrap();
        assert_eq!(frame[14..18], number.to_be_bytes());
    }
}

/// The peer takes about 20 MB/s, which the port waits for.
fn nothing_is_lost(nics: &[&str], sender: &str, more: &str) {
    let mut wired = Wired::new(nics, 60_000, more);
    let mut node = wired.fabric.node(sender).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| send_all(&mut node));
        read_all(&mut wired.peer, || {
            std::thread::sleep(Duration::from_micros(200));
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

/// A peer that takes nothing costs the NIC the hold time, once.
#[test]
fn a_peer_that_takes_nothing_stops_no_nic() {
    let wired = Wired::new(&["a"], 200, "");
    let mut node = wired.fabric.node("a").unwrap();
    let start = Instant::now();
    send_all(&mut node);
    assert!(start.elapsed() >= Duration::from_millis(200));
    let port = wired.port();
    assert_eq!(port.holds, 1, "{port:?}");
    assert!(port.dropped["overrun"] > u64::from(FRAMES) / 2, "{port:?}");
}

/// While a NIC waits for the peer, others exchange data. When the peer takes its frames, or goes away, the NIC sends the rest.
#[test]
fn other_nics_do_not_wait() {
    for goes_away in [false, true] {
        let mut wired = Wired::new(&["a", "b", "c"], 60_000, "");
        let mut node = wired.fabric.node("a").unwrap();
        std::thread::scope(|scope| {
            let sends = scope.spawn(|| send_all(&mut node));
            until("held", || port(&wired.control).holds > 0);
            let (mut b, mut c) = (
                wired.fabric.node("b").unwrap(),
                wired.fabric.node("c").unwrap(),
            );
            let (mut qb, mut qc) = connect_nodes(&b, &c, QpType::Rc).unwrap();
            exchange((&mut b, &mut qb), (&mut c, &mut qc), &mut Rng::new(3));
            assert!(!sends.is_finished());
            match goes_away {
                true => drop(wired.peer.shutdown(std::net::Shutdown::Both)),
                false => read_all(&mut wired.peer, || {}),
            }
        });
        assert_eq!(port(&wired.control).dropped["overrun"], 0);
    }
}
