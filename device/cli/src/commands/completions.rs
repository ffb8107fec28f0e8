//! Scripts that complete arguments in shells. That of bash also completes the names of NICs, which it asks a running process for.

use clap_complete::Shell;

use super::client::Target;
use super::print_text;
use faultline_control::view::NicSummary;

/// Print the names of the NICs of a running process, one in each line.
#[derive(Debug, clap::Args)]
pub(crate) struct Names {
    #[command(flatten)]
    target: Target,
}

impl Names {
    /// Executes the command.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let nics: Vec<NicSummary> = self.target.client()?.get("/v1/nics")?;
        let names: String = nics.into_iter().map(|nic| nic.name + "\n").collect();
        print_text(&names)
    }
}

/// The script for a shell.
pub(crate) fn script(shell: Shell, command: &mut clap::Command) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, command, "faultline", &mut script);
    if shell == Shell::Bash {
        script.extend(nics_in_bash(command).as_bytes());
    }
    script
}

/// Completes the word after `--nic`, and the first word of each command of `ctl` that names a NIC.
fn nics_in_bash(command: &clap::Command) -> String {
    let ctl = command.find_subcommand("ctl");
    let commands = ctl.into_iter().flat_map(clap::Command::get_subcommands);
    let of_nic = commands.filter(|command| {
        let first = command.get_positionals().next();
        first.is_some_and(|argument| argument.get_id() == "nic")
    });
    let words: Vec<String> = of_nic
        .map(|command| format!("ctl:{}", command.get_name()))
        .collect();
    format!(
        r#"
_faultline_nics() {{
    _faultline "$@"
    case "${{COMP_WORDS[1]}}:$3" in
    serve:--nic) ;;
    *:--nic|{})
        # Names are not expanded: a process of somebody else may have any.
        local names name
        COMPREPLY=()
        mapfile -t names < <(timeout 2 faultline names 2>/dev/null)
        for name in "${{names[@]}}"; do
            [[ $name == "$2"* ]] && COMPREPLY+=("$(printf %q "$name")")
        done
        ;;
    esac
}}
complete -F _faultline_nics -o nosort -o bashdefault -o default faultline
"#,
        words.join("|")
    )
}
