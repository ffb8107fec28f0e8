//! Published figures beside those of this NIC. `cargo lab experiments` makes `docs/experiments.md` with it.
//!
//! The document is a function of two things:
//!
//! - what the simulator does. It has virtual time, so that each run gives the same figures on each machine. [`simulated`] runs a
//!   scenario with the NICs of a profile;
//! - what was measured on a machine: at the emulator's socket by `cargo lab bench`, and in guests by `cargo lab experiments`.
//!   [`measured`] keeps these figures in `docs/experiments.json`.
//!
//! Each experiment is a module: it says what is asked, which figures were published and where, how it measures, and what can't be
//! compared. [`document`] makes text of experiments and [`chart`] makes pictures. The test `document` makes all again and compares
//! it with the files in `docs`, so that a change of the firmware that changes a figure changes the document. Numbers in the sources
//! are those of papers; figures of this NIC come from a run.
//!
//! The crate starts no guests and no emulator: the lab does.

#![forbid(unsafe_code)]

pub mod asplos17;
pub mod chart;
pub mod debate;
pub mod document;
pub mod husky;
pub mod ispass21;
pub mod measured;
pub mod np_rdma;
pub mod position_figures;
pub mod positions;
pub mod simulated;
pub mod stellar;
pub mod tcp_faults;
pub mod units;

use anyhow::Result;

use document::Experiment;
use measured::Measured;

/// All experiments in the order of the document.
///
/// # Errors
/// A simulation fails, or a measured figure is absent.
pub fn all(measured: &Measured) -> Result<Vec<Experiment>> {
    Ok(vec![
        debate::experiment(measured)?,
        positions::experiment(measured)?,
        asplos17::experiment(measured)?,
        ispass21::damming()?,
        ispass21::flood()?,
        np_rdma::experiment(measured)?,
        stellar::experiment(measured)?,
        husky::experiment()?,
        tcp_faults::experiment()?,
    ])
}
