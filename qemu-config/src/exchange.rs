//! A server in one guest and a client in another, as in nearly every RDMA test.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::command::tail;
use crate::guest::{Guest, Outcome};
use crate::progress;
use crate::protocol::Exec;

/// Time limit of the script that waits for a server.
const WAIT_LIMIT: Duration = Duration::from_secs(120);
/// Seconds that the script waits, on a quiet machine. A server that has failed costs as many.
const WAIT_SECONDS: u32 = 30;
/// How long a server may outlive its client.
const GRACE: Duration = Duration::from_secs(15);
/// The same after the client has failed: no other client will connect to the server.
const GRACE_AFTER_FAILURE: Duration = Duration::from_secs(2);

/// The condition for the start of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ready {
    /// It listens on this TCP port.
    Tcp(u16),
    /// A process of this program listens through the connection manager.
    Cm(&'static str),
    /// A kernel listens through the connection manager.
    KernelCm,
    /// This command succeeds in the server's guest.
    When(&'static str),
    /// The client starts at once.
    Now,
}

/// A server's and a client's script.
#[derive(Debug, Clone)]
pub struct Exchange {
    /// Runs in the first guest.
    pub server: String,
    /// Runs in the second guest, `$PEER_IP` being the first.
    pub client: String,
    /// When the client may start.
    pub ready: Ready,
    /// Time for both.
    pub limit: Duration,
}

/// The result of an exchange.
#[derive(Debug, Clone)]
pub struct Report {
    /// The server was not ready in time, so the client has begun without it.
    pub unready: bool,
    /// Result and output of the server.
    pub server: Outcome,
    /// Result and output of the client.
    pub client: Outcome,
}

impl Report {
    /// True if both succeeded, and the client did not begin too early.
    pub fn success(&self) -> bool {
        !self.unready && self.server.success() && self.client.success()
    }

    /// Both sides' last output.
    pub fn text(&self, lines: usize) -> String {
        let side = |name: &str, outcome: &Outcome| {
            format!(
                "--- {name}: {}\n{}\n",
                outcome.describe(),
                tail(&outcome.both, lines)
            )
        };
        let mut text = side("server", &self.server) + &side("client", &self.client);
        if self.unready {
            text.push_str(&format!(
                "the server was not ready within {WAIT_SECONDS} s\n"
            ));
        }
        text
    }
}

/// Runs an exchange.
///
/// # Errors
/// Only if a guest has ended: a failed program is a [`Report`].
pub fn run(server: &Guest, client: &Guest, exchange: &Exchange) -> Result<Report> {
    let script = |text: &str| Exec {
        script: text.to_owned(),
        ..Exec::default()
    };
    let serving = server.start(&script(&exchange.server))?;
    let mut unready = false;
    if let Some(script) = wait_script(exchange.ready) {
        let started = Instant::now();
        unready = !server.run(&script, WAIT_LIMIT)?.success();
        progress::waited("the server's start", started.elapsed());
    }
    let client = client
        .start(&script(&exchange.client))?
        .wait(exchange.limit, &mut |_| ())?;
    let grace = if client.success() {
        GRACE
    } else {
        GRACE_AFTER_FAILURE
    };
    let started = Instant::now();
    let server = serving.wait_more(grace)?;
    progress::waited("the server's end", started.elapsed());
    Ok(Report {
        unready,
        server,
        client,
    })
}

/// Script that waits for a server, for a limited time: a server that has failed reports that itself.
fn wait_script(ready: Ready) -> Option<String> {
    let ready = match ready {
        Ready::Tcp(port) => format!("lab_listens {port}"),
        Ready::Cm(program) => format!("lab_listens_cm {program}"),
        // The name of a kernel's module is in brackets.
        Ready::KernelCm => "rdma resource show cm_id | grep -q 'LISTEN.* comm \\['".to_owned(),
        Ready::When(command) => command.to_owned(),
        Ready::Now => return None,
    };
    Some(format!(
        "ready() {{ {ready}; }}; lab_until {WAIT_SECONDS} ready"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::Status;

    #[test]
    fn a_report_needs_both_sides() {
        let outcome = |code| Outcome {
            status: Status::Exited(code),
            stdout: Vec::new(),
            both: b"said".to_vec(),
        };
        let report = |server, client| Report {
            unready: false,
            server: outcome(server),
            client: outcome(client),
        };
        assert!(report(0, 0).success());
        assert!(!report(1, 0).success());
        assert!(!report(0, 1).success());
        assert!(report(0, 1).text(5).contains("client: exit status 1\nsaid"));
        let early = Report {
            unready: true,
            ..report(0, 0)
        };
        assert!(!early.success());
        assert!(early.text(5).contains("the server was not ready"));
    }

    #[test]
    fn the_wait_ends() {
        let script = |ready| wait_script(ready).unwrap();
        assert_eq!(
            script(Ready::Tcp(7)),
            "ready() { lab_listens 7; }; lab_until 30 ready"
        );
        assert_eq!(
            script(Ready::Cm("a")),
            "ready() { lab_listens_cm a; }; lab_until 30 ready"
        );
        assert!(script(Ready::When("test -e /x")).contains("{ test -e /x; }"));
        assert_eq!(wait_script(Ready::Now), None);
    }
}
