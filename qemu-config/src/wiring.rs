//! The connection between the guests' NICs: the switch of one emulator, links between its engine threads, or a wire
//! between the emulators of two guests.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::command::capture;

/// What connects the guests' NICs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Wiring {
    /// The switch of one emulator.
    #[default]
    Switch,
    /// The same; the emulator's NICs are in turn on two engine threads, with links between these.
    Engines,
    /// An emulator for each of two guests, connected by a unix socket.
    Unix,
    /// The same, by TCP.
    Tcp,
    /// The same, by a TAP device of each and a bridge of the host.
    Bridge,
    /// The same, by VXLAN between two network namespaces.
    Vxlan,
}

/// UDP port of VXLAN (RFC 7348).
const VXLAN_PORT: &str = "4789";
/// MTU between the emulators: that of the largest frames that guests send, and room for VXLAN.
const MTU: &str = "9100";
const OUTER_MTU: &str = "9200";
/// Frames that wait in a TAP device for the emulator.
const QUEUE: &str = "20000";

impl Wiring {
    /// True if each guest has an emulator of its own.
    pub fn is_between_emulators(self) -> bool {
        !matches!(self, Self::Switch | Self::Engines)
    }

    /// Engine threads of an emulator.
    pub fn engines(self) -> usize {
        match self {
            Self::Engines => 2,
            _ => 1,
        }
    }
}

/// A wire between two emulators. Dropping it removes its devices on the host.
#[derive(Debug)]
pub struct WireBetween {
    kind: Wiring,
    /// Common part of the names of network devices and namespaces: other runs have others.
    prefix: String,
    /// `ip` commands that undo what was made.
    undo: Vec<Vec<String>>,
}

impl WireBetween {
    /// Makes what must exist before the emulators.
    pub fn new(kind: Wiring) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let mut wire = Self {
            kind,
            prefix: format!("fl{}n{number}", std::process::id()),
            undo: Vec::new(),
        };
        if kind == Wiring::Vxlan {
            wire.make_namespaces()?;
        }
        Ok(wire)
    }

    /// The port of an emulator, 0 or 1, as text for its configuration. Sockets go to `dir`.
    pub fn port(&self, index: usize, dir: &Path, tcp_port: u16) -> String {
        let key = if index == 0 { "listen" } else { "connect" };
        let address = match self.kind {
            Wiring::Switch | Wiring::Engines => return String::new(),
            Wiring::Bridge | Wiring::Vxlan => {
                return format!(
                    "[[port]]\nname = \"wire\"\nkind = \"tap\"\ninterface = \"{}\"\nmtu = {MTU}\n",
                    self.tap(index)
                );
            }
            Wiring::Unix => format!("unix:{}", dir.join("wire").display()),
            Wiring::Tcp => format!("tcp:127.0.0.1:{tcp_port}"),
        };
        format!("[[port]]\nname = \"wire\"\nkind = \"stream\"\n{key} = \"{address}\"\n")
    }

    /// The network namespace of an emulator, if it has one.
    pub fn namespace(&self, index: usize) -> Option<String> {
        (self.kind == Wiring::Vxlan).then(|| format!("{}{}", self.prefix, side(index)))
    }

    fn tap(&self, index: usize) -> String {
        format!("{}t{}", self.prefix, side(index))
    }

    /// Connects the TAP devices of the emulators, which run.
    pub fn connect(&mut self) -> Result<()> {
        match self.kind {
            Wiring::Switch | Wiring::Engines | Wiring::Unix | Wiring::Tcp => Ok(()),
            Wiring::Bridge => {
                let bridge = format!("{}b", self.prefix);
                self.make_bridge(None, &bridge)?;
                (0..2).try_for_each(|index| self.join(None, &bridge, &self.tap(index)))
            }
            Wiring::Vxlan => (0..2).try_for_each(|index| {
                let space = self.namespace(index);
                self.make_bridge(space.as_deref(), "bridge")?;
                self.join(space.as_deref(), "bridge", &self.tap(index))?;
                self.join(space.as_deref(), "bridge", "tunnel")
            }),
        }
    }

    /// Two network namespaces with a cable between, and a VXLAN tunnel over it.
    fn make_namespaces(&mut self) -> Result<()> {
        for index in 0..2 {
            let space = self.namespace(index).unwrap_or_default();
            ip(None, &["netns", "add", &space])?;
            self.undo(&["netns", "delete", &space]);
        }
        let [a, b] = [0, 1].map(|index| self.namespace(index).unwrap_or_default());
        let cable = format!(
            "link add cable netns {a} mtu {OUTER_MTU} type veth peer name cable netns {b} mtu {OUTER_MTU}"
        );
        ip(None, &words(&cable))?;
        for (index, space) in [&a, &b].into_iter().enumerate() {
            let addresses = ["198.51.100.1", "198.51.100.2"];
            let (own, peer) = match index {
                0 => (addresses[0], addresses[1]),
                _ => (addresses[1], addresses[0]),
            };
            let space = Some(space.as_str());
            ip(space, &words(&format!("address add {own}/24 dev cable")))?;
            ip(space, &words("link set cable up"))?;
            let tunnel = format!(
                "link add tunnel mtu {MTU} type vxlan id 77 dev cable local {own} remote {peer} dstport {VXLAN_PORT}"
            );
            ip(space, &words(&tunnel))?;
        }
        Ok(())
    }

    fn make_bridge(&mut self, space: Option<&str>, bridge: &str) -> Result<()> {
        // Groups of queue pairs are joined without IGMP, so a bridge must not filter by that.
        let add = format!("link add {bridge} type bridge mcast_snooping 0");
        ip(space, &words(&add))?;
        if space.is_none() {
            self.undo(&["link", "delete", bridge]);
        }
        ip(
            space,
            &words(&format!("link set {bridge} mtu {MTU} addrgenmode none up")),
        )
    }

    fn join(&self, space: Option<&str>, bridge: &str, device: &str) -> Result<()> {
        // A queue for requests that are posted at once: tests without retransmission expect no losses.
        let join = format!(
            "link set {device} mtu {MTU} txqueuelen {QUEUE} addrgenmode none master {bridge} up"
        );
        ip(space, &words(&join))
    }

    fn undo(&mut self, command: &[&str]) {
        self.undo
            .push(command.iter().map(|&word| word.to_owned()).collect());
    }
}

