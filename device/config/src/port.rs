//! `[[port]]` of the configuration: ports of the switch that lead out of the process.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use faultline_fabric::link_model::LinkModel;
use faultline_fabric::vlan::VlanSet;
use faultline_ports::address::StreamAddress;
use serde::Deserialize;

use crate::file::{self, Misfit};
use crate::{link_model, vlan};

/// Pause between two attempts to connect unless another one is set.
const RECONNECT: Duration = Duration::from_secs(1);

/// Default time for which connections wait for a peer that takes frames too slowly.
const HOLD: Duration = Duration::from_millis(100);

/// A port that leads out of the process: a `[[port]]` table.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "PortTable")]
pub struct PortEntry {
    /// Name, for messages and metrics. No NIC has it.
    pub name: String,
    /// Its other end.
    pub kind: PortKind,
    /// Group whose members can connect to its unix socket; `None`: that of the process.
    pub socket_group: Option<String>,
    /// Longest frame without Ethernet header and VLAN tag that passes, in octets; `None`: any.
    pub mtu: Option<u16>,
    /// VLAN of frames without tag, from the peer and to it.
    pub pvid: Option<u16>,
    /// VLANs of frames with a tag.
    pub vlans: Option<VlanSet>,
    /// Time for which connections wait for a peer that takes frames too slowly, before frames to it are dropped.
    /// Zero: not at all.
    pub hold: Duration,
    /// Model of the link to the peer.
    pub link_tx: Option<LinkModel>,
    /// Model of the link from the peer.
    pub link_rx: Option<LinkModel>,
}

/// The other end of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// A stream socket with QEMU's framing, to which peers connect.
    Listen(StreamAddress),
    /// A stream socket with QEMU's framing, which is connected to a peer, again after this time if need be.
    Connect(StreamAddress, Duration),
    /// A TAP device of this name.
    Tap(String),
    /// The virtio network device of a guest, whose QEMU connects to this unix socket.
    VhostUserNet(PathBuf),
}

/// The kinds, as the file names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    Stream,
    Tap,
    VhostUserNet,
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        file::name(deserializer)
    }
}

/// The keys of a `[[port]]` table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of a port")]
struct PortTable {
    name: String,
    kind: Kind,
    #[serde(default, deserialize_with = "address")]
    listen: Option<StreamAddress>,
    #[serde(default, deserialize_with = "address")]
    connect: Option<StreamAddress>,
    #[serde(default, deserialize_with = "file::optional_number")]
    reconnect_ms: Option<u32>,
    #[serde(default, deserialize_with = "interface")]
    interface: Option<String>,
    socket: Option<PathBuf>,
    #[serde(default)]
    socket_group: Option<String>,
    #[serde(default, deserialize_with = "mtu")]
    mtu: Option<u16>,
    #[serde(default, deserialize_with = "file::optional_number")]
    hold_ms: Option<u16>,
    #[serde(default, deserialize_with = "vlan::pvid")]
    pvid: Option<u16>,
    #[serde(default, deserialize_with = "vlan::vlans")]
    vlans: Option<VlanSet>,
    #[serde(default, deserialize_with = "link_model::link_model")]
    link_tx: Option<LinkModel>,
    #[serde(default, deserialize_with = "link_model::link_model")]
    link_rx: Option<LinkModel>,
}

impl TryFrom<PortTable> for PortEntry {
    type Error = Misfit;

