//! Cost of a scenario whose rules do not match: the message rate with and without one, on one device in turns.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context as _, ensure};
use faultline_harness::testbed::LONG;
use serde_json::json;

use super::{Bench, Cpus, DeviceOptions, Figure, median_ratio};

const WITHOUT: &str = "rate without a scenario";

/// One rule for each kind of things. The traffic is WRITEs over one connection, with their ACKs, completions and doorbells, so
/// some of the rules compare more than an opcode.
const RULES: &str = r#"
    [[rule]]
    on = { opcode = "READ" }
    do = { drop = {} }
    [[rule]]
    on = { dir = "rx", opcode = "ACK", qpn = 9999 }
    do = { drop = {} }
    [[rule]]
    on = { completion = "RETRY_EXC_ERR" }
    do = { drop = {} }
    [[rule]]
    on = { fault = "record" }
    do = { delay = { by = "1ms" } }
    [[rule]]
    on = { doorbell = "sq", qpn = 9999 }
    do = { drop = {} }
"#;

/// Measures pairs of rounds with and without the rules.
pub(crate) fn measure(cpus: Cpus, pairs: usize, rounds: usize) -> anyhow::Result<Vec<Figure>> {
    let mut bench = Bench::new(cpus, &DeviceOptions::default())?;
    let socket = bench.device.control();
    bench.rate(rounds)?;
    let (mut without, mut with) = (vec![], vec![]);
    for pair in 0..pairs {
        // Neither is always the first.
        for runs in [pair % 2 == 0, pair % 2 != 0] {
            if runs {
                let body = json!({"name": "bench", "text": RULES}).to_string();
                request(&socket, "POST", &body)?;
            }
            bench.rate(rounds / 10)?;
            let rate = bench.rate(rounds)?;
            match runs {
                true => with.push(rate),
                false => without.push(rate),
            }
            if runs {
                request(&socket, "DELETE", "")?;
            }
        }
    }
    Ok(vec![
        Figure::median(WITHOUT, &without, 1e-6, "M/s"),
        Figure::median("rate with rules that do not match", &with, 1e-6, "M/s")
            .against(WITHOUT, median_ratio(&with, &without))
            .at_least(0.97),
    ])
}

fn request(socket: &Path, method: &str, body: &str) -> anyhow::Result<()> {
    let mut stream = UnixStream::connect(socket).context("connecting to the control server")?;
    stream.set_read_timeout(Some(LONG))?;
    let length = body.len();
    write!(
        stream,
        "{method} /v1/scenario HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(
        answer.starts_with("HTTP/1.1 200"),
        "the scenario was refused: {answer}"
    );
    Ok(())
}
