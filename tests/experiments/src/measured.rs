//! Figures that were measured on a machine, in `docs/experiments.json`.

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::position_figures;

/// Where a figure is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At the emulator's socket, by a driver in another process.
    Socket,
    /// In Linux guests.
    Guest,
}

/// MiB of the regions whose registration is timed.
pub const REGION_SIZES: [u32; 6] = [1, 4, 16, 64, 128, 256];

/// Figures at the emulator's socket, as `cargo lab bench` names them, and their units.
const SOCKET: [(&str, &str); 8] = [
    ("paging: WRITE posted to fault record", "us"),
    ("paging: resume to data", "us"),
    ("paging: the NIC's share of a fault", "us"),
    ("paging: device memory, 1 GiB of 1 TiB touched", "%"),
    ("paging: bandwidth, warm region", "GB/s"),
    ("paging: rate of WRITEs, warm region", "M/s"),
    ("keys: invalidation, idle device, median", "us"),
    ("keys: invalidation, saturated device, median", "us"),
];

/// Figures in guests without a size, and their units.
const GUEST: [(&str, &str); 15] = [
    ("first touch of an absent page by the processor", "us"),
    ("WRITE, page present", "us"),
    ("WRITE, page absent", "us"),
    ("READ, page swapped out", "us"),
    ("pages pinned", "pages"),
    ("wrong bytes", "bytes"),
    ("fault stage interrupt", "us"),
    ("fault stage wait", "us"),
    ("fault stage map", "us"),
    ("fault stage post", "us"),
    ("fault stage data", "us"),
    ("fault stage total", "us"),
    ("VmPin of a pinned region of 256 MiB", "KiB"),
    ("VmPin of an on-demand region of 256 MiB", "KiB"),
    ("on-demand region beyond RLIMIT_MEMLOCK", "registered"),
];

/// A measured figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// What was measured.
    pub name: String,
    /// The value.
    pub value: f64,
    /// Its unit.
    pub unit: String,
    /// The value divided by that of another figure, which the program that measures names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
}

/// All measured figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// The machine, in a few words.
    pub machine: String,
    /// At the emulator's socket. Empty if nothing was measured there.
    pub socket: Vec<Figure>,
    /// In guests. Empty if nothing was measured there.
    pub guest: Vec<Figure>,
}

/// Names and units of the figures of a place.
fn wanted(place: Place) -> Vec<(String, &'static str)> {
    let owned = |(name, unit): &(&str, &'static str)| ((*name).to_owned(), *unit);
    match place {
        Place::Socket => SOCKET.iter().map(owned).collect(),
        Place::Guest => {
            let of_size = |mib| [false, true].map(|on_demand| (registration(mib, on_demand), "us"));
            let sizes = REGION_SIZES.into_iter().flat_map(of_size);
            let all = GUEST.iter().map(owned).chain(sizes);
            all.chain(position_figures::figures()).collect()
        }
    }
}

/// Name of the figure for the registration of a region.
pub fn registration(mib: u32, on_demand: bool) -> String {
    let kind = if on_demand { "on demand" } else { "pinned" };
    format!("registration of {mib} MiB, {kind}")
}

/// The figures that the document needs, of those that a program has measured: all, or none.
fn choose(place: Place, found: &[Figure]) -> Result<Vec<Figure>> {
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let chosen = wanted(place).into_iter().map(|(name, unit)| {
        let figure = found.iter().find(|figure| figure.name == name);
        let figure = figure.with_context(|| format!("no figure {name:?} was measured"))?;
        ensure!(
            figure.unit == unit && figure.value.is_finite() && figure.value >= 0.0,
            "figure {name:?} is {} {}, expected a positive number of {unit}",
            figure.value,
            figure.unit
        );
        Ok(figure.clone())
    });
    chosen.collect()
}

impl Measured {
    /// Takes the figures that the document needs.
    ///
    /// # Errors
    /// A figure is absent, or has another unit.
    pub fn new(machine: String, socket: &[Figure], guest: &[Figure]) -> Result<Self> {
        Ok(Self {
            machine,
            socket: choose(Place::Socket, socket)?,
            guest: choose(Place::Guest, guest)?,
        })
    }

    /// Reads the file.
    ///
    /// # Errors
    /// The text is not of this form, or has other figures than the document needs.
    pub fn read(text: &str) -> Result<Self> {
        let read: Self = serde_json::from_str(text)?;
        let again = Self::new(read.machine.clone(), &read.socket, &read.guest)?;
        ensure!(
            again == read,
            "the figures are not those that the document needs, in its order"
        );
        Ok(read)
    }

    /// The text of the file.
    ///
    /// # Errors
    /// A value is no number.
    pub fn write(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// A figure. Its value is NaN if nothing was measured at its place.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn figure(&self, place: Place, name: &str) -> Result<Figure> {
        let figures = match place {
            Place::Socket => &self.socket,
            Place::Guest => &self.guest,
        };
        let (_, unit) = wanted(place)
            .into_iter()
            .find(|(known, _)| known == name)
            .with_context(|| format!("there is no figure {name:?}"))?;
        let figure = figures.iter().find(|figure| figure.name == name).cloned();
        Ok(figure.unwrap_or_else(|| Figure {
            name: name.to_owned(),
            value: f64::NAN,
            unit: unit.to_owned(),
            ratio: None,
        }))
    }

    /// A duration in nanoseconds.
    ///
    /// # Errors
    /// There is no figure of this name, or it is no duration.
    pub fn ns(&self, place: Place, name: &str) -> Result<f64> {
        let figure = self.figure(place, name)?;
        ensure!(figure.unit == "us", "{name:?} is no duration");
        Ok(figure.value * 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(place: Place) -> Vec<Figure> {
        let figure = |(name, unit): (String, &str)| Figure {
            name,
            value: 1.5,
            unit: unit.to_owned(),
            ratio: None,
        };
        wanted(place).into_iter().map(figure).collect()
    }

    #[test]
    fn a_figure_that_is_absent_or_has_another_unit_is_an_error() {
        let (mut socket, guest) = (figures(Place::Socket), figures(Place::Guest));
        let made = Measured::new("here".to_owned(), &socket, &guest).unwrap();
        assert_eq!(Measured::read(&made.write().unwrap()).unwrap(), made);
        socket[1].unit = "s".to_owned();
        let error = Measured::new(String::new(), &socket, &guest).unwrap_err();
        assert!(error.to_string().contains("resume to data"), "{error}");
        let error = Measured::new(String::new(), &socket[2..], &guest).unwrap_err();
        assert!(error.to_string().contains("posted to fault"), "{error}");
    }
}
