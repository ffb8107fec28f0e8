//! Setup of tests: a served process, devices on its sockets, connected QPs.

use std::path::PathBuf;
use std::time::Duration;

use faultline_abi::qp::{
    ACCESS_LOCAL_WRITE, ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE,
};
use faultline_config::{Config, ControlSettings, EngineCount, NicEntry, PollMode};
use faultline_daemon::Server;
use tempfile::TempDir;

use crate::cq::{Cq, Wc};
use crate::domain::{Context, Mr, Pd};
use crate::error::DriverError;
use crate::event::EventQueue;
use crate::nic::{Nic, NicOptions};
use crate::qp::{Link, Qp, QpOptions, QpType, Srq, connect};
use crate::ram::Buf;

pub use crate::patience::{LONG, SetOnDrop, until};

/// All rights.
pub const ALL_ACCESS: u32 =
    ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ | ACCESS_REMOTE_ATOMIC;
/// Longest time that one pass of the engine may take on a machine that does other things, too: beyond some seconds QEMU and
/// drivers take a device for dead. Mostly it is a few milliseconds.
const LONGEST_PASS: Duration = Duration::from_secs(1);
/// Steps of a pass that need not be charged: a thousand for each of a NIC's calls, as in the simulator.
const FREE_STEPS: u64 = 1 << 16;

/// Environment variable: the number of engines of each process whose configuration does not set it. Tests are about
/// NICs on any engine.
const ENGINES: &str = "FAULTLINE_TEST_ENGINES";

/// Name of the control server's socket.
const CONTROL: &str = "control";

/// True if the NICs of a process are on several threads unless its configuration says otherwise. Each waits for a processor for itself
/// then, and not with its peer.
pub(crate) fn has_several_engines() -> bool {
    std::env::var(ENGINES).is_ok_and(|count| count != "1")
}

/// A process with NICs, on threads of this one.
#[derive(Debug)]
pub struct Fabric {
    server: Server,
    directory: TempDir,
}

impl Fabric {
    /// Serves NICs of these names.
    pub fn start(poll: PollMode, names: &[&str]) -> anyhow::Result<Self> {
        Self::start_with(
            Config {
                poll,
                ..Config::default()
            },
            names,
        )
    }

    /// As [`Fabric::start`]. Frames of the NICs `slow` leave at 1 Gb/s, and the NIC waits for the link: a burst takes its time on any
    /// machine, and a test can act in the midst of it.
    pub fn start_slow(names: &[&str], slow: &[&str]) -> anyhow::Result<Self> {
        let nics = slow.iter().map(|name| {
            format!("[[nic]]\nname = \"{name}\"\nlink_tx = {{ rate_mbps = 1000, queue_bytes = 400000, pause_bytes = 40000 }}\n")
        });
        let config = Config {
            poll: PollMode::Adaptive,
            ..Config::from_toml(&nics.collect::<String>())?
        };
        Self::start_with(config, names)
    }

    /// As [`Fabric::start`], with everything else of a configuration: also settings of NICs of these names.
    pub fn start_with(config: Config, names: &[&str]) -> anyhow::Result<Self> {
        Self::start_in(tempfile::tempdir()?, config, names)
    }

