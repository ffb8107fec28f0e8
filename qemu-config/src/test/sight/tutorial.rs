//! The commands of a tutorial, and the output that it shows for them.

/// Where a command runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// On the host: the prompt is `$`.
    Host,
    /// In a guest: the prompt is `[guestN ~]#`.
    Guest(usize),
}

/// A command and the output that follows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Where it runs.
    pub place: Place,
    /// What runs.
    pub command: String,
    /// Lines of its output, abridged: see [`missing`].
    pub shown: Vec<String>,
}

/// A line of output that stands for any number of lines, and a word that stands for any number of words.
const ELLIPSIS: &str = "…";

/// The steps of a document: the commands in its code blocks (lines that are indented by four spaces), in their order. A command whose line
/// ends with a backslash continues in the next line.
pub fn steps(document: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut is_output = false;
    for line in document.lines() {
        let Some(code) = line.strip_prefix("    ") else {
            // Output ends with its block; an empty line may be a part of it.
            is_output &= line.trim().is_empty();
            continue;
        };
        if let Some(step) = steps.last_mut()
            && let Some(start) = step.command.strip_suffix('\\')
        {
            step.command = format!("{start}{}", code.trim_start());
        } else if let Some((place, command)) = command(code) {
            steps.push(Step {
                place,
                command: command.to_owned(),
                shown: Vec::new(),
            });
            is_output = true;
        } else if let Some(step) = steps.last_mut()
            && is_output
        {
            step.shown.push(code.trim().to_owned());
        }
    }
    steps
}

/// The files that a document lets the reader write: name and content. A paragraph that ends with "`NAME`:" comes before the
/// code block.
pub fn files(document: &str) -> Vec<(String, String)> {
    let mut files: Vec<(String, String)> = Vec::new();
    let mut name = None;
    let mut is_file = false;
    for line in document.lines() {
        match (line.strip_prefix("    "), line.is_empty()) {
            (Some(code), _) => {
                if let Some(name) = name.take() {
                    files.push((name, String::new()));
                    is_file = true;
                }
                if is_file && let Some((_, content)) = files.last_mut() {
                    content.push_str(code);
                    content.push('\n');
                }
            }
            // An empty line may be a part of the file.
            (None, true) => {
                if is_file && let Some((_, content)) = files.last_mut() {
                    content.push('\n');
                }
            }
            (None, false) => {
                is_file = false;
                name = line
                    .strip_suffix("`:")
                    .and_then(|start| start.rsplit_once('`'))
                    .map(|(_, name)| name.to_owned());
            }
        }
    }
    for (_, content) in &mut files {
        content.truncate(content.trim_end().len());
        content.push('\n');
    }
    files
}

fn command(line: &str) -> Option<(Place, &str)> {
    if let Some(command) = line.strip_prefix("$ ") {
        return Some((Place::Host, command));
    }
    let (guest, command) = line.strip_prefix("[guest")?.split_once(" ~]# ")?;
    Some((Place::Guest(guest.parse().ok()?), command))
}

/// The first line of `shown` that the output does not have after those before it.
pub fn missing<'a>(shown: &'a [String], output: &str) -> Option<&'a str> {
    let mut lines = output.lines();
    shown
        .iter()
        .filter(|wanted| !matches!(wanted.as_str(), "" | ELLIPSIS))
        .find(|wanted| !lines.any(|line| is_like(wanted, line)))
        .map(String::as_str)
}

/// Returns true if the lines have the same words. Words with digits differ from run to run, and so do units and the width of
/// columns.
fn is_like(wanted: &str, line: &str) -> bool {
    let words = |line: &str| -> Vec<String> { line.split_whitespace().map(kind).collect() };
    are_like(&words(wanted), &words(line))
}

