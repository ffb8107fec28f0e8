//! Writes the scenario's file.

use std::fmt::Write;

use super::events::{Change, Rule};
use super::traffic::Traffic;
use crate::traffic::Operation;
use crate::value::{Range, Time};

/// Limit of a run in nanoseconds if no timeout is long.
const SHORTEST: u64 = 60_000_000_000;
/// Longest limit that a file may have.
const LONGEST: u64 = 3600 * 1_000_000_000;

/// The file's text. `name` is that of Lumina's file.
pub(super) fn scenario(name: &str, traffic: &Traffic, rules: &[Rule]) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut text, name, traffic, rules);
    text
}

/// A string of TOML.
fn quoted(text: &str) -> toml::Value {
    toml::Value::String(text.chars().filter(|c| !c.is_control()).collect())
}

fn op_name(op: Operation) -> &'static str {
    match op {
        Operation::Read => "read",
        Operation::Send => "send",
        _ => "write",
    }
}

/// Time for all that may time out.
fn limit(traffic: &Traffic, rules: usize) -> Time {
    let timeout = match traffic.timeout {
        0 => 0,
        n => 4096_u64.saturating_mul(1 << n),
    };
    let times = u64::try_from(rules)
        .unwrap_or(u64::MAX)
        .saturating_add(traffic.retry_count)
        .saturating_add(1);
    // A timer of a NIC may run for four times as long (IBTA 9.7.6.1.3).
    let all = timeout.saturating_mul(4).saturating_mul(times);
    Time(faultline_nic::Nanos(all.clamp(SHORTEST, LONGEST)))
}

fn write(text: &mut String, name: &str, traffic: &Traffic, rules: &[Rule]) -> std::fmt::Result {
    let verbs: Vec<&str> = traffic.flows.iter().map(|flow| op_name(flow.op)).collect();
    let title = format!(
        "Lumina: {}, connections: {}, rules: {}",
        verbs.join(" and "),
        traffic.connections(),
        rules.len()
    );
    writeln!(text, "title = {}", quoted(&title))?;
    let source = format!("{name}, a test file of Lumina (SIGCOMM 2023)");
    writeln!(text, "source = {}", quoted(&source))?;
    let limit = limit(traffic, rules.len()).to_string();
    writeln!(text, "limit = {}", quoted(&limit))?;
    for flow in &traffic.flows {
        let op = op_name(flow.op);
        writeln!(text, "\n[[traffic]]\nname = \"{op}\"\nop = \"{op}\"")?;
        let numbers = [
            ("connections", flow.connections),
            ("count", traffic.count),
            ("size", traffic.size),
            ("depth", traffic.depth),
            ("mtu", traffic.mtu),
            ("timeout", traffic.timeout),
            ("retry_count", traffic.retry_count),
        ];
        for (key, value) in numbers {
            writeln!(text, "{key} = {value}")?;
        }
        if flow.op == Operation::Send {
            // One more than the requester sends at a time: so no RNR NAK makes further transmissions.
            writeln!(text, "receives = {}", traffic.depth.saturating_add(1))?;
        }
    }
    for rule in rules {
        write_rule(text, rule)?;
    }
    Ok(())
}

fn write_rule(text: &mut String, rule: &Rule) -> std::fmt::Result {
    // The data of a READ is in its responses.
    let (nic, opcode) = match rule.op {
        Operation::Read => ("nic1", "READ_RESPONSE"),
        _ => ("nic0", "REQUEST"),
    };
    let Range { first, last } = rule.psns;
    let psn = match first == last {
        true => first.to_string(),
        false => format!("\"{first}..{last}\""),
    };
    let action = match rule.change {
        Change::Drop => "drop = {}",
        Change::Ecn => "ecn_mark = {}",
        Change::Corrupt => "corrupt = { part = \"payload\" }",
    };
    writeln!(text, "\n[[rule]]\nname = {}", quoted(&rule.name))?;
    writeln!(text, "nic = \"{nic}\"")?;
    writeln!(
        text,
        "on = {{ dir = \"tx\", opcode = \"{opcode}\", qp = {}, psn = {psn}, iter = {} }}",
        rule.connection, rule.iter
    )?;
    writeln!(text, "do = {{ {action} }}")
}
