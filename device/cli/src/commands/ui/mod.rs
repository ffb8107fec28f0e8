//! `faultline ui`: a page that shows a running process.
//!
//! - `view`: the data of the page
//! - `tail`: the newest records of the trace
//! - `feed`: samples of a running process, made once for all browsers
//! - `maps`: page tables of regions, read once for all browsers
//! - `server`: the HTTP server on a loopback address
//! - `run`: the view of a recorded run
//! - `page`: the files of the page, and a page in one file

mod feed;
mod maps;
mod page;
pub(crate) mod run;
mod server;
mod tail;
mod view;

use std::fs::File;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::client::Target;
use super::{complain, print_text};
use feed::Feed;

/// Octets of a token.
const TOKEN_BYTES: usize = 16;

/// Show a running process in a browser.
///
/// The page is served on a loopback address until SIGINT or SIGTERM. Its address has a token that permits to pause the NICs: do not pass it on.
#[derive(Debug, clap::Args)]
pub(crate) struct Ui {
    #[command(flatten)]
    target: Target,
    /// Port of the page; default: a free one.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    port: u16,
    /// Only print the address of the page; do not open a browser.
    #[arg(long)]
    no_open: bool,
    /// Time between two samples, 0.1 to 60.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = super::top::seconds)]
    interval: Duration,
}

impl Ui {
    /// Executes the command.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let (remote, runtime) = self.target.client()?.into_parts();
        runtime.block_on(async {
            let mut interrupt = signal(SignalKind::interrupt()).context("can't handle SIGINT")?;
            let mut terminate = signal(SignalKind::terminate()).context("can't handle SIGTERM")?;
            // Fails at once if there is no process.
            let feed = tokio::select! {
                feed = Feed::start(remote.clone(), self.interval) => feed?,
                _ = interrupt.recv() => return Ok(()),
                _ = terminate.recv() => return Ok(()),
            };
            let address = (Ipv4Addr::LOCALHOST, self.port);
            let socket = TcpListener::bind(address).await;
            let socket = socket.with_context(|| format!("can't listen on port {}", self.port))?;
            let address = socket.local_addr()?;
            let token = token().context("can't make a token")?;
            let url = format!("http://{address}/#{token}");
            let router = server::router(remote, feed.samples(), self.interval, token, address);
            print_text(&format!("{url}\nCtrl-C ends the page.\n"))?;
            let opened = match self.no_open {
                true => None,
                false => open(&url),
            };
            tokio::select! {
                () = faultline_control::listen::serve_tcp(socket, router) => {}
                () = feed.run() => {}
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            drop(opened);
            Ok(())
        })
    }
}

/// A random token in hexadecimal digits.
fn token() -> std::io::Result<String> {
    let mut bytes = [0; TOKEN_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Opens a browser. Arguments of a program are visible to all users, so it gets the name of a file that leads to the page. The file exists as
/// long as the value that is returned.
fn open(url: &str) -> Option<TempDir> {
    let opened = || -> anyhow::Result<TempDir> {
        let folder = tempfile::Builder::new().prefix("faultline-ui-").tempdir()?;
        let path = folder.path().join("open.html");
        let mut file = File::create(&path)?;
        file.set_permissions(PermissionsExt::from_mode(0o600))?;
        write!(
            file,
            "<!DOCTYPE html>\n<meta charset=\"utf-8\">\n<meta http-equiv=\"refresh\" content=\"0; url={url}\">\n<title>Faultline</title>\n"
        )?;
        let mut browser = Command::new("xdg-open");
        browser.arg(&path).stdin(Stdio::null());
        browser.stdout(Stdio::null()).stderr(Stdio::null());
        // Ctrl-C of the terminal ends the page, not the browser.
        browser.process_group(0);
        let mut browser = browser.spawn().context("xdg-open")?;
        std::thread::spawn(move || browser.wait());
        Ok(folder)
    };
    opened()
        .inspect_err(|error| {
            complain(format!(
                "can't open a browser ({error:#}): open the address above"
            ))
        })
        .ok()
}
