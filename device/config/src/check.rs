//! Rules for the NICs and ports of a configuration together, from the file or the command line.
//!
//! Values that are wrong by themselves are refused where they are read.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use faultline_ports::address::StreamAddress;
use faultline_scenario::problem::{self, Problem};
use faultline_wire::MacAddr;

use crate::config::{Config, ConfigError, NicEntry};
use crate::engine::MOST_ENGINES;
use crate::port::{PortEntry, PortKind};

impl Config {
    /// Refuses configurations that can't work, with all problems.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mut problems = Vec::new();
        if self.nics.is_empty() {
            problems.push(
                self.refused(
                    Place::Text(problem::Path::root()),
                    "no NIC is configured: give --nic NAME=SOCKET, or [[nic]] sections in the file"
                        .to_owned(),
                ),
            );
        }
        if let Err(error) = self.control.check() {
            let listen = problem::Path::root().key("control").key("listen");
            problems.push(self.refused(Place::Text(listen), error.to_string()));
        }
        problems.extend(self.missing_sockets());
        problems.extend(self.too_many_engines());
        problems.extend(self.taken_claims());
        match problems.is_empty() {
            true => Ok(()),
            false => Err(ConfigError::Several(problems)),
        }
    }

    fn refused(&self, place: Place, what: String) -> ConfigError {
        match place {
            Place::Text(path) => ConfigError::at(self.source.as_ref(), path, what),
            Place::Named(name) => ConfigError::Refused(format!("{name}: {what}")),
        }
    }

    /// NICs without a socket.
    fn missing_sockets(&self) -> impl Iterator<Item = ConfigError> {
        let nics = self.nics.iter();
        let without = nics.filter(|nic| nic.socket.as_os_str().is_empty());
        without.map(|nic| {
            self.refused(
                Place::of_nic(nic, "socket"),
                format!(
                    "the NIC has no socket: give it the path of one here, or --nic {}=SOCKET",
                    nic.name
                ),
            )
        })
    }

    /// The first NIC with an engine beyond those that a process can have.
    fn too_many_engines(&self) -> Option<ConfigError> {
        let layout = self.engine_layout();
        let mut nics = self.nics.iter().zip(&layout.of_nics);
        let (nic, _) = nics.find(|(_, engine)| **engine >= MOST_ENGINES)?;
        Some(self.refused(
            Place::of_nic(nic, "engine"),
            format!(
                "the NICs are on {} engines, but a process has at most {MOST_ENGINES}: give fewer names with the key `engine`",
                layout.names.len()
            ),
        ))
    }

    /// Resources with one user that a further entry claims.
    fn taken_claims(&self) -> Vec<ConfigError> {
        let mut users: HashMap<Claim, Place> = HashMap::new();
        let mut taken = Vec::new();
        for (claim, place) in self.claims() {
            match users.entry(claim) {
                Entry::Vacant(entry) => {
                    entry.insert(place);
                }
                Entry::Occupied(entry) => {
                    let (claim, user) = (entry.key(), self.shown(entry.get()));
                    let what = claim.what();
                    let problem = format!(
                        "the {what} {claim} is taken by {user}: each NIC and port needs its own"
                    );
                    taken.push(self.refused(place, problem));
                }
            }
        }
        taken
    }

    /// A place as others refer to it.
    fn shown(&self, place: &Place) -> String {
        match (place, &self.source) {
            (Place::Named(name), _) => name.clone(),
            (Place::Text(path), None) => path.to_string(),
            (Place::Text(path), Some(source)) => {
                let at = source.locate(Problem::of_value(path.clone(), ""));
                format!("{path} in line {}", at.line)
            }
        }
    }

    /// Resources that the control server, the NICs and the ports claim.
    fn claims(&self) -> impl Iterator<Item = (Claim, Place)> {
        let control = &self.control;
        let socket = control.socket.as_deref().map(Claim::socket);
        let listen = control.listen.and_then(Claim::address);
        let of_control = [socket, listen].into_iter().flatten();
        let of_control = of_control.map(|claim| (claim, Place::Named("the control server".into())));
        let of_nics = self.nics.iter().enumerate().flat_map(|(index, nic)| {
            let name = (Claim::Name(nic.name.clone()), Place::of_nic(nic, "name"));
            let has_socket = !nic.socket.as_os_str().is_empty();
            let socket = || (Claim::socket(&nic.socket), Place::of_nic(nic, "socket"));
            // An address that is made of a name which is taken would be a second problem with one cause.
            let mut before = self.nics.iter().take(index);
            let is_taken = nic.mac.is_none() && before.any(|other| other.name == nic.name);
            let mac = || (Claim::Mac(nic.mac_address()), Place::of_nic(nic, "mac"));
            let claims = [Some(name), has_socket.then(socket), (!is_taken).then(mac)];
            claims.into_iter().flatten()
        });
        let ports = problem::Path::root().key("port");
        let of_ports = self
            .ports
            .iter()
            .enumerate()
            .flat_map(move |(table, port)| {
                let table = ports.index(table);
                let name = (Claim::Name(port.name.clone()), "name");
                let claims = [Some(name), Claim::of_port(port)].into_iter().flatten();
                claims.map(move |(claim, key)| (claim, Place::Text(table.key(key))))
            });
        of_control.chain(of_nics).chain(of_ports)
    }
}

