//! `--only`: which groups of figures are measured, and which figures are reported.

use anyhow::{bail, ensure};

use super::{Figure, MEMCPY, PING_PONG};

/// Figures that are measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Bandwidth,
    Latency,
    Rate,
    Paging,
    Keys,
    Idle,
    Sight,
    Engines,
    Wire,
    Scenario,
}

/// Each group with its word, which chooses it as a whole, and the names of its figures.
const GROUPS: &[(Group, &str, &[&str])] = &[
    (
        Group::Bandwidth,
        "bandwidth",
        &[
            MEMCPY,
            "bandwidth of 1 MiB WRITEs",
            "bandwidth of 1 MiB READs",
            "bandwidth of 64 KiB WRITEs",
        ],
    ),
    (
        Group::Latency,
        "latency",
        &[PING_PONG, "latency: 8-byte WRITE and back"],
    ),
    (
        Group::Rate,
        "rate",
        &["rate of 8-byte WRITEs, one engine thread"],
    ),
    (
        Group::Paging,
        "paging",
        &[
            "paging: bandwidth, warm region",
            "paging: rate of WRITEs, warm region",
            "paging: WRITE posted to fault record",
            "paging: resume to data",
            "paging: the NIC's share of a fault",
            "paging: faults, 64 QPs at once",
            "paging: device memory, 1 GiB of 1 TiB touched",
        ],
    ),
    (
        Group::Keys,
        "keys",
        &[
            "keys: invalidation, idle device, median",
            "keys: invalidation, idle device, maximum of 100",
            "keys: invalidation, idle device, maximum",
            "keys: invalidation, saturated device, median",
            "keys: invalidation, saturated device, maximum of 100",
            "keys: invalidation, saturated device, maximum",
            "keys: invalidations without another thread between, idle device",
            "keys: invalidations without another thread between, saturated device",
            "keys: waiting as long without a device, maximum",
        ],
    ),
    (
        Group::Idle,
        "idle",
        &[
            "resident memory for each idle QP",
            "of it the device's own",
            "time to create and connect a QP",
            "latency with 10000 idle connections",
        ],
    ),
    (
        Group::Sight,
        "sight",
        &[
            "rate with nothing recorded",
            "the same on another device",
            "rate with counts for the metrics",
            "rate with the trace that is always kept",
            "rate while no metrics are read",
            "rate while they are read each second",
            "a request for the metrics",
        ],
    ),
    (
        Group::Engines,
        "engines",
        &[
            "rate of two pairs on one engine",
            "rate of two pairs on two engines",
            "rate of two pairs in two processes",
            "bandwidth of two pairs on one engine",
            "bandwidth of two pairs on two engines",
            "bandwidth of two pairs in two processes",
            "rate of a pair on one engine",
            "rate of a pair across two engines",
            "bandwidth of a pair on one engine",
            "bandwidth of a pair across two engines",
        ],
    ),
    (
        Group::Wire,
        "wire",
        &[
            "copy and CRC-32, 64 B",
            "packets built and parsed, 64 B",
            "packets built, 64 B",
            "packets parsed, 64 B",
            "copy and CRC-32, 4 KiB",
            "packets built and parsed, 4 KiB",
            "packets built, 4 KiB",
            "packets parsed, 4 KiB",
        ],
    ),
    (
        Group::Scenario,
        "scenario",
        &[
            "rate without a scenario",
            "rate with rules that do not match",
        ],
    ),
];

/// Groups that are measured without `--only`. The others need devices of their own.
const USUAL: [Group; 6] = [
    Group::Bandwidth,
    Group::Latency,
    Group::Rate,
    Group::Paging,
    Group::Keys,
    Group::Idle,
];

/// What is measured and reported.
#[derive(Debug)]
pub(crate) struct Choice<'a> {
    groups: Vec<Group>,
    /// Part of the names of figures that are reported; `None`: all of the groups.
    text: Option<&'a str>,
}

