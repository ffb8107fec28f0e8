//! The picture: a pure function of the rows and the state of the view.

use std::time::Duration;

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Modifier, Style};

use super::panels::{Panel, engine};
use super::rates::{Rows, Sort};

/// Lines of a panel that is not selected: title, columns, and two rows.
const SMALL_PANEL: u16 = 4;
/// Lines that the selected panel has at least if others are visible.
const MIN_SELECTED: u16 = 5;
const KEYS: &str = "q quit  Tab panel  arrows scroll  s sort  p pause";

/// The rows and the state of the view.
#[derive(Clone, Debug)]
pub(super) struct View {
    /// The socket.
    pub(super) source: String,
    pub(super) interval: Duration,
    pub(super) rows: Rows,
    /// Time since the rows were read.
    pub(super) age: Duration,
    /// Something that is wrong.
    pub(super) notice: Option<String>,
    /// The panel that has most of the space, and is scrolled.
    pub(super) selected: Panel,
    /// First row of the selected panel.
    pub(super) scroll: usize,
    /// The display is paused.
    pub(super) paused: bool,
    pub(super) sort: Sort,
}

impl View {
    fn title(&self) -> String {
        let mut title = format!("faultline top  {}", engine(&self.rows));
        if self.paused {
            title += "  DISPLAY PAUSED";
        }
        let late = self.interval.saturating_mul(2);
        if self.age > late.saturating_add(Duration::from_secs(1)) {
            title += &format!("  {} s old", self.age.as_secs());
        }
        title += &format!(
            "  every {} s  by {}  {}",
            self.interval.as_secs_f64(),
            match self.sort {
                Sort::Rate => "packets",
                Sort::Bytes => "bytes",
                Sort::Qpn => "QPN",
            },
            self.source
        );
        title
    }

    /// Selects the panel that is `places` after the present one.
    pub(super) fn select(&mut self, places: usize) {
        let at = Panel::ALL.iter().position(|panel| *panel == self.selected);
        let mut panels = Panel::ALL.iter().cycle();
        if let Some(panel) = panels.nth(at.unwrap_or(0).saturating_add(places)) {
            self.selected = *panel;
            self.scroll = 0;
        }
    }

    /// Largest value of `scroll` that has an effect in a terminal with this many lines.
    pub(super) fn last_scroll(&self, lines: u16) -> usize {
        let mut heights = self.heights(lines.saturating_sub(2)).into_iter();
        let height = heights.find_map(|(panel, height)| (panel == self.selected).then_some(height));
        let room = height.unwrap_or(0).saturating_sub(2);
        self.selected.len(&self.rows).saturating_sub(room.into())
    }

    /// Draws it.
    pub(super) fn draw(&self, buffer: &mut Buffer) {
        let area = *buffer.area();
        let plain = Style::new();
        let bold = plain.add_modifier(Modifier::BOLD);
        let reversed = plain.add_modifier(Modifier::REVERSED);
        let mut lines = area.rows();
        if let Some(line) = lines.next() {
            fill(buffer, line, &self.title(), reversed);
        }
        if let Some(line) = lines.next_back() {
            match &self.notice {
                Some(notice) => fill(buffer, line, notice, bold),
                None => fill(buffer, line, KEYS, plain),
            }
        }
        let body = area.height.saturating_sub(2);
        for (panel, height) in self.heights(body) {
            let lines: Vec<_> = lines.by_ref().take(height.into()).collect();
            self.draw_panel(buffer, panel, &lines);
        }
    }

    /// The visible panels with their heights. Lines that the selected panel does not need are for the panels
    /// that are cut.
    fn heights(&self, body: u16) -> Vec<(Panel, u16)> {
        let mut rest = match body.checked_sub(3 * SMALL_PANEL) {
            Some(rest) if rest >= MIN_SELECTED => rest,
            _ => return vec![(self.selected, body)],
        };
        let mut heights = Panel::ALL.map(|panel| (panel, SMALL_PANEL));
        let (selected, others): (Vec<_>, Vec<_>) = heights
            .iter_mut()
            .partition(|(panel, _)| *panel == self.selected);
        let wanted = |panel: Panel| {
            u16::try_from(panel.len(&self.rows)).map_or(body, |n| n.saturating_add(2))
        };
        let mut spare = rest.saturating_sub(wanted(self.selected).max(SMALL_PANEL));
        for (panel, height) in others {
            let more = wanted(*panel).saturating_sub(SMALL_PANEL).min(spare);
            *height = height.saturating_add(more);
            spare = spare.saturating_sub(more);
            rest = rest.saturating_sub(more);
        }
        for (_, height) in selected {
            *height = rest;
        }
        heights.to_vec()
    }