    fn try_from(table: PortTable) -> Result<Self, Misfit> {
        let PortTable {
            name,
            kind,
            listen,
            connect,
            reconnect_ms,
            interface,
            socket,
            socket_group,
            mtu,
            hold_ms,
            pvid,
            vlans,
            link_tx,
            link_rx,
        } = table;
        let only = |is_there: bool, key, what: &str| match is_there {
            true => Err(Misfit::of_key(key, format!("this key is for {what} only"))),
            false => Ok(()),
        };
        let incomplete = |problem: &str| Err(Misfit::of_value("kind", problem));
        let is_stream = kind == Kind::Stream;
        only(!is_stream && listen.is_some(), "listen", "kind `stream`")?;
        only(!is_stream && connect.is_some(), "connect", "kind `stream`")?;
        let is_tap = kind == Kind::Tap;
        only(!is_tap && interface.is_some(), "interface", "kind `tap`")?;
        only(
            kind != Kind::VhostUserNet && socket.is_some(),
            "socket",
            "kind `vhost-user-net`",
        )?;
        only(
            connect.is_none() && reconnect_ms.is_some(),
            "reconnect_ms",
            "streams with key `connect`",
        )?;
        let reconnect =
            reconnect_ms.map_or(RECONNECT, |ms| Duration::from_millis(u64::from(ms.max(1))));
        let kind = match (kind, listen, connect, interface) {
            (Kind::Stream, Some(address), None, _) => PortKind::Listen(address),
            (Kind::Stream, None, Some(address), _) => PortKind::Connect(address, reconnect),
            (Kind::Stream, Some(_), Some(_), _) => {
                return Err(Misfit::of_key(
                    "connect",
                    "kind `stream` has only one of the keys `listen`, `connect`",
                ));
            }
            (Kind::Stream, ..) => {
                return incomplete("kind `stream` needs one of the keys `listen`, `connect`");
            }
            (Kind::Tap, .., Some(interface)) => PortKind::Tap(interface),
            (Kind::Tap, ..) => return incomplete("kind `tap` needs the key `interface`"),
            (Kind::VhostUserNet, ..) => match socket {
                Some(path) if path.as_os_str().is_empty() => {
                    return Err(Misfit::of_value(
                        "socket",
                        "the path is empty, expected that of a unix socket",
                    ));
                }
                Some(path) => PortKind::VhostUserNet(path),
                None => return incomplete("kind `vhost-user-net` needs the key `socket`"),
            },
        };
        let has_socket = match &kind {
            PortKind::Listen(StreamAddress::Unix(_)) | PortKind::VhostUserNet(_) => true,
            PortKind::Listen(StreamAddress::Tcp(_)) | PortKind::Connect(..) | PortKind::Tap(_) => {
                false
            }
        };
        only(
            !has_socket && socket_group.is_some(),
            "socket_group",
            "ports that listen on a unix socket",
        )?;
        Ok(Self {
            name,
            kind,
            socket_group,
            mtu,
            pvid,
            vlans,
            hold: hold_ms.map_or(HOLD, |ms| Duration::from_millis(u64::from(ms))),
            link_tx,
            link_rx,
        })
    }
}

fn address<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<StreamAddress>, D::Error> {
    let text = String::deserialize(deserializer)?;
    StreamAddress::from_str(&text)
        .map(Some)
        .map_err(serde::de::Error::custom)
}

/// Least MTU: that of IPv4 (RFC 791, section 3.2), and of network interfaces (`ETH_MIN_MTU` of Linux).
const MIN_MTU: u64 = 68;

fn mtu<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<u16>, D::Error> {
    file::number_within(deserializer, MIN_MTU..=u16::MAX.into()).map(Some)
}

/// Most octets of the name of a network interface: IFNAMSIZ of netdevice(7), less the terminating zero.
const MAX_INTERFACE: usize = 15;

