//! The rows of the tables.

use std::time::Duration;

use crate::exchange::{Exchange, Ready};
use crate::prepare::LongBuild;
use crate::test::facts::{Facts, Runs, SuiteFacts, facts};

/// A row: a test in one guest or two. A test passes if both commands succeed, the output of the client contains
/// `expect`, and no kernel has reported an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestTest {
    pub facts: Facts,
    commands: Commands,
    ready: Ready,
    /// Seconds for both commands, on a quiet machine.
    seconds: u64,
    /// Text that the client's output must contain.
    pub expect: &'static str,
    /// Virtual CPUs that it needs, if it needs more than its suite has.
    pub cpus: Option<u32>,
    /// The server is the second guest, and the client the first.
    pub is_reversed: bool,
    /// After it, the models of the links must have lost and reordered frames in both directions.
    pub is_impaired: bool,
    /// The period with which the pages of on-demand regions are taken from the NICs while it runs.
    pub evicted: Option<&'static str>,
    /// The sides whose NICs must raise page faults while it runs.
    pub faulting: Option<Sides>,
    /// Why an on-demand test has no such sides.
    pub not_faulting: Option<&'static str>,
    /// On kernels that are configured to find errors it shows nothing that shorter ones do not, and takes very long.
    pub is_too_slow: bool,
    /// Software that its guests have besides that of its suite.
    pub long_build: Option<LongBuild>,
}

/// A suite that is a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuestSuite {
    pub facts: SuiteFacts,
    pub tests: &'static [GuestTest],
    /// Tests of a table that several suites share, which have these runs in this one.
    with_runs: Option<(&'static [&'static str], Runs)>,
}

/// A suite and its table.
pub const fn suite(
    name: &'static str,
    shows: &'static str,
    runs: Runs,
    tests: &'static [GuestTest],
) -> GuestSuite {
    GuestSuite {
        facts: SuiteFacts { name, shows, runs },
        tests,
        with_runs: None,
    }
}

impl GuestSuite {
    /// The same with other runs of some tests.
    pub const fn with_runs(self, tests: &'static [&'static str], runs: Runs) -> Self {
        Self {
            with_runs: Some((tests, runs)),
            ..self
        }
    }

    /// The facts of its tests.
    pub fn all(&self) -> Vec<Facts> {
        let facts = |test: &GuestTest| match self.with_runs {
            Some((tests, runs)) if tests.contains(&test.facts.name) => test.facts.runs(runs),
            _ => test.facts,
        };
        self.tests.iter().map(facts).collect()
    }
}

/// The sides of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sides {
    Server,
    Client,
    Both,
}

impl Sides {
    /// True if the server is one of them.
    pub fn has_server(self) -> bool {
        self != Self::Client
    }

    /// True if the client is one of them.
    pub fn has_client(self) -> bool {
        self != Self::Server
    }
}

/// The commands in the guests. The client is the second guest, unless the test is reversed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commands {
    /// A command of the client; the other guest does nothing.
    Client(&'static str),
    /// A command of each.
    Two(&'static str, &'static str),
    /// A script with the argument `server` or `client`, and further ones.
    Roles(&'static str, &'static str),
    /// A command with options in both guests; the client's is followed by the server's address.
    Address(&'static str, &'static str),
    /// `odp_torture`.
    Torture {
        victim: &'static str,
        both: &'static str,
        /// Duration of the traffic.
        seconds: u64,
    },
}

impl GuestTest {
    /// The exchange to run.
    pub fn exchange(&self) -> Exchange {
        let (server, client) = self.commands.both();
        Exchange {
            server,
            client,
            ready: self.ready,
            limit: Duration::from_secs(self.seconds),
        }
    }

    /// Seconds that it takes at least.
    pub fn least_seconds(&self) -> u64 {
        match self.commands {
            Commands::Torture { seconds, .. } => seconds,
            _ => 0,
        }
    }

    /// The same in guests with this number of virtual CPUs.
    pub const fn on_cpus(self, cpus: u32) -> Self {
        Self {
            cpus: Some(cpus),
            ..self
        }
    }

    /// The same with the server in the second guest.
    pub const fn reversed(self) -> Self {
        Self {
            is_reversed: true,
            ..self
        }
    }

    /// The same on links with models, which must have lost and reordered frames when it has ended. It must send some thousand
    /// frames in each direction: with fewer, a link that loses one of a hundred may have lost none.
    pub const fn impaired(self) -> Self {
        Self {
            is_impaired: true,
            ..self
        }
    }

