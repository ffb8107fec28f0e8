//! `faultline demo`: short stories of an RDMA connection, told from the events of two simulated hosts.

mod html;
mod rows;
mod story;
mod svg;
mod terminal;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::builder::PossibleValuesParser;
use faultline_daemon::log::output::is_coloured;
use faultline_files::check_writable;

use super::print_text;
use story::{STORIES, Story, Told, tell};

/// Show how an RDMA connection reacts to an absent page, a lost ACK, or a port that goes down.
///
/// Two simulated hosts with a NIC each execute WRITEs in virtual time; no guest and no privilege is needed. Each line
/// of a story is an event of this run. The exit status is 1 if an expectation of a story's scenario does not hold.
#[derive(Debug, clap::Args)]
pub(crate) struct Demo {
    /// The story; by default all.
    #[arg(value_parser = PossibleValuesParser::new(STORIES.map(|story| story.name)))]
    story: Option<String>,
    /// List the stories.
    #[arg(long, conflicts_with_all = ["story", "html", "scenario"])]
    list: bool,
    /// Write the stories with pictures into this file, a page that needs no other file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print the scenario of a story, to change it and run it with `faultline scenario run`.
    #[arg(long, requires = "story", conflicts_with = "html")]
    scenario: bool,
}

impl Demo {
    /// Executes the command.
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        if self.list {
            let lines = STORIES
                .iter()
                .map(Story::line)
                .collect::<Result<String, _>>();
            return print_text(&lines?).map(|()| ExitCode::SUCCESS);
        }
        let is_chosen =
            |story: &&Story| self.story.as_deref().is_none_or(|name| name == story.name);
        let chosen: Vec<&Story> = STORIES.iter().filter(is_chosen).collect();
        if self.scenario {
            let texts: String = chosen.iter().map(|story| story.text).collect();
            return print_text(&texts).map(|()| ExitCode::SUCCESS);
        }
        if let Some(path) = &self.html {
            check_writable(path)?;
        }
        let told = chosen.iter().map(|story| tell(story.name, story.text));
        let told: Vec<Told> = told.collect::<Result<_, _>>()?;
        match &self.html {
            Some(path) => write_page(path, &told)?,
            None => terminal::print(&told, is_coloured(&std::io::stdout()))?,
        }
        Ok(match told.iter().all(|told| told.passed) {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }
}

fn write_page(path: &Path, told: &[Told]) -> anyhow::Result<()> {
    let shown = path.display();
    std::fs::write(path, html::page(told)).with_context(|| format!("can't write {shown}"))?;
    print_text(&format!("the stories are in {shown}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(name: &str) -> Told {
        let story = STORIES.iter().find(|story| story.name == name).unwrap();
        tell(story.name, story.text).unwrap()
    }

    /// The texts of the steps, those of packets with the NIC that sends them.
    fn steps(told: &Told) -> Vec<String> {
        let text = |row: &rows::Row| match &row.shape {
            rows::Shape::Arrow { from, lost: None } => format!("{from}> {}", row.text),
            rows::Shape::Arrow {
                from,
                lost: Some(why),
            } => format!("{from}x {} ({why})", row.text),
            rows::Shape::Note { .. } | rows::Shape::Gap => row.text.clone(),
        };
        told.rows.iter().map(text).collect()
    }

    /// True if these texts are among the steps, in this order.
    fn has(told: &Told, wanted: &[&str]) -> bool {
        let steps = steps(told);
        let mut steps = steps.iter();
        wanted
            .iter()
            .all(|text| steps.any(|step| step.contains(text)))
    }

    #[test]
    fn stories_show_the_events_of_their_scenarios() {
        let absent = told("absent-page");
        assert!(absent.passed, "{absent:#?}");
        let wanted = [
            "0> WRITE only, PSN 0",
            "page fault",
            "1> RNR NAK, PSN 0",
            "mapped the page",
            "PSN 0, again",
            "1> ACK, PSN 0",
        ];
        assert!(has(&absent, &wanted), "{absent:#?}");
        let ack = told("lost-ack");
        let wanted = [
            "1x ACK, PSN 1 (rule \"lose the second ACK\")",
            "no ACK in time",
            "PSN 1, again",
            "a duplicate",
            "1> ACK, PSN 1",
        ];
        assert!(ack.passed && has(&ack, &wanted), "{ack:#?}");
        let port = told("port-down");
        let wanted = [
            "PORT_DOWN",
            "0x WRITE only, PSN 2 (the port is down)",
            "PORT_UP",
            "PSN 2, again",
            "1> ACK, PSN 2",
        ];
        assert!(port.passed && has(&port, &wanted), "{port:#?}");
    }

    /// Nothing of a story is written in advance: another scenario is another story.
    #[test]
    fn a_story_follows_its_scenario() {
        let [absent, ack, port] = STORIES;
        let pinned = absent.text.replace("remote = \"on_demand\"\n", "");
        let told = tell(absent.name, &pinned).unwrap();
        assert!(
            !has(&told, &["page fault"]) && !has(&told, &["RNR NAK"]),
            "{told:#?}"
        );
        assert!(
            !told.passed && told.summary.concat().contains("Page faults: 0."),
            "{told:#?}"
        );
        let harmless = ack.text.replace("drop = {}", "count = {}");
        let told = tell(ack.name, &harmless).unwrap();
        assert!(
            !has(&told, &["again"]) && told.summary.concat().contains("Packets lost: 0."),
            "{told:#?}"
        );
        let lasting = port.text.replace("{ for = \"3ms\" }", "{}");
        let told = tell(port.name, &lasting).unwrap();
        assert!(
            has(
                &told,
                &[
                    "the port is down",
                    "again (the port is down)",
                    "completion RETRY_EXC_ERR"
                ]
            ),
            "{told:#?}"
        );
        assert!(
            !told.passed && told.summary.concat().contains("2 of 4 messages"),
            "{told:#?}"
        );
    }

    #[test]
    fn a_terminal_of_80_columns_shows_all_and_colours_are_a_choice() {
        let told = STORIES.map(|story| tell(story.name, story.text).unwrap());
        let plain = terminal::text_of(&told, false);
        let widest = plain
            .lines()
            .max_by_key(|line| line.chars().count())
            .unwrap();
        assert!(widest.chars().count() <= 80, "{widest}");
        assert!(!plain.contains('\x1b'));
        let coloured = terminal::text_of(&told, true);
        assert!(coloured.contains("\x1b[33m"), "a page fault has a colour");
    }

    #[test]
    fn a_page_loads_nothing_and_runs_nothing() {
        let page = html::page(&STORIES.map(|story| tell(story.name, story.text).unwrap()));
        assert!(page.contains("default-src 'none'"));
        for foreign in [
            "<script", "<link", "<style", " style=", " href=", " src=", "url(", " on",
        ] {
            let tags = page
                .split('<')
                .skip(1)
                .filter_map(|part| part.split('>').next());
            let found = tags
                .map(|tag| format!("<{tag}"))
                .find(|tag| tag.contains(foreign));
            assert_eq!(found, None, "{foreign}");
        }
        assert_eq!(page.matches("<svg ").count(), STORIES.len());
        let markup = Told {
            title: "<b>\"&".to_owned(),
            ..told("lost-ack")
        };
        assert!(!html::page(&[markup]).contains("<b>"));
    }

    /// The pictures of the documentation are those of the stories. `FAULTLINE_BLESS=1` writes them.
    #[test]
    fn pictures_of_the_documents_are_current() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/images");
        for story in STORIES {
            let path = folder.join(format!("demo-{}.svg", story.name));
            let picture = svg::picture(&tell(story.name, story.text).unwrap());
            if std::env::var_os("FAULTLINE_BLESS").is_some() {
                std::fs::write(&path, &picture).unwrap();
            }
            let found = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(
                found == picture,
                "{}: FAULTLINE_BLESS=1 cargo test -p faultline demo:: writes it",
                path.display()
            );
        }
    }
}