fn interface<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    let name = String::deserialize(deserializer)?;
    let is_name = |c: char| c.is_ascii_graphic() && c != '/' && c != ':' && c != '%';
    let is_valid = (1..=MAX_INTERFACE).contains(&name.len())
        && name.chars().all(is_name)
        && name != "."
        && name != "..";
    match is_valid {
        true => Ok(Some(name)),
        false => Err(serde::de::Error::custom(format!(
            "{name:?} is not a name of a network interface: 1 to {MAX_INTERFACE} characters, without space, `/`, `:` and `%`"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn kind_of(keys: &str) -> PortKind {
        let config = Config::from_toml(&format!("[[port]]\nname = \"p\"\n{keys}")).unwrap();
        config.ports[0].kind.clone()
    }

    #[test]
    fn each_kind_is_in_the_documents() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let pages = [
            "docs/fabric.md",
            "qemu-config/packages/host/faultline.toml.5",
        ];
        for page in pages {
            let text = std::fs::read_to_string(root.join(page)).unwrap();
            for kind in <Kind as clap::ValueEnum>::value_variants() {
                let value = clap::ValueEnum::to_possible_value(kind).unwrap();
                let name = value.get_name();
                let roff = name.replace('-', "\\-");
                let found = text.contains(name) || text.contains(&roff);
                assert!(found, "{page} has no {name}");
            }
        }
    }

    #[test]
    fn each_kind_is_read() {
        let unix = StreamAddress::Unix("/run/w".into());
        assert_eq!(
            kind_of("kind = \"stream\"\nlisten = \"unix:/run/w\"\n"),
            PortKind::Listen(unix.clone())
        );
        assert_eq!(
            kind_of("kind = \"stream\"\nconnect = \"unix:/run/w\"\n"),
            PortKind::Connect(unix.clone(), RECONNECT)
        );
        assert_eq!(
            kind_of("kind = \"stream\"\nconnect = \"unix:/run/w\"\nreconnect_ms = 50\n"),
            PortKind::Connect(unix, Duration::from_millis(50))
        );
        assert_eq!(
            kind_of("kind = \"tap\"\ninterface = \"fl0\"\nmtu = 4200\n"),
            PortKind::Tap("fl0".to_owned())
        );
        assert_eq!(
            kind_of("kind = \"vhost-user-net\"\nsocket = \"/run/v\"\n"),
            PortKind::VhostUserNet("/run/v".into())
        );
    }

    #[track_caller]
    fn refused(keys: &str, line: usize, column: usize, message: &str) {
        let text = format!("[[port]]\nname = \"p\"\n{keys}");
        let error = Config::from_toml(&text).unwrap_err();
        assert_eq!(error.to_string(), format!("{line}:{column}: {message}"));
    }

    #[test]
    fn a_group_is_for_unix_sockets() {
        refused(
            "kind = \"stream\"\nlisten = \"tcp:127.0.0.1:1\"\nsocket_group = \"a\"\n",
            5,
            1,
            "port[0].socket_group: this key is for ports that listen on a unix socket only",
        );
    }

    #[test]
    fn a_wrong_port_is_refused_with_the_allowed_values() {
        refused(
            "kind = \"tun\"\n",
            3,
            8,
            "port[0].kind: invalid value: string \"tun\", expected one of `stream`, `tap`, `vhost-user-net`",
        );
        refused(
            "kind = \"stream\"\nlisten = \"/run/w\"\n",
            4,
            10,
            "port[0].listen: \"/run/w\" is neither unix:PATH nor tcp:ADDRESS:PORT, such as unix:/run/wire or tcp:192.0.2.1:9000",
        );
        refused(
            "kind = \"stream\"\n",
            3,
            8,
            "port[0].kind: kind `stream` needs one of the keys `listen`, `connect`",
        );
        refused(
            "kind = \"tap\"\n",
            3,
            8,
            "port[0].kind: kind `tap` needs the key `interface`",
        );
        refused(
            "kind = \"vhost-user-net\"\n",
            3,
            8,
            "port[0].kind: kind `vhost-user-net` needs the key `socket`",
        );
        refused(
            "kind = \"stream\"\nlisten = \"unix:/a\"\nconnect = \"unix:/b\"\n",
            5,
            1,
            "port[0].connect: kind `stream` has only one of the keys `listen`, `connect`",
        );
        refused(
            "kind = \"tap\"\ninterface = \"a name that is too long\"\n",
            4,
            13,
            "port[0].interface: \"a name that is too long\" is not a name of a network interface: 1 to 15 characters, without space, `/`, `:` and `%`",
        );
        refused(
            "kind = \"tap\"\ninterface = \"fl0\"\nlisten = \"unix:/a\"\n",
            5,
            1,
            "port[0].listen: this key is for kind `stream` only",
        );
        refused(
            "connect = \"unix:/a\"\nkind = \"tap\"\ninterface = \"fl0\"\n",
            3,
            1,
            "port[0].connect: this key is for kind `stream` only",
        );
        refused(
            "kind = \"stream\"\nlisten = \"unix:/a\"\ninterface = \"fl0\"\n",
            5,
            1,
            "port[0].interface: this key is for kind `tap` only",
        );
        refused(
            "kind = \"vhost-user-net\"\nsocket = \"\"\n",
            4,
            10,
            "port[0].socket: the path is empty, expected that of a unix socket",
        );
        refused(
            "kind = \"tap\"\ninterface = \"fl0\"\nsocket = \"/a\"\n",
            5,
            1,
            "port[0].socket: this key is for kind `vhost-user-net` only",
        );
        refused(
            "kind = \"stream\"\nlisten = \"unix:/a\"\nreconnect_ms = 5\n",
            5,
            1,
            "port[0].reconnect_ms: this key is for streams with key `connect` only",
        );
        refused(
            "kind = \"stream\"\nlisten = \"unix:/a\"\nhold_ms = -1\n",
            5,
            11,
            "port[0].hold_ms: invalid value: integer `-1`, expected an integer from 0 to 65535",
        );
        refused(
            "kind = \"stream\"\nlisten = \"unix:/a\"\nmtu = 70000\n",
            5,
            7,
            "port[0].mtu: invalid value: integer `70000`, expected an integer from 68 to 65535",
        );
        for mtu in [0, 67, -1] {
            refused(
                &format!("kind = \"stream\"\nlisten = \"unix:/a\"\nmtu = {mtu}\n"),
                5,
                7,
                &format!(
                    "port[0].mtu: invalid value: integer `{mtu}`, expected an integer from 68 to 65535"
                ),
            );
        }
    }
}