    /// The same with page faults: the NICs of these sides must raise some while it runs, because pages that the NICs use are
    /// not present when the test begins.
    pub const fn faulting(self, sides: Sides) -> Self {
        Self {
            faulting: Some(sides),
            ..self
        }
    }

    /// The same while the pages of all on-demand regions are taken from the NICs again and again, so that both raise page faults.
    pub const fn evicted(self) -> Self {
        self.evicted_every("10ms")
    }

    /// The same with another period. A peer of another make waits for RNR timers, which READY would end: it needs a longer one.
    pub const fn evicted_every(self, period: &'static str) -> Self {
        Self {
            evicted: Some(period),
            ..self.faulting(Sides::Both)
        }
    }

    /// The same without page faults, for a reason: each other test with memory that is registered on demand raises some.
    pub const fn not_faulting(self, reason: &'static str) -> Self {
        Self {
            not_faulting: Some(reason),
            ..self
        }
    }

    /// The same, but not on kernels that are configured to find errors.
    pub const fn too_slow(self) -> Self {
        Self {
            is_too_slow: true,
            ..self
        }
    }

    /// The same in guests with this software.
    pub const fn with(self, build: LongBuild) -> Self {
        Self {
            long_build: Some(build),
            ..self
        }
    }

    /// The same with the sentence that it shows.
    pub const fn shows(self, shows: &'static str) -> Self {
        Self {
            facts: Facts {
                shows,
                ..self.facts
            },
            ..self
        }
    }

    /// The same in other runs than its suite.
    pub const fn runs(self, runs: Runs) -> Self {
        Self {
            facts: self.facts.runs(runs),
            ..self
        }
    }

    /// The same with another condition for the client's start.
    pub const fn after(self, ready: Ready) -> Self {
        Self { ready, ..self }
    }

    /// The same with other output of the client.
    pub const fn expecting(self, expect: &'static str) -> Self {
        Self { expect, ..self }
    }

    /// The same with other seconds.
    pub const fn within(self, seconds: u64) -> Self {
        Self { seconds, ..self }
    }
}

impl Commands {
    /// The server's command and the client's.
    fn both(self) -> (String, String) {
        match self {
            Self::Client(command) => ("true".to_owned(), command.to_owned()),
            Self::Two(server, client) => (server.to_owned(), client.to_owned()),
            Self::Roles(script, arguments) => {
                let role = |role: &str| format!("{script} {role} {arguments}");
                let (server, client) = (role("server"), role("client"));
                (server.trim_end().to_owned(), client.trim_end().to_owned())
            }
            Self::Address(command, options) => {
                let server = format!("{command} {options}").trim_end().to_owned();
                let client = format!("{server} $PEER_IP");
                (server, client)
            }
            Self::Torture {
                victim,
                both,
                seconds,
            } => (
                format!("odp_torture $NIC_LIMITS {both} {victim}"),
                // A slow kernel does less in this time. The factor of others is 2.
                format!(
                    "odp_torture $NIC_LIMITS {both} --seconds $(({seconds} * LAB_TIME_FACTOR / 2)) $PEER_IP"
                ),
            ),
        }
    }
}

/// The last output of most of the project's own programs and scripts.
pub const DONE: &str = "all right";

/// Any test.
pub const fn test(
    name: &'static str,
    commands: Commands,
    ready: Ready,
    seconds: u64,
    expect: &'static str,
) -> GuestTest {
    GuestTest {
        facts: facts(name, ""),
        commands,
        ready,
        seconds,
        expect,
        cpus: None,
        is_reversed: false,
        is_impaired: false,
        evicted: None,
        faulting: None,
        not_faulting: None,
        is_too_slow: false,
        long_build: None,
    }
}

/// A command of the second guest.
pub const fn client(name: &'static str, command: &'static str) -> GuestTest {
    test(name, Commands::Client(command), Ready::Now, 120, DONE)
}

/// 64 MiB over TCP from client to server.
pub const fn tcp(name: &'static str) -> GuestTest {
    test(
        name,
        Commands::Two(
            "lab stream-receive 5001",
            "lab stream-send $PEER_IP:5001 67108864",
        ),
        Ready::Tcp(5001),
        120,
        "67108864 bytes",
    )
}