/// Where a value comes from.
#[derive(Clone, Debug)]
enum Place {
    /// The text of the configuration.
    Text(problem::Path),
    /// Elsewhere.
    Named(String),
}

impl Place {
    fn of_nic(nic: &NicEntry, key: &str) -> Self {
        match nic.table {
            Some(table) if key != "socket" || !nic.has_given_socket => {
                Self::Text(problem::Path::root().key("nic").index(table).key(key))
            }
            _ => Self::Named(format!("--nic {}={}", nic.name, nic.socket.display())),
        }
    }
}

/// Something that can have one user only.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Claim {
    Name(String),
    Socket(PathBuf),
    /// A port of TCP.
    Address(SocketAddr),
    Interface(String),
    Mac(MacAddr),
}

impl Claim {
    fn socket(path: &Path) -> Self {
        Self::Socket(path.to_owned())
    }

    /// With port 0 the system chooses one that is free.
    fn address(address: SocketAddr) -> Option<Self> {
        (address.port() != 0).then_some(Self::Address(address))
    }

    /// The claims of a port besides its name, and the key of each.
    fn of_port(port: &PortEntry) -> Option<(Self, &'static str)> {
        match &port.kind {
            PortKind::Listen(StreamAddress::Unix(path)) => Some((Self::socket(path), "listen")),
            PortKind::Listen(StreamAddress::Tcp(address)) => {
                Self::address(*address).map(|claim| (claim, "listen"))
            }
            PortKind::Connect(..) => None,
            PortKind::Tap(interface) => Some((Self::Interface(interface.clone()), "interface")),
            PortKind::VhostUserNet(path) => Some((Self::socket(path), "socket")),
        }
    }