impl Drop for WireBetween {
    fn drop(&mut self) {
        for command in self.undo.iter().rev() {
            let words: Vec<&str> = command.iter().map(String::as_str).collect();
            let _ = ip(None, &words);
        }
    }
}

fn side(index: usize) -> &'static str {
    if index == 0 { "a" } else { "b" }
}

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

/// Executes ip(8), in a network namespace if one is given.
fn ip(space: Option<&str>, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("ip");
    if let Some(space) = space {
        command.args(["-netns", space]);
    }
    capture(command.args(arguments))
        .with_context(|| format!("ip {}; it needs root", arguments.join(" ")))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(kind: Wiring) -> WireBetween {
        WireBetween {
            kind,
            prefix: "fl1n0".to_owned(),
            undo: Vec::new(),
        }
    }

    #[test]
    fn each_emulator_has_one_end() {
        let port = |kind, index| wire(kind).port(index, Path::new("/tmp/x"), 7000);
        assert_eq!(port(Wiring::Switch, 0), "");
        assert!(!Wiring::Engines.is_between_emulators());
        assert_eq!(port(Wiring::Engines, 1), "");
        assert!(port(Wiring::Unix, 0).contains("\nlisten = \"unix:/tmp/x/wire\"\n"));
        assert!(port(Wiring::Unix, 1).contains("\nconnect = \"unix:/tmp/x/wire\"\n"));
        assert!(port(Wiring::Tcp, 1).contains("\nconnect = \"tcp:127.0.0.1:7000\"\n"));
        assert!(port(Wiring::Bridge, 1).contains("\ninterface = \"fl1n0tb\"\n"));
        assert_eq!(wire(Wiring::Bridge).namespace(0), None);
        assert_eq!(wire(Wiring::Vxlan).namespace(1).as_deref(), Some("fl1n0b"));
    }

    #[test]
    fn names_of_interfaces_are_short_enough() {
        let mut wire = wire(Wiring::Bridge);
        wire.prefix = "fl4194304n99".to_owned();
        assert!(wire.tap(1).len() <= 15);
    }
}
