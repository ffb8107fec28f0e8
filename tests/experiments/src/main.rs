//! Makes `docs/experiments.md` and its pictures.

#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Parser;
use faultline_experiments::document::{PICTURES, render};
use faultline_experiments::measured::{Figure, Measured};

#[derive(Debug, Parser)]
#[command(
    about = "Runs the simulations and makes docs/experiments.md. `cargo lab experiments` measures before."
)]
struct Args {
    /// The folder `docs`
    #[arg(long, value_name = "DIR")]
    docs: PathBuf,
    /// Figures of `cargo lab bench --json`; without these three options those of experiments.json stay
    #[arg(long, value_name = "FILE", requires_all = ["guest", "machine"])]
    socket: Option<PathBuf>,
    /// Figures measured in guests, in the same form
    #[arg(long, value_name = "FILE", requires_all = ["socket", "machine"])]
    guest: Option<PathBuf>,
    /// The machine on which they were measured
    #[arg(long, value_name = "TEXT", requires_all = ["socket", "guest"])]
    machine: Option<String>,
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

fn figures(path: &Path) -> Result<Vec<Figure>> {
    serde_json::from_str(&read(path)?).with_context(|| format!("in {}", path.display()))
}

fn main() -> Result<()> {
    let args = Args::parse();
    let file = args.docs.join("experiments.json");
    let measured = match (args.socket, args.guest, args.machine) {
        (Some(socket), Some(guest), Some(machine)) => {
            Measured::new(machine, &figures(&socket)?, &figures(&guest)?)?
        }
        _ => Measured::read(&read(&file)?).with_context(|| format!("in {}", file.display()))?,
    };
    // Nothing is written before all simulations have succeeded.
    let experiments = faultline_experiments::all(&measured)?;
    let pictures = args.docs.join(PICTURES);
    fs::create_dir_all(&pictures).with_context(|| format!("creating {}", pictures.display()))?;
    write(&file, &measured.write()?)?;
    write(
        &args.docs.join("experiments.md"),
        &render(&experiments, &measured.machine),
    )?;
    for picture in experiments
        .iter()
        .flat_map(|experiment| &experiment.pictures)
    {
        write(&pictures.join(picture.file), &picture.svg)?;
    }
    Ok(())
}