    fn draw_panel(&self, buffer: &mut Buffer, panel: Panel, lines: &[Rect]) {
        let room = lines.len().saturating_sub(2);
        let count = panel.len(&self.rows);
        let selected = panel == self.selected;
        let first = match selected {
            true => self.scroll.min(count.saturating_sub(room)),
            false => 0,
        };
        let table = panel.table(&self.rows, first..first.saturating_add(room));
        let mut title = table.title.clone();
        if count > room {
            title += &format!(", from {}", first.saturating_add(1));
        }
        let mark = if selected { "> " } else { "  " };
        let style = Style::new().add_modifier(Modifier::BOLD);
        if let Some(line) = lines.first() {
            fill(buffer, *line, &format!("{mark}{title}"), style);
        }
        let plain = Style::new();
        for ((at, (text, trouble)), line) in table
            .lines(1, lines.first().map_or(0, |line| line.width.into()))
            .into_iter()
            .enumerate()
            .zip(lines.iter().skip(1))
        {
            let style = match (at, trouble) {
                (0, _) => plain.add_modifier(Modifier::DIM),
                (_, true) => plain.add_modifier(Modifier::BOLD),
                (_, false) => plain,
            };
            fill(buffer, *line, &text, style);
        }
    }
}

/// Writes a line of text, cut at the right end.
fn fill(buffer: &mut Buffer, line: Rect, text: &str, style: Style) {
    buffer.set_style(line, style);
    buffer.set_stringn(line.x, line.y, text, line.width.into(), style);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fixture::{pair, part, snapshot, storm};
    use super::super::rates::rows;
    use super::*;

    fn view(rows: Rows) -> View {
        View {
            source: "/tmp/control.sock".to_owned(),
            interval: Duration::from_secs(1),
            rows,
            age: Duration::ZERO,
            notice: None,
            selected: Panel::QueuePairs,
            scroll: 0,
            paused: false,
            sort: Sort::Rate,
        }
    }

    fn storm_view() -> View {
        let (before, after) = storm();
        let mut rows = rows(Some(&before), &after);
        rows.sort(Sort::Rate);
        view(rows)
    }

    /// The lines of the picture, without spaces at their ends.
    fn picture(view: &View, width: u16, height: u16) -> Vec<String> {
        let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
        view.draw(&mut buffer);
        let cells: Vec<_> = buffer.content().iter().map(|cell| cell.symbol()).collect();
        let lines = cells.chunks(width.into());
        lines
            .map(|line| line.concat().trim_end().to_owned())
            .collect()
    }

    #[test]
    fn a_usual_terminal_has_all_panels() {
        let picture = picture(&storm_view(), 80, 24);
        let expected = [
            "faultline top  engine 25 % busy, up 11.0 s  every 1 s  by packets  /tmp/control.",
            "  NICs, per second (2)",
            "NIC  STATE   LINK FAULTS NEW RNR RETRY   CQ TX-PKT RX-PKT TX-MSG RX-MSG TX-B",
            "nic0 running up        2 310  15   7.0 75 %   1.2M   1.1M   600k      0 4.2G",
            "nic1 running down      0   0   0     0    -      0      0      0      0    0",
            "> Queue pairs, per second (3)",
            "QPN NIC  KIND STATE POLICY TX-PKT RX-PKT TX-B RX-B WAITS PROCESS         PEER",
            " 18 nic0 rc   RTS   rnr      500k   500k 500M    0 -     ib_write_bw 345    9",
            " 17 nic0 rc   RTS   rnr      1.0k   1.0k 1.0M    0 -     ib_write_bw 345    9",
            " 40 nic0 rc   RTS   rnr         -      -    -    - -     ib_write_bw 345    9",
            "",
            "",
            "",
            "",
            "",
            "  Page faults without an answer (2)",
            "      AGE NIC  TOKEN QPN WAITERS        ADDRESS PAGES   KEY ACCESS PROCESS",
            "1500.0 ms nic0 0x7ff  17       2 0x7f0000003000     1 0x205 write  ib_write_bw 3",
            "   3.0 ms nic0 0x801  17       2 0x7f0000003000     1 0x205 write  ib_write_bw 3",
            "  Regions, pages present (2)",
            "  KEY NIC  PRESENT CHANGE   LENGTH        ADDRESS PAGING    TABLE",
            "0x205 nic0     200    100 1.00 MiB 0x7f0000000000 demand 4.00 KiB",
            "0x101 nic0      50      0 1.00 MiB 0x7f0000000000 demand 4.00 KiB",
            "q quit  Tab panel  arrows scroll  s sort  p pause",
        ];
        assert_eq!(picture, expected, "{picture:#?}");
    }

    #[test]
    fn a_tiny_terminal_has_the_selected_panel() {
        let mut view = storm_view();
        let expected = [
            "faultline top  engin",
            "> Queue pairs, per s",
            "QPN NIC  KIND STATE",
            " 18 nic0 rc   RTS",
            "q quit  Tab panel  a",
        ];
        assert_eq!(picture(&view, 20, 5), expected);
        view.select(1);
        view.scroll = 1;
        let lines = picture(&view, 44, 5);
        assert_eq!(lines[1], "> Page faults without an answer (2), from 2");
        assert_eq!(lines[3], "3.0 ms nic0 0x801  17       2 0x7f0000003000");
        view.select(2);
        assert_eq!((view.selected, view.scroll), (Panel::Nics, 0));
        view.select(Panel::ALL.len() - 1);
        assert_eq!(view.selected, Panel::Regions);
    }

    #[test]
    fn a_process_without_nics_has_empty_panels() {
        let empty = view(rows(None, &snapshot(1)));
        let picture = picture(&empty, 80, 24);
        assert!(picture[0].starts_with("faultline top  engine - % busy, up 1.00 ms"));
        assert_eq!(picture[1], "  NICs, per second (0)");
        assert_eq!(picture[5], "> Queue pairs, per second (0)");
        assert_eq!(picture[15], "  Page faults without an answer (0)");
        assert_eq!(picture[19], "  Regions, pages present (0)");
    }

    #[test]
    fn problems_are_shown() {
        let mut view = storm_view();
        view.notice = Some("no connection, tries again: there is no socket".to_owned());
        view.age = Duration::from_secs(7);
        view.paused = true;
        let lines = picture(&view, 120, 24);
        assert!(
            lines[0].contains("  DISPLAY PAUSED  7 s old  every"),
            "{}",
            lines[0]
        );
        assert_eq!(lines[23], "no connection, tries again: there is no socket");
        view.rows.incomplete.queue_pairs = true;
        view.rows.engine.paused = true;
        let lines = picture(&view, 80, 24);
        assert!(
            lines[0].contains("engine paused, 25 % busy"),
            "{}",
            lines[0]
        );
        assert_eq!(lines[5], "> Queue pairs, per second (3, there are more)");
    }

    fn many_pairs(count: u32) -> View {
        let (_, mut after) = storm();
        let at = after.engine.at;
        after.nics[0].pairs = part(at, (0..count).map(|qpn| pair(qpn, 1)).collect());
        view(rows(None, &after))
    }

    #[test]
    fn lines_that_the_selected_panel_does_not_need_are_for_others() {
        let mut view = many_pairs(12);
        view.selected = Panel::Nics;
        let lines = picture(&view, 80, 32);
        let at = |title: &str| lines.iter().position(|line| line.contains(title)).unwrap();
        let pairs = at("Queue pairs, per second (12)");
        assert_eq!(at("Page faults") - pairs, 14, "{lines:#?}");
        // The least for the others, and a title that tells that there are more.
        let lines = picture(&view, 80, 24);
        assert!(
            lines.iter().any(|line| line.ends_with("(12), from 1")),
            "{lines:#?}"
        );
        assert!(lines.iter().any(|line| line.contains("Regions")));
    }

    #[test]
    fn scrolling_ends_at_the_last_row() {
        let mut view = many_pairs(100);
        assert_eq!(view.last_scroll(24), 92);
        view.scroll = 92;
        let lines = picture(&view, 80, 24);
        assert!(lines[5].ends_with("(100), from 93"), "{}", lines[5]);
        assert!(lines[14].starts_with(" 99 nic0"), "{}", lines[14]);
        view.scroll = usize::MAX;
        assert_eq!(picture(&view, 80, 24), lines);
        assert_eq!(view.last_scroll(0), 100);
    }

    proptest! {
        #[test]
        fn each_size_can_be_drawn(
            width in 0..200u16,
            height in 0..80u16,
            pairs in 0..300u32,
            scroll in 0..400usize,
            panel in 0..4usize,
        ) {
            let mut view = many_pairs(pairs);
            view.select(panel);
            view.scroll = scroll;
            let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
            view.draw(&mut buffer);
            // The first line is always drawn, as far as it fits.
            let title: String = buffer.content().iter().take(13.min(width.into())).map(|cell| cell.symbol()).collect();
            if height > 0 {
                prop_assert!("faultline top".starts_with(&title));
            }
        }
    }
}