    /// As [`Fabric::start_with`], with a control server.
    pub fn start_controlled(config: Config, names: &[&str]) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let control = ControlSettings {
            socket: Some(directory.path().join(CONTROL)),
            ..config.control
        };
        Self::start_in(directory, Config { control, ..config }, names)
    }

    fn start_in(directory: TempDir, config: Config, names: &[&str]) -> anyhow::Result<Self> {
        let configured = |name: &str| config.nics.iter().find(|nic| nic.name == name);
        let nics = names
            .iter()
            .map(|name| NicEntry {
                name: (*name).to_owned(),
                socket: directory.path().join(name),
                ..configured(name).cloned().unwrap_or_default()
            })
            .collect();
        let engines = match std::env::var(ENGINES) {
            Ok(count) if config.engines == EngineCount::default() => {
                count.parse().map_err(anyhow::Error::msg)?
            }
            _ => config.engines,
        };
        let config = Config {
            nics,
            engines,
            ..config
        };
        Ok(Self {
            server: faultline_control::serve(&config)?,
            directory,
        })
    }

    /// Checks that no pass of the engine was long, and that all of its work was charged.
    #[track_caller]
    pub fn assert_passes_are_short(&self) {
        let longest = self.server.take_longest_pass().expect("an engine");
        assert!(longest.time < LONGEST_PASS, "{longest:?}");
        assert!(longest.uncharged_steps < FREE_STEPS, "{longest:?}");
    }

    /// Socket of a NIC.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Socket of the control server.
    pub fn control(&self) -> PathBuf {
        self.socket(CONTROL)
    }

    /// Opens a NIC.
    pub fn open(&self, name: &str) -> Result<Nic, DriverError> {
        Nic::open(&self.socket(name))
    }

    /// Opens a NIC and makes the objects that a test usually needs.
    pub fn node(&self, name: &str) -> Result<Node, DriverError> {
        Node::new(self.open(name)?)
    }

    /// As [`Fabric::node`], with options.
    pub fn node_with(&self, name: &str, options: &NicOptions) -> Result<Node, DriverError> {
        Node::new(Nic::open_with(&self.socket(name), options)?)
    }
}

/// An open NIC with a context, a PD, a CQ and its event queue, and 1 MiB of registered memory.
#[derive(Debug)]
pub struct Node {
    /// The CQ.
    pub cq: Cq,
    /// Region of `buf`, with all access rights.
    pub mr: Mr,
    /// The PD.
    pub pd: Pd,
    /// The context.
    pub context: Context,
    /// Event queue of the CQ.
    pub eq: EventQueue,
    /// The registered memory.
    pub buf: Buf,
    /// The NIC.
    pub nic: Nic,
}

impl Node {
    /// Vector of the event queue for completions.
    pub const COMPLETIONS: u16 = 1;
    /// Bytes of registered memory.
    pub const BUF: usize = 1 << 20;

    /// Makes the objects on a NIC that is started.
    pub fn new(nic: Nic) -> Result<Self, DriverError> {
        let eq = nic.event_queue(Self::COMPLETIONS, 0, 8)?;
        let context = nic.context()?;
        let pd = nic.pd()?;
        let cq = context.cq(&eq, 10)?;
        let buf = nic.alloc(Self::BUF)?;
        let mr = pd.register(&buf, ALL_ACCESS)?;
        Ok(Self {
            cq,
            mr,
            pd,
            context,
            eq,
            buf,
            nic,
        })
    }

    /// A QP with the usual shape.
    pub fn qp(&self, kind: QpType) -> Result<Qp, DriverError> {
        self.qp_with(kind, None, &QpOptions::default())
    }

    /// A QP.
    pub fn qp_with(
        &self,
        kind: QpType,
        srq: Option<&Srq>,
        options: &QpOptions,
    ) -> Result<Qp, DriverError> {
        let (pd, cq) = (&self.pd, &self.cq);
        self.context.qp(pd, kind, cq, cq, srq, options)
    }

    /// The next completion, which must come.
    #[track_caller]
    pub fn completion(&mut self) -> Wc {
        match self.cq.poll_for(LONG) {
            Some(wc) => wc,
            None => panic!("no completion within {LONG:?}"),
        }
    }

    /// The next completion, which must come and be good.
    #[track_caller]
    pub fn good_completion(&mut self) -> Wc {
        let wc = self.completion();
        assert!(wc.is_ok(), "failed: {wc:?}");
        wc
    }
}

/// Connects a new QP of each node with the other.
pub fn connect_nodes(a: &Node, b: &Node, kind: QpType) -> Result<(Qp, Qp), DriverError> {
    let (qa, qb) = (a.qp(kind)?, b.qp(kind)?);
    connect(&qa, &qb, &Link::default())?;
    Ok((qa, qb))
}