impl<'a> Choice<'a> {
    /// The groups with this word, or those that have figures with this text in their names.
    pub(crate) fn new(only: Option<&'a str>) -> anyhow::Result<Self> {
        let Some(text) = only else {
            return Ok(Self {
                groups: USUAL.to_vec(),
                text: None,
            });
        };
        if let Some((group, _, _)) = GROUPS.iter().find(|(_, word, _)| *word == text) {
            return Ok(Self {
                groups: vec![*group],
                text: None,
            });
        }
        let has_figure = |names: &[&str]| names.iter().any(|name| name.contains(text));
        let groups = GROUPS.iter().filter(|(_, _, names)| has_figure(names));
        let groups: Vec<Group> = groups.map(|(group, _, _)| *group).collect();
        if groups.is_empty() {
            bail!(
                "no figure has {text:?} in its name. The groups and their figures are:\n{}",
                list()
            );
        }
        Ok(Self {
            groups,
            text: Some(text),
        })
    }

    /// True if the group is measured.
    pub(crate) fn has(&self, group: Group) -> bool {
        self.groups.contains(&group)
    }

    /// True if a group is measured that needs the usual device.
    pub(crate) fn has_usual(&self) -> bool {
        USUAL.iter().any(|group| self.has(*group))
    }

    /// The figures to report, and those that they are compared with.
    ///
    /// # Errors
    ///
    /// Nothing is left, or a figure is not in the table: `--only` could not find it.
    pub(crate) fn filter(&self, figures: Vec<Figure>) -> anyhow::Result<Vec<Figure>> {
        let is_known = |figure: &&Figure| {
            let mut names = GROUPS.iter().flat_map(|(_, _, names)| names.iter());
            names.any(|name| *name == figure.name)
        };
        if let Some(unknown) = figures.iter().find(|figure| !is_known(figure)) {
            bail!(
                "the figure {:?} is not in the table of groups",
                unknown.name
            );
        }
        let is_chosen = |figure: &Figure| {
            let text = self.text.as_ref();
            text.is_none_or(|text| figure.name.contains(text))
        };
        let floors: Vec<String> = figures
            .iter()
            .filter(|figure| is_chosen(figure))
            .filter_map(|figure| figure.against.clone())
            .collect();
        let chosen: Vec<Figure> = figures
            .into_iter()
            .filter(|figure| is_chosen(figure) || floors.contains(&figure.name))
            .collect();
        ensure!(!chosen.is_empty(), "nothing was measured");
        Ok(chosen)
    }
}

fn list() -> String {
    let group = |(_, word, names): &(Group, &str, &[&str])| {
        format!("  {word}\n    {}", names.join("\n    "))
    };
    GROUPS.iter().map(group).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(only: Option<&str>) -> Vec<Group> {
        Choice::new(only).unwrap().groups
    }

    fn names(only: Option<&str>, figures: &[Figure]) -> Vec<String> {
        let chosen = Choice::new(only).unwrap().filter(figures.to_vec()).unwrap();
        chosen.into_iter().map(|figure| figure.name).collect()
    }

    #[test]
    fn a_text_chooses_figures_and_a_word_a_group() {
        assert_eq!(groups(None), USUAL);
        assert_eq!(groups(Some("keys")), [Group::Keys]);
        assert_eq!(groups(Some("rate of 8-byte")), [Group::Rate]);
        assert_eq!(
            groups(Some("warm region")),
            [Group::Paging],
            "the names of figures are searched"
        );
    }

    #[test]
    fn a_filter_without_match_is_an_error_with_all_names() {
        let error = Choice::new(Some("bandwith")).unwrap_err().to_string();
        assert!(error.contains("\"bandwith\""), "{error}");
        for name in [MEMCPY, "packets parsed, 64 B", "keys"] {
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn figures_are_reported_with_their_comparisons() {
        let figures = [
            Figure::plain(MEMCPY, 1.0, "GB/s"),
            Figure::plain("bandwidth of 1 MiB WRITEs", 1.0, "GB/s").against(MEMCPY, 1.0),
            Figure::plain("bandwidth of 1 MiB READs", 1.0, "GB/s").against(MEMCPY, 1.0),
        ];
        assert_eq!(
            names(Some("READs"), &figures),
            [MEMCPY, "bandwidth of 1 MiB READs"]
        );
        assert_eq!(names(Some("bandwidth"), &figures).len(), 3);
        let choice = Choice::new(Some("64 KiB")).unwrap();
        assert!(
            choice.filter(figures.to_vec()).is_err(),
            "nothing was measured"
        );
        let unknown = [Figure::plain("unheard of", 1.0, "us")];
        assert!(Choice::new(None).unwrap().filter(unknown.to_vec()).is_err());
    }
}
