//! Live rules: one rule for a running process.

use faultline_nic::Nanos;

use crate::action::Action;
use crate::file::Scenario;
use crate::plan::Plan;
use crate::problem::{Path, Problem, Problems};
use crate::read::read;
use crate::value::Time;

/// Longest text of a live rule in bytes.
pub const MAX_BYTES: usize = 4096;
/// Name of the text in messages.
const NAME: &str = "rule";
/// What begins a rule in a file.
const HEADER: &str = "[[rule]]";

/// A checked live rule.
#[derive(Clone, Debug)]
pub struct LivePlan {
    /// A plan with this rule only.
    pub plan: Plan,
    /// Its text (TOML).
    pub text: String,
    /// It ends after this time; `None`: when it is removed.
    pub lasts: Option<Nanos>,
}

/// Limits of a live rule.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LiveLimits {
    /// Most actions at each NIC, instead of what the rule says.
    pub count: Option<u64>,
    /// It ends after this time.
    pub lasts: Option<Time>,
}

/// Reads a rule and checks it for a process with these NICs, and ports that lead out of it. The text is the table of a rule, with or
/// without the line `[[rule]]`. The keys may be on one line, with spaces or a comma between them: `on = {…} do = {…}`.
pub fn plan(
    text: &str,
    limits: LiveLimits,
    nics: &[String],
    ports: &[String],
) -> Result<LivePlan, Problems> {
    if text.len() > MAX_BYTES {
        let message = format!(
            "the rule has {} bytes, at most {MAX_BYTES} are allowed",
            text.len()
        );
        return Err(Problems::new(NAME, "", vec![Problem::of_file(message)]));
    }
    let table = split_keys(text.trim());
    let document = match table.starts_with(HEADER) {
        true => table,
        false => format!("{HEADER}\n{table}"),
    };
    let wrong = |problems| Problems::new(NAME, &document, problems);
    let scenario = read(NAME, &document)?;
    let problems = problems_of(&scenario, limits);
    if !problems.is_empty() {
        return Err(wrong(problems));
    }
    let mut plan = scenario.plan(nics, ports).map_err(wrong)?;
    for rule in &mut plan.rules {
        rule.choice.times = limits.count.unwrap_or(rule.choice.times);
    }
    Ok(LivePlan {
        plan,
        text: text.trim().to_owned(),
        lasts: limits.lasts.map(|time| time.0),
    })
}

/// The text of a rule that is given as a JSON object.
pub fn text_of(table: &serde_json::Map<String, serde_json::Value>) -> Result<String, String> {
    // A line for each key: values are inline tables, which a rule of a file can begin with.
    let line = |(key, value)| {
        let value = toml::Value::try_from(value).map_err(|error| error.to_string())?;
        let key = toml::Value::from(String::as_str(key));
        Ok(format!("{key} = {value}\n"))
    };
    table.iter().map(line).collect()
}

/// What only a scenario can have.
fn problems_of(scenario: &Scenario, limits: LiveLimits) -> Vec<Problem> {
    let mut problems = Vec::new();
    let [rule] = &scenario.rules[..] else {
        return vec![Problem::of_file("one rule is expected")];
    };
    let alone = Scenario {
        rules: vec![rule.clone()],
        ..read(NAME, "").unwrap_or_else(|_| scenario.clone())
    };
    if *scenario != alone {
        problems.push(Problem::of_file(
            "only the keys of a rule are possible: `name`, `nic`, `port`, `on`, `do`",
        ));
    }
    let action = Path::root().key("rule").index(0).key("do");
    match &rule.action {
        Action::End(_) => problems.push(Problem::of_key(
            action.key("end"),
            "`end` ends a scenario: remove a live rule instead",
        )),
        Action::PortDown(down) if down.move_gid => problems.push(Problem::of_key(
            action.key("port_down").key("move_gid"),
            "`move_gid` needs the runner of a scenario, which a live rule does not have",
        )),
        _ => {}
    }
    if limits.count == Some(0) {
        problems.push(Problem::of_file("the count is 0: the rule would never act"));
    }
    if let Some(time) = limits.lasts
        && (time.nanos() == 0 || time > crate::plan::MAX_TIME)
    {
        let allowed = crate::plan::MAX_TIME;
        problems.push(Problem::of_file(format!(
            "the rule lasts {time}: more than 0 and at most {allowed} is allowed"
        )));
    }
    problems
}

/// Begins a new line before each key of the table that follows a value on the same line. The text keeps its length.
fn split_keys(text: &str) -> String {
    let mut split: Vec<char> = text.chars().collect();
    let (mut depth, mut quote, mut has_value) = (0_u32, None, false);
    let mut is_escaped = false;
    for at in 0..split.len() {
        let Some(&c) = split.get(at) else {
            continue;
        };
        if std::mem::take(&mut is_escaped) {
            continue;
        }
        match (quote, c) {
            (Some('"'), '\\') => is_escaped = true,
            (Some(open), _) => quote = Some(open).filter(|open| *open != c),
            (None, '"' | '\'') => quote = Some(c),
            (None, '{' | '[') => depth = depth.saturating_add(1),
            (None, '}' | ']') => depth = depth.saturating_sub(1),
            (None, '=') if depth == 0 => has_value = true,
            (None, '#') => break,
            (None, ' ' | ',') if depth == 0 && has_value => {
                let rest = split.get(at.saturating_add(1)..).unwrap_or_default();
                if begins_key(rest) {
                    has_value = false;
                    if let Some(place) = split.get_mut(at) {
                        *place = '\n';
                    }
                }
            }
            _ => {}
        }
    }
    split.into_iter().collect()
}