fn are_like(wanted: &[String], words: &[String]) -> bool {
    match wanted.split_first() {
        None => words.is_empty(),
        Some((first, rest)) if first == ELLIPSIS => (0..=words.len())
            .any(|skipped| are_like(rest, words.get(skipped..).unwrap_or_default())),
        Some((first, rest)) => {
            let next = words.split_first();
            next.is_some_and(|(word, words)| first == word && are_like(rest, words))
        }
    }
}

/// The compared form of a word: all groups of digits are equal.
fn kind(word: &str) -> String {
    if matches!(word, "ns" | "µs" | "ms" | "s") {
        return "a unit".to_owned();
    }
    let is_number = |c: char| c.is_ascii_digit();
    // Hexadecimal numbers may have letters.
    if let Some((name, _)) = word.split_once("0x") {
        return format!("{name}0x");
    }
    let is_byte = |part: &str| part.len() == 2 && part.chars().all(|c| c.is_ascii_hexdigit());
    if word.split(':').count() == 6 && word.split(':').all(is_byte) {
        return "a MAC address".to_owned();
    }
    // Rates may have a sign and a suffix.
    let number = word.strip_prefix('-').unwrap_or(word);
    let number = number.strip_suffix(['k', 'M', 'G', 'T']).unwrap_or(number);
    if number.parse::<f64>().is_ok() {
        return "#".to_owned();
    }
    let mut kind = String::new();
    for c in word.chars() {
        match is_number(c) || c == '.' && kind.ends_with('#') {
            true if kind.ends_with('#') => (),
            true => kind.push('#'),
            false => kind.push(c),
        }
    }
    kind
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(place: Place, command: &str, shown: &[&str]) -> Step {
        Step {
            place,
            command: command.to_owned(),
            shown: shown.iter().map(|&line| line.to_owned()).collect(),
        }
    }

    #[test]
    fn commands_are_distinguished_from_output_and_text() {
        let document = "Text.\n\n    not a command\n\n    $ one\n    said\n\n    more\n    [guest1 ~]# two &\n\nText.\n\n    a listing\n";
        assert_eq!(
            steps(document),
            [
                step(Place::Host, "one", &["said", "more"]),
                step(Place::Guest(1), "two &", &[])
            ]
        );
    }

    #[test]
    fn a_command_may_have_several_lines() {
        let document = "    $ one \\\n      two \\\n      three\n    said\n    $ four\n";
        assert_eq!(
            steps(document),
            [
                step(Place::Host, "one two three", &["said"]),
                step(Place::Host, "four", &[])
            ]
        );
    }

    #[test]
    fn files_follow_their_names() {
        let document = "Write `a.sh`:\n\n    one\n\n      two\n\nThen\nwrite `b c`\nand run:\n\n    $ x\n\n`d`:\n\n    y\n";
        let expected = [("a.sh", "one\n\n  two\n"), ("d", "y\n")];
        assert_eq!(
            files(document),
            expected.map(|(name, content)| (name.to_owned(), content.to_owned()))
        );
    }

    #[test]
    fn output_may_differ_in_numbers_and_units() {
        let shown =
            |lines: &[&str]| -> Vec<String> { lines.iter().map(|&l| l.to_owned()).collect() };
        let output = "NAME  VALUE\nx 1\n  total   1717   5.61 ms\nread 0x7f00 by a 12\n02:00:fe:01:02:03 va=0xab\n";
        for wanted in [
            &["total 22 61.3 µs"][..],
            &["NAME VALUE", "…", "total …"],
            &["… by a 9"],
            &["x 7", "read 0x12ab by a 3"],
            &["02:09:0c:be:ba:b4 va=0x1"],
            &["x -1.2k"],
        ] {
            assert_eq!(missing(&shown(wanted), output), None);
        }
        for (wanted, absent) in [
            (&["total 22"][..], "total 22"),
            (&["x y"], "x y"),
            // The order counts.
            (&["total …", "x 1"], "x 1"),
            (&["read 0x1 by b 3"], "read 0x1 by b 3"),
        ] {
            assert_eq!(missing(&shown(wanted), output), Some(absent));
        }
    }
}