/// A test program for one guest.
pub const fn alone(name: &'static str, command: &'static str) -> GuestTest {
    client(name, command).expecting("PASS")
}

/// A script with an argument for the role of its guest.
pub const fn roles(
    name: &'static str,
    script: &'static str,
    arguments: &'static str,
    ready: Ready,
) -> GuestTest {
    test(name, Commands::Roles(script, arguments), ready, 120, DONE)
}

/// A program whose client connects to its server at a TCP port of the address in its arguments.
pub const fn pair(name: &'static str, command: &'static str, port: u16) -> GuestTest {
    let commands = Commands::Address(command, "");
    test(name, commands, Ready::Tcp(port), 120, DONE)
}

/// One of libibverbs' example programs.
pub const fn verbs(name: &'static str, command: &'static str) -> GuestTest {
    let commands = Commands::Address(command, "-d $RDMA_DEV -g $GID_INDEX");
    test(name, commands, Ready::Tcp(18515), 60, "usec/iter")
}

/// The same over IPv6: the client prints its GID. The control connection is over IPv4.
pub const fn verbs_ipv6(name: &'static str, command: &'static str) -> GuestTest {
    let commands = Commands::Address(command, "-d $RDMA_DEV -g $GID_INDEX6");
    test(name, commands, Ready::Tcp(18515), 60, "GID fd77::")
}

/// One of perftest's programs.
pub const fn perf(name: &'static str, command: &'static str) -> GuestTest {
    let commands = Commands::Address(command, "-d $RDMA_DEV -x $GID_INDEX -F");
    test(name, commands, Ready::Tcp(18515), 90, "#bytes")
}

/// The same over IPv6: the client prints its GID, each byte as a decimal number. The control connection is over IPv4.
pub const fn perf_ipv6(name: &'static str, command: &'static str) -> GuestTest {
    let commands = Commands::Address(command, "-d $RDMA_DEV -x $GID_INDEX6 -F");
    test(name, commands, Ready::Tcp(18515), 90, "GID: 253:119:")
}

/// One run of `odp_torture`: the options of the victim, the options of both, and the duration of the traffic.
pub const fn torture(
    name: &'static str,
    victim: &'static str,
    both: &'static str,
    seconds: u64,
) -> GuestTest {
    let commands = Commands::Torture {
        victim,
        both,
        seconds,
    };
    // If not every event has had an effect in that time, it continues for up to eight times as long. The rest is for
    // the end: of an event, or of work that waits for memory.
    test(name, commands, Ready::Tcp(18600), 9 * seconds + 120, DONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands(test: GuestTest) -> [String; 2] {
        let Exchange { server, client, .. } = test.exchange();
        [server, client]
    }

    #[test]
    fn commands_of_both_guests_follow_from_a_row() {
        assert_eq!(commands(alone("a", "a --b")), ["true", "a --b"]);
        assert_eq!(
            commands(roles("a", "a", "", Ready::Now)),
            ["a server", "a client"]
        );
        assert_eq!(
            commands(roles("a", "a", "b c", Ready::Now)),
            ["a server b c", "a client b c"]
        );
        assert_eq!(commands(pair("a", "a b", 1)), ["a b", "a b $PEER_IP"]);
        assert_eq!(
            commands(verbs("rc", "ibv_rc_pingpong -c")),
            [
                "ibv_rc_pingpong -c -d $RDMA_DEV -g $GID_INDEX",
                "ibv_rc_pingpong -c -d $RDMA_DEV -g $GID_INDEX $PEER_IP"
            ]
        );
        assert_eq!(
            commands(perf_ipv6("bw", "ib_write_bw"))[1],
            "ib_write_bw -d $RDMA_DEV -x $GID_INDEX6 -F $PEER_IP"
        );
        assert_eq!(
            commands(torture("a", "--events b", "--qps 1", 8)),
            [
                "odp_torture $NIC_LIMITS --qps 1 --events b",
                "odp_torture $NIC_LIMITS --qps 1 --seconds $((8 * LAB_TIME_FACTOR / 2)) $PEER_IP"
            ]
        );
    }

    #[test]
    fn a_row_may_differ_from_its_kind() {
        let test = alone("a", "a").on_cpus(2).within(5).expecting("b");
        assert_eq!(test.exchange().limit, Duration::from_secs(5));
        assert_eq!((test.cpus, test.expect), (Some(2), "b"));
    }
}
