//! Processor time of the programs that a step runs.
//!
//! Linux adds the time of a process to that of its parent when the parent waits for it, for all threads of the parent together. Steps run in
//! several threads at once, so each program's time is read between its end and the wait, and added to the step of the thread.

use std::cell::Cell;
use std::fs;
use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Output};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

/// Clock ticks of a second in `/proc`, which Linux shows programs on x86-64 and AArch64 whatever the kernel's own are.
const USER_HZ: u32 = 100;

thread_local! {
    /// The time of the programs of this thread's step, if there is one.
    static STEP: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// Begins a step of this thread.
pub fn begin() {
    STEP.set(Some(Duration::ZERO));
}

/// Ends the step of this thread. Returns the processor time of all programs that it has run by [`output`] and [`status`], and of their
/// descendants; `None` if it has not begun.
pub fn end() -> Option<Duration> {
    STEP.take()
}

/// Adds a time to the step of this thread: that of a part of the step in another thread, which has ended its own.
pub fn add(took: Duration) {
    STEP.set(STEP.get().map(|before| before + took));
}

/// The processor time of this process, and of all its descendants that have ended.
pub fn of_all() -> Option<Duration> {
    of_process("self")
}

/// Runs a program to its end. The result has what it writes to those of its two outputs that are pipes.
pub fn output(command: &mut Command) -> io::Result<Output> {
    let mut child = command.spawn()?;
    let errors = child.stderr.take().map(|mut pipe| {
        thread::spawn(move || {
            let mut text = Vec::new();
            pipe.read_to_end(&mut text).map(|_| text)
        })
    });
    let mut stdout = Vec::new();
    let read = match &mut child.stdout {
        Some(pipe) => pipe.read_to_end(&mut stdout),
        None => Ok(0),
    };
    let stderr = errors.map_or_else(
        || Ok(Vec::new()),
        |errors| {
            errors
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        },
    );
    let status = wait(&mut child)?;
    read?;
    Ok(Output {
        status,
        stdout,
        stderr: stderr?,
    })
}

/// Runs a program to its end.
pub fn status(command: &mut Command) -> io::Result<ExitStatus> {
    wait(&mut command.spawn()?)
}

/// Waits for the end of a process, and adds its time to the step.
fn wait(child: &mut Child) -> io::Result<ExitStatus> {
    // The process keeps its number until `child.wait()`.
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while waitid(WaitId::Pid(Pid::from_child(child)), ended)
        .is_err_and(|error| error == Errno::INTR)
    {}
    let took = of_process(&child.id().to_string()).unwrap_or_default();
    add(took);
    child.wait()
}

fn of_process(process: &str) -> Option<Duration> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let ticks = ticks(&text)?;
    Some(Duration::from_secs(ticks) / USER_HZ)
}

/// The sum of `utime`, `stime`, `cutime` and `cstime` in a process's `stat` (proc_pid_stat(5)), in clock ticks.
fn ticks(stat: &str) -> Option<u64> {
    // The name, which may have spaces and parentheses, is the second field.
    let (_, fields) = stat.rsplit_once(')')?;
    let times = fields.split_whitespace().skip(11).take(4);
    times.map(|field| field.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;

    #[test]
    fn ticks_of_a_process_whose_name_looks_like_fields() {
        let stat = "7 (a) 1 2 (b) Z 1 7 7 0 -1 4 100 0 0 0 12 3 400 50 20 0 1 0\n";
        assert_eq!(ticks(stat), Some(465));
        assert_eq!(ticks("7 (a) Z 1 x"), Some(0));
        assert_eq!(ticks(""), None);
    }

    /// A shell that calculates, and whose child does.
    fn busy() -> Command {
        let count = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let mut shell = Command::new("sh");
        shell.args([
            "-c",
            &format!("sh -c '{count}'; {count}; echo out; echo error >&2; exit 3"),
        ]);
        shell
    }

    #[test]
    fn a_step_has_the_time_of_its_programs_and_their_children() {
        begin();
        let mut command = busy();
        let output = output(command.stdout(Stdio::piped()).stderr(Stdio::piped())).unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert_eq!(
            (&output.stdout[..], &output.stderr[..]),
            (&b"out\n"[..], &b"error\n"[..])
        );
        let once = end().unwrap();
        assert!(once > Duration::ZERO);
        assert!(of_all() >= Some(once));
        assert_eq!(end(), None);
        // A program without a step belongs to none.
        status(busy().stdout(Stdio::null()).stderr(Stdio::null())).unwrap();
        assert_eq!(end(), None);
        begin();
        assert_eq!(end(), Some(Duration::ZERO));
    }
}