/// True if a key and `=` follow.
fn begins_key(rest: &[char]) -> bool {
    let is_space = |c: &char| *c == ' ';
    let is_key = |c: &char| c.is_ascii_alphanumeric() || matches!(*c, '_' | '.');
    let key = rest.iter().skip_while(|c| is_space(c));
    let mut after = key.clone().skip_while(|c| is_key(c));
    key.clone().next().is_some_and(is_key) && after.find(|c| !is_space(c)) == Some(&'=')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Effect, PacketChange};

    fn planned(text: &str, limits: LiveLimits) -> Result<LivePlan, String> {
        let nics = ["a".to_owned()];
        plan(text, limits, &nics, &[]).map_err(|problems| problems.to_string())
    }

    #[test]
    fn the_keys_of_a_rule_may_be_on_one_line() {
        for text in [
            "on = { dir = 'rx' } do = { drop = {} }",
            "nic = 'a', on = { dir = 'rx', opcode = 'ACK' }, do = { drop = { times = 2 } }",
            "name = \"a = b, on = {\" on = {dir = 'rx'} do = {drop = {}}",
            "on = { dir = 'rx' }\ndo = { drop = {} }",
            "[[rule]]\non.dir = 'rx'\ndo.drop = {}",
            "on.dir = 'rx' on.opcode = 'ACK' do.drop = {}",
            r#"name = "a \" b = 'c" on.dir = 'rx' do.drop = {}"#,
            r"name = 'a\' on.dir = 'rx' do.drop = {}",
        ] {
            let live =
                planned(text, LiveLimits::default()).unwrap_or_else(|wrong| panic!("{wrong}"));
            let [rule] = &live.plan.rules[..] else {
                panic!("{text}");
            };
            assert_eq!(rule.effect, Effect::Packet(PacketChange::Drop), "{text}");
        }
    }

    #[test]
    fn a_count_replaces_that_of_the_rule() {
        let limits = LiveLimits {
            count: Some(3),
            lasts: Some(Time::from_millis(5)),
        };
        let live = planned("on = { dir = 'rx' } do = { drop = {} }", limits).unwrap();
        assert_eq!(live.plan.rules[0].choice.times, 3);
        assert_eq!(live.lasts, Some(Nanos::from_millis(5)));
    }

    #[test]
    fn a_rule_may_be_json() {
        let table = serde_json::json!({"on": {"dir": "rx"}, "do": {"drop": {"times": 2}}});
        let text = text_of(table.as_object().unwrap()).unwrap();
        let live = planned(&text, LiveLimits::default()).unwrap_or_else(|wrong| panic!("{wrong}"));
        assert_eq!(live.plan.rules[0].choice.times, 2);
        assert!(text_of(serde_json::json!({"on": null}).as_object().unwrap()).is_err());
    }

    #[test]
    fn wrong_rules_are_shown_with_their_place() {
        for (text, expected) in [
            (
                "on = { opcode = 'ACKK' } do = { drop = {} }",
                "did you mean `ACK`?",
            ),
            (
                "on = { dir = 'rx' } do = { end = {} }",
                "remove a live rule instead",
            ),
            (
                "on = { dir = 'rx' } do = { port_down = { move_gid = true } }",
                "needs the runner of a scenario",
            ),
            ("on = { dir = 'rx' }", "missing key `do`"),
            (
                "on = { dir = 'rx' } do = { drop = {} } seed = 3",
                "unknown key `seed`",
            ),
            (
                "nic = 'b' on = { dir = 'rx' } do = { drop = {} }",
                "unknown NIC \"b\"",
            ),
            (
                "on = { dir = 'rx' } do = { drop = {} }\n[[expect]]\nviolation = { count = 0 }",
                "only the keys of a rule",
            ),
            (
                "on = { dir = 'rx' } do = { drop = {} }\n[[rule]]\non = { dir = 'rx' }\ndo = { drop = {} }",
                "one rule is expected",
            ),
            ("", "missing key"),
            ("on = {", "rule"),
        ] {
            let wrong = planned(text, LiveLimits::default()).unwrap_err();
            assert!(wrong.contains(expected), "{text}: {wrong}");
        }
        let long = " ".repeat(MAX_BYTES + 1);
        assert!(
            planned(&long, LiveLimits::default())
                .unwrap_err()
                .contains("4097 bytes")
        );
        let never = LiveLimits {
            count: Some(0),
            lasts: None,
        };
        assert!(planned("on = { dir = 'rx' } do = { drop = {} }", never).is_err());
    }
}
