//! `faultline capture`: frames of a running process as pcapng.

use std::fs::{File, metadata};
use std::io::{ErrorKind, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::value_parser;
use hyper::Method;
use hyper::body::Bytes;
use pcap_file::pcapng::PcapNgReader;
use pcap_file::pcapng::blocks::Block;
use pcap_file::pcapng::blocks::interface_statistics::InterfaceStatisticsOption;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::client::{Answer, Remote, Target, segment};

/// Parts that wait to be written.
const PARTS: usize = 4;

/// Capture the frames of a running process as pcapng, for Wireshark and tshark.
///
/// It ends after --count frames, when the reader of the output ends, or at SIGINT or SIGTERM (Ctrl-C). Each frame is
/// captured where it is sent and where it arrives, with its direction. Frames that are dropped have a comment. If
/// frames come faster than the output can be written, some are lost and counted.
#[derive(Debug, clap::Args)]
pub(crate) struct Save {
    /// NIC or port to capture at; may be given several times. Default: all.
    #[arg(long = "nic", value_name = "NAME")]
    nics: Vec<String>,
    /// Capture only packets to or from queue pairs of this number.
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(..1 << 24))]
    qpn: Option<u32>,
    /// Capture only packets of this opcode, such as RC_SEND_ONLY, or group of opcodes, such as RNR_NAK, as in rules of scenarios.
    #[arg(long, value_name = "NAME")]
    opcode: Option<String>,
    /// Keep at most this number of octets of each frame.
    #[arg(long, value_name = "N")]
    snaplen: Option<u32>,
    /// End after this number of frames.
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// File or FIFO to write; `-` is standard output.
    #[arg(short, long, value_name = "FILE")]
    write: PathBuf,
    #[command(flatten)]
    target: Target,
}

impl Save {
    /// Executes the command.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        if self.write.as_os_str() == "-" && std::io::stdout().is_terminal() {
            bail!(
                "a capture is not for a terminal: give a file with --write, or pipe it to tshark"
            );
        }
        let (remote, runtime) = self.target.client()?.into_parts();
        // A FIFO can be opened when it has a reader: nothing is captured before.
        let special = metadata(&self.write).is_ok_and(|file| !file.is_file());
        let output = match special {
            true => Some(open(&self.write)?),
            false => None,
        };
        let saved = runtime.block_on(self.save(&remote, output));
        // A thread that waits for the reader of the output ends with the process.
        runtime.shutdown_background();
        let saved = saved?;
        if let Some(Saved { frames, lost }) = saved {
            let lost = match lost {
                0 => String::new(),
                lost => format!(", {lost} lost because they were written too slowly"),
            };
            let text = format!("{frames} frames captured{lost}\n");
            // Standard error may have no reader.
            let _ = std::io::stderr().write_all(text.as_bytes());
        }
        Ok(())
    }

    fn path(&self) -> String {
        let mut path = "/v1/capture".to_owned();
        let mut add = |key: &str, value: String| {
            path.push(if path.contains('?') { '&' } else { '?' });
            path.push_str(&format!("{key}={}", segment(&value)));
        };
        if !self.nics.is_empty() {
            add("nic", self.nics.join(","));
        }
        if let Some(opcode) = &self.opcode {
            add("opcode", opcode.clone());
        }
        let numbers = [
            ("qpn", self.qpn.map(u64::from)),
            ("snaplen", self.snaplen.map(u64::from)),
            ("count", self.count),
        ];
        for (key, value) in numbers {
            if let Some(value) = value {
                add(key, value.to_string());
            }
        }
        path
    }

    /// Writes the capture. `None` if it was interrupted while the reader of the output took nothing.
    async fn save(&self, remote: &Remote, output: Option<File>) -> anyhow::Result<Option<Saved>> {
        let mut signals = Signals::new()?;
        let mut answer = remote.ask(Method::GET, &self.path(), Vec::new()).await?;
        let id = answer.header("faultline-capture").unwrap_or_default();
        let end = format!("/v1/captures/{}", segment(id));
        let (parts, queue) = mpsc::channel(PARTS);
        let path = self.write.clone();
        let writer = tokio::task::spawn_blocking(move || write(&path, output, queue));
        let copy = copy(&mut answer, parts);
        let mut whole = std::pin::pin!(async {
            let copied = copy.await;
            let written = writer.await?;
            copied.and(written)
        });
        tokio::select! {
            saved = whole.as_mut() => return saved.map(Some),
            () = signals.next() => {}
        }
        // Frames that were captured before still come. The capture may have ended by itself.
        let _ = remote.ask(Method::DELETE, &end, Vec::new()).await;
        tokio::select! {
            saved = whole => saved.map(Some),
            () = signals.next() => Ok(None),
        }
    }
}

