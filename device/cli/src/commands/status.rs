//! Exit statuses of all commands: one table for manual pages and documents.

use std::fmt::{self, Display, Formatter};
use std::process::ExitCode;

use faultline_config::ConfigError;

/// The command has failed, or a check has failed.
pub(crate) const FAILED: u8 = 1;
/// The arguments are wrong, or a file can't be read or simulated.
pub(crate) const UNUSABLE: u8 = 2;
/// Nothing was judged.
pub(crate) const NOTHING_JUDGED: u8 = 3;

/// Number of SIGINT (signal(7)).
pub(crate) const SIGINT: u8 = 2;
/// Number of SIGTERM (signal(7)).
pub(crate) const SIGTERM: u8 = 15;

/// The exit status of a command that a signal has interrupted, as shells report it.
pub(crate) const fn after_signal(number: u8) -> u8 {
    number.saturating_add(128)
}

/// Context of an error: an input cannot be used, so the exit status is [`UNUSABLE`].
#[derive(Debug)]
pub(crate) struct UnusableInput(String);

impl UnusableInput {
    /// A file that can't be read, or whose content the command cannot use.
    pub(crate) fn unread(file: impl Display) -> Self {
        Self(format!("can't read {file}"))
    }
}

impl Display for UnusableInput {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The exit status of a command that ends with an error.
pub(crate) fn of_error(error: &anyhow::Error) -> ExitCode {
    let is_unusable = error.is::<UnusableInput>() || error.is::<ConfigError>();
    ExitCode::from(if is_unusable { UNUSABLE } else { FAILED })
}

/// All exit statuses.
pub(crate) const TABLE: [(u8, &str); 6] = [
    (0, "The command is done. Everything that was judged holds."),
    (
        FAILED,
        "The command has failed, or something that was judged does not hold: an expectation, a rule of the specification, a promise.",
    ),
    (
        UNUSABLE,
        "The arguments are wrong, or a file can't be read or simulated.",
    ),
    (
        NOTHING_JUDGED,
        "Nothing was judged: a capture has no RoCE packet, or all scenarios are for guests.",
    ),
    (
        after_signal(SIGINT),
        "SIGINT has interrupted `scenario run` or `vopr --count` before the end.",
    ),
    (
        after_signal(SIGTERM),
        "SIGTERM has interrupted `scenario run` or `vopr --count` before the end.",
    ),
];

/// The table as a section of a manual page.
pub(crate) fn section() -> String {
    let lines = TABLE.map(|(status, meaning)| format!("{status}  {meaning}"));
    format!("Exit status:\n\n{}", lines.join("\n\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of the documents is this one. `FAULTLINE_BLESS=1` writes it.
    #[test]
    fn documents_have_the_table() {
        let (begin, end) = (
            "<!-- exit statuses: begin -->\n",
            "<!-- exit statuses: end -->",
        );
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/control.md");
        let text = std::fs::read_to_string(&path).unwrap();
        let (before, rest) = text.split_once(begin).unwrap();
        let (_, after) = rest.split_once(end).unwrap();
        let rows = TABLE.map(|(status, meaning)| format!("| {status} | {meaning} |\n"));
        let table = format!("\n| Status | Meaning |\n|---|---|\n{}\n", rows.concat());
        let wanted = format!("{before}{begin}{table}{end}{after}");
        if std::env::var_os("FAULTLINE_BLESS").is_some() {
            std::fs::write(&path, &wanted).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap();
        assert!(
            found == wanted,
            "docs/control.md: FAULTLINE_BLESS=1 cargo test -p faultline status:: writes the table"
        );
    }
}