    fn what(&self) -> &'static str {
        match self {
            Self::Name(_) => "name",
            Self::Socket(_) => "socket",
            Self::Address(_) => "listen address",
            Self::Interface(_) => "network interface",
            Self::Mac(_) => "MAC address",
        }
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) | Self::Interface(name) => write!(f, "{name}"),
            Self::Socket(path) => write!(f, "{}", path.display()),
            Self::Address(address) => write!(f, "{address}"),
            Self::Mac(mac) => write!(f, "{mac}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The message that refuses a text, with NICs of the command line.
    #[track_caller]
    fn refusal(text: &str, nics: &[&str]) -> String {
        let mut config = Config::from_toml(text).unwrap();
        config.add(nics.iter().map(|nic| nic.parse().unwrap()).collect());
        config.check().unwrap_err().to_string()
    }

    /// Two tables of NICs: their names and sockets are in lines 2, 3, 5 and 6.
    fn nics(names: [&str; 2], sockets: [&str; 2]) -> String {
        let [a, b] = [0, 1].map(|n: usize| {
            format!(
                "[[nic]]\nname = \"{}\"\nsocket = \"{}\"\n",
                names[n], sockets[n]
            )
        });
        a + &b
    }

    /// The table of a port after those of two NICs: its name is in line 8.
    fn with_port(keys: &str) -> String {
        let nics = nics(["a", "b"], ["/run/a", "/run/b"]);
        format!("{nics}[[port]]\nname = \"p\"\n{keys}")
    }

    #[test]
    fn all_problems_are_named() {
        let text = "[[nic]]\nname = \"a\"\n\n[[nic]]\nname = \"a\"\nsocket = \"/run/b\"\n\n[[port]]\nname = \"p\"\nkind = \"stream\"\nconnect = \"unix:/run/b\"\n\
            [[port]]\nname = \"p\"\nkind = \"stream\"\nlisten = \"unix:/run/b\"\n";
        let error = Config::from_toml(text).unwrap().check().unwrap_err();
        let each = "each NIC and port needs its own";
        let expected = [
            "1:1: nic[0].socket: the NIC has no socket: give it the path of one here, or --nic a=SOCKET"
                .to_owned(),
            format!("5:8: nic[1].name: the name a is taken by nic[0].name in line 2: {each}"),
            format!("13:8: port[1].name: the name p is taken by port[0].name in line 9: {each}"),
            format!(
                "15:10: port[1].listen: the socket /run/b is taken by nic[1].socket in line 6: {each}"
            ),
        ];
        assert_eq!(error.to_string(), expected.join("\n"));
        let error = Config::from_toml("poll = 3\n[[nic]]\nname = 1\nready = true\n").unwrap_err();
        assert_eq!(error.to_string().lines().count(), 3, "{error}");
    }

    #[test]
    fn a_process_without_nics_is_refused() {
        const MESSAGE: &str =
            "no NIC is configured: give --nic NAME=SOCKET, or [[nic]] sections in the file";
        assert_eq!(refusal("", &[]), format!("1:1: {MESSAGE}"));
        let error = Config::default().check().unwrap_err();
        assert_eq!(error.to_string(), MESSAGE);
    }

    #[test]
    fn a_nic_without_socket_is_located() {
        const MESSAGE: &str =
            "nic[1].socket: the NIC has no socket: give it the path of one here, or --nic b=SOCKET";
        let text = "[[nic]]\nname = \"a\"\nsocket = \"/run/a\"\n[[nic]]\nname = \"b\"\n";
        assert_eq!(refusal(text, &[]), format!("4:1: {MESSAGE}"));
        // The table keeps its place when the command line gives the socket of the one before it.
        assert_eq!(refusal(text, &["a=/run/c"]), format!("4:1: {MESSAGE}"));
        let empty = nics(["a", "b"], ["/run/a", ""]);
        assert_eq!(refusal(&empty, &[]), format!("6:10: {MESSAGE}"));
    }

    #[test]
    fn names_are_compared_with_those_of_nics_and_ports() {
        assert_eq!(
            refusal(&nics(["a", "a"], ["/run/a", "/run/b"]), &[]),
            "5:8: nic[1].name: the name a is taken by nic[0].name in line 2: each NIC and port needs its own"
        );
        let port = with_port("kind = \"tap\"\ninterface = \"fl0\"\n").replace("\"p\"", "\"b\"");
        assert_eq!(
            refusal(&port, &[]),
            "8:8: port[0].name: the name b is taken by nic[1].name in line 5: each NIC and port needs its own"
        );
        assert_eq!(
            refusal("", &["a=/run/a", "a=/run/b"]),
            "--nic a=/run/b: the name a is taken by --nic a=/run/a: each NIC and port needs its own"
        );
    }

    #[test]
    fn sockets_are_compared_with_those_of_nics_ports_and_the_control_server() {
        let taken = |place: &str, user: &str| {
            format!(
                "{place}: the socket /run/a is taken by {user}: each NIC and port needs its own"
            )
        };
        assert_eq!(
            refusal(&nics(["a", "b"], ["/run/a", "/run//a"]), &[]),
            taken("6:10: nic[1].socket", "nic[0].socket in line 3")
        );
        for (keys, place) in [
            (
                "kind = \"stream\"\nlisten = \"unix:/run/a\"\n",
                "10:10: port[0].listen",
            ),
            (
                "kind = \"vhost-user-net\"\nsocket = \"/run/a\"\n",
                "10:10: port[0].socket",
            ),
        ] {
            assert_eq!(
                refusal(&with_port(keys), &[]),
                taken(place, "nic[0].socket in line 3")
            );
        }
        let control = format!(
            "{}[control]\nsocket = \"/run/a\"\n",
            nics(["a", "b"], ["/run/a", "/run/b"])
        );
        assert_eq!(
            refusal(&control, &[]),
            taken("3:10: nic[0].socket", "the control server")
        );
        // Values of the command line have no place in the file.
        let file = nics(["a", "b"], ["/run/x", "/run/a"]);
        assert_eq!(
            refusal(&file, &["a=/run/a"]),
            taken("--nic a=/run/a", "nic[1].socket in line 6")
        );
    }

    #[test]
    fn listen_addresses_are_compared() {
        let port = |name: &str, address: &str| {
            format!("[[port]]\nname = \"{name}\"\nkind = \"stream\"\n{address}\n")
        };
        let nics = nics(["a", "b"], ["/run/a", "/run/b"]);
        let twice = |address: &str| format!("{nics}{}{}", port("p", address), port("q", address));
        assert_eq!(
            refusal(&twice("listen = \"tcp:127.0.0.1:9000\""), &[]),
            "14:10: port[1].listen: the listen address 127.0.0.1:9000 is taken by port[0].listen in line 10: each NIC and port needs its own"
        );
        for allowed in [
            "listen = \"tcp:127.0.0.1:0\"",
            "connect = \"tcp:127.0.0.1:9000\"",
            "connect = \"unix:/run/a\"",
        ] {
            let config = Config::from_toml(&twice(allowed)).unwrap();
            assert!(config.check().is_ok(), "{allowed}");
        }
        let control = format!(
            "{nics}{}[control]\nlisten = \"[::1]:9000\"\ntoken_file = \"/t\"\n",
            port("p", "listen = \"tcp:[::1]:9000\"")
        );
        assert_eq!(
            refusal(&control, &[]),
            "10:10: port[0].listen: the listen address [::1]:9000 is taken by the control server: each NIC and port needs its own"
        );
    }

    #[test]
    fn tap_devices_and_mac_addresses_are_compared() {
        let tap = "kind = \"tap\"\ninterface = \"fl0\"\n";
        assert_eq!(
            refusal(
                &format!("{}[[port]]\nname = \"q\"\n{tap}", with_port(tap)),
                &[]
            ),
            "14:13: port[1].interface: the network interface fl0 is taken by port[0].interface in line 10: each NIC and port needs its own"
        );
        let mac = "mac = \"02:00:00:00:00:01\"\n";
        let [a, b] = ["a", "b"]
            .map(|name| format!("[[nic]]\nname = \"{name}\"\nsocket = \"/run/{name}\"\n{mac}"));
        assert_eq!(
            refusal(&(a + &b), &[]),
            "8:7: nic[1].mac: the MAC address 02:00:00:00:00:01 is taken by nic[0].mac in line 4: each NIC and port needs its own"
        );
    }

    #[test]
    fn the_nic_on_one_engine_too_many_is_located() {
        let nics = (0..65)
            .map(|n| format!("[[nic]]\nname = \"n{n}\"\nsocket = \"/{n}\"\nengine = \"e{n}\"\n"));
        assert_eq!(
            refusal(&nics.collect::<String>(), &[]),
            "260:10: nic[64].engine: the NICs are on 65 engines, but a process has at most 64: give fewer names with the key `engine`"
        );
    }

    #[test]
    fn a_control_address_without_token_is_located() {
        let nics = nics(["a", "b"], ["/run/a", "/run/b"]);
        assert_eq!(
            refusal(
                &format!("{nics}[control]\nlisten = \"127.0.0.1:9180\"\n"),
                &[]
            ),
            "8:10: control.listen: 127.0.0.1:9180 needs the key control.token_file: any local user can connect to it"
        );
    }

    /// A configuration that a program has made has no text.
    #[test]
    fn without_a_text_the_key_is_named() {
        let text = nics(["a", "b"], ["/run/a", "/run/a"]);
        let config = Config {
            source: None,
            ..Config::from_toml(&text).unwrap()
        };
        assert_eq!(
            config.check().unwrap_err().to_string(),
            "nic[1].socket: the socket /run/a is taken by nic[0].socket: each NIC and port needs its own"
        );
    }
}
