//! The commands beside `serve`: clients of the control server, and scenarios in the simulator.

pub(crate) mod capture;
pub(crate) mod check;
mod check_control;
pub(crate) mod client;
pub(crate) mod completions;
pub(crate) mod ctl;
pub(crate) mod demo;
pub(crate) mod metrics;
pub(crate) mod profile_names;
pub(crate) mod rules_control;
pub(crate) mod scenario;
pub(crate) mod scenario_control;
pub(crate) mod status;
pub(crate) mod stop;
pub(crate) mod supervise;
pub(crate) mod table;
pub(crate) mod top;
pub(crate) mod trace;
pub(crate) mod ui;
pub(crate) mod vopr;

use std::io::Write;

/// Replaces control characters, except line feed and tab, in text that comes in parts. A server or a trace repeats
/// names that guests have chosen, and may itself be hostile, so its text must not control the terminal.
#[derive(Debug, Default)]
pub(crate) struct Printable {
    /// The byte before the next part.
    last: u8,
}

impl Printable {
    /// The next part of the text with question marks for control characters (C0, DEL, and C1 in UTF-8).
    pub(crate) fn part(&mut self, bytes: &[u8]) -> Vec<u8> {
        let replaced = bytes.iter().map(|byte| {
            let before = std::mem::replace(&mut self.last, *byte);
            match *byte {
                b'\n' | b'\t' => *byte,
                0..b' ' | 0x7f => b'?',
                0x80..0xa0 if before == 0xc2 => b'?',
                _ => *byte,
            }
        });
        replaced.collect()
    }
}

/// Writes text of a server or a file to standard output, without its control characters.
pub(crate) fn print_text(text: &str) -> anyhow::Result<()> {
    print(&Printable::default().part(text.as_bytes()))
}

/// Writes a line to standard error. If its reader has ended, such as `head`, that cannot be reported.
pub(crate) fn complain(line: impl AsRef<[u8]>) {
    let _ = std::io::stderr().write_all(&[line.as_ref(), b"\n"].concat());
}

/// Prints a value as JSON or as text.
pub(crate) fn show<T: serde::Serialize + ?Sized>(
    json: bool,
    value: &T,
    text: fn(&T) -> String,
) -> anyhow::Result<()> {
    let text = match json {
        true => serde_json::to_string_pretty(value)? + "\n",
        false => text(value),
    };
    print_text(&text)
}

/// Writes to standard output. The end of the reader, such as `head`, is not an error.
pub(crate) fn print(bytes: &[u8]) -> anyhow::Result<()> {
    print_to_reader(bytes).map(|_| ())
}

/// Writes to standard output. Returns false if the reader has ended.
pub(crate) fn print_to_reader(bytes: &[u8]) -> anyhow::Result<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_in_parts_cannot_change_a_terminal() {
        let text = "a\x1b[2J\r\tä\u{9b}31m\u{7f}\u{2248}\n".as_bytes();
        let whole = Printable::default().part(text);
        assert_eq!(whole, b"a?[2J?\t\xc3\xa4\xc2?31m?\xe2\x89\x88\n");
        let mut parts = Printable::default();
        let bytes: Vec<u8> = text.chunks(1).flat_map(|part| parts.part(part)).collect();
        assert_eq!(bytes, whole);
    }
}