/// SIGINT and SIGTERM.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("can't handle SIGINT")?,
            terminate: signal(SignalKind::terminate()).context("can't handle SIGTERM")?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Passes parts on to the thread that writes them, until it ends.
async fn copy(answer: &mut Answer, parts: mpsc::Sender<Bytes>) -> anyhow::Result<()> {
    loop {
        let part = tokio::select! {
            part = answer.part() => part?,
            () = parts.closed() => None,
        };
        let Some(part) = part else {
            return Ok(());
        };
        if parts.send(part).await.is_err() {
            return Ok(());
        }
    }
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Saved {
    frames: u64,
    lost: u64,
}

fn open(path: &Path) -> anyhow::Result<File> {
    File::create(path).with_context(|| format!("can't create {}", path.display()))
}

/// Writes parts as they come, and counts their frames.
fn write(path: &Path, output: Option<File>, queue: mpsc::Receiver<Bytes>) -> anyhow::Result<Saved> {
    let output: Box<dyn Write> = match output {
        Some(file) => Box::new(file),
        None if path.as_os_str() == "-" => Box::new(std::io::stdout()),
        None => Box::new(open(path)?),
    };
    let mut tee = Tee {
        queue,
        part: Bytes::new(),
        output,
        error: None,
    };
    let counted = count(&mut tee);
    if tee.error.is_none() {
        // The rest that could not be counted.
        std::io::copy(&mut tee, &mut std::io::sink())?;
    }
    match tee.error {
        // The reader, such as `head`, has seen enough.
        Some(error) if error.kind() == ErrorKind::BrokenPipe => {}
        Some(error) => {
            return Err(error).with_context(|| format!("can't write {}", path.display()));
        }
        None => {}
    }
    Ok(counted)
}

/// Counts the frames of a capture until its end, or until it can't be read.
fn count(capture: impl Read) -> Saved {
    let mut saved = Saved::default();
    let Ok(mut reader) = PcapNgReader::new(capture) else {
        return saved;
    };
    while let Some(Ok((block, _))) = reader.next_block() {
        match block {
            Block::EnhancedPacket(_) => saved.frames = saved.frames.saturating_add(1),
            Block::InterfaceStatistics(statistics) => {
                for option in statistics.options {
                    if let InterfaceStatisticsOption::IsbIfDrop(lost) = option {
                        saved.lost = saved.lost.saturating_add(lost);
                    }
                }
            }
            _ => {}
        }
    }
    saved
}

/// Reads parts, and writes them.
struct Tee {
    queue: mpsc::Receiver<Bytes>,
    /// The part that is written and not read yet.
    part: Bytes,
    output: Box<dyn Write>,
    /// Why it could not be written.
    error: Option<std::io::Error>,
}

impl Read for Tee {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        if self.part.is_empty() {
            let Some(part) = self.queue.blocking_recv() else {
                return Ok(0);
            };
            let written = self.output.write_all(&part);
            if let Err(error) = written.and_then(|()| self.output.flush()) {
                self.error = Some(error);
                return Ok(0);
            }
            self.part = part;
        }
        let octets = self.part.len().min(to.len());
        let taken = self.part.split_to(octets);
        let to = to.get_mut(..octets).unwrap_or_default();
        to.copy_from_slice(&taken);
        Ok(octets)
    }
}
