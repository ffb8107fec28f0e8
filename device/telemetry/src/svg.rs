//! Pictures of a trace: the distribution of the latency of page faults, and their time line.

use std::collections::BTreeMap;

use faultline_nic::Diagnostic;
use plotters::chart::SeriesAnno;
use plotters::coord::Shift;
use plotters::prelude::*;
use thiserror::Error;

use crate::analysis::{Analysis, Fault};
use crate::event::TraceEvent;
use crate::report::{duration, durations, total};
use crate::stage::Stage;
use crate::trace::Trace;

const SIZE: (u32, u32) = (960, 480);
/// Most marks of a kind in a picture.
const MARKS: usize = 4096;
const FONT: (&str, u32) = ("sans-serif", 16);

/// A picture could not be drawn.
#[derive(Debug, Error)]
#[error("the picture could not be drawn: {0}")]
pub struct PictureError(String);

impl<E: std::error::Error + Send + Sync> From<DrawingAreaErrorKind<E>> for PictureError {
    fn from(error: DrawingAreaErrorKind<E>) -> Self {
        Self(error.to_string())
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws with `picture`, and returns the SVG.
fn svg(
    picture: impl FnOnce(&Area<'_>) -> Result<(), PictureError>,
) -> Result<String, PictureError> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        picture(&area)?;
        area.present()?;
    }
    Ok(text)
}

/// The color of a stage.
fn color(stage: Stage) -> RGBColor {
    match stage {
        Stage::Record => RGBColor(120, 120, 120),
        Stage::Interrupt => RGBColor(230, 159, 0),
        Stage::Wait => RGBColor(86, 180, 233),
        Stage::Map => RGBColor(0, 158, 115),
        Stage::Post => RGBColor(204, 121, 167),
        Stage::Data => RGBColor(213, 94, 0),
        Stage::Total => RGBColor(0, 114, 178),
    }
}

fn nanoseconds(ns: &f64) -> String {
    duration(*ns)
}

/// Bars for each factor of two, all of the same width on the logarithmic axis.
const BARS: f64 = 4.0;

/// The bar of a duration: the last one that does not begin after it.
fn bar(ns: u64) -> u32 {
    let ns = ns.max(1) as f64;
    let (mut bar, mut step) = (0_u32, 256_u32);
    while step > 0 {
        let next = bar.saturating_add(step);
        if edge(next) <= ns {
            bar = next;
        }
        step /= 2;
    }
    bar
}

/// Where a bar begins.
fn edge(bar: u32) -> f64 {
    (f64::from(bar) / BARS).exp2()
}

/// The distribution of the latency of all page faults, as an SVG picture.
pub fn latency_picture(trace: &Trace) -> Result<String, PictureError> {
    let analysis = Analysis::new(&trace.records);
    let totals: Vec<u64> = analysis
        .faults
        .iter()
        .flat_map(durations)
        .filter(|(stage, _)| *stage == Stage::Total)
        .map(|(_, ns)| ns)
        .collect();
    let mut bars: BTreeMap<u32, u32> = BTreeMap::new();
    for ns in &totals {
        let count = bars.entry(bar(*ns)).or_default();
        *count = count.saturating_add(1);
    }
    let first = bars.keys().next().map_or(1_000.0, |bar| edge(*bar));
    let last = bars
        .keys()
        .next_back()
        .map_or(1e6, |bar| edge(bar.saturating_add(1)));
    let highest = bars.values().max().copied().unwrap_or(1);
    svg(|area| {
        let mut chart = ChartBuilder::on(area)
            .caption(
                format!("Latency of {} accesses that met a page fault", totals.len()),
                FONT,
            )
            .margin(16)
            .x_label_area_size(40)
            .y_label_area_size(56)
            .build_cartesian_2d(
                (first / 1.5..last * 1.5).log_scale(),
                0..highest.saturating_add(1),
            )?;
        chart
            .configure_mesh()
            .x_desc("raised until carried out")
            .y_desc("accesses")
            .x_label_formatter(&nanoseconds)
            .draw()?;
        chart.draw_series(bars.iter().map(|(bar, count)| {
            let corners = [(edge(*bar), 0), (edge(bar.saturating_add(1)), *count)];
            Rectangle::new(corners, color(Stage::Total).filled())
        }))?;
        Ok(())
    })
}

/// A mark at a time for each fault, as high as it took, in the color of its longest stage.
struct Mark {
    at: f64,
    total: f64,
    longest: Stage,
}

fn mark(fault: &Fault, start: u64) -> Option<Mark> {
    let stages = durations(fault);
    let parts = stages.iter().filter(|(stage, _)| *stage != Stage::Total);
    let (longest, _) = parts.max_by_key(|(_, ns)| *ns)?;
    Some(Mark {
        at: fault.raised.0.saturating_sub(start) as f64,
        total: total(fault)?.max(1) as f64,
        longest: *longest,
    })
}

/// The page faults of a trace over time with their latency, and the times at which packets were refused or sent again,
/// as an SVG picture. If there are very many, the slowest faults are drawn.
pub fn time_line_picture(trace: &Trace) -> Result<String, PictureError> {
    let analysis = Analysis::new(&trace.records);
    // A file may have faults that were raised before or after all times of its records.
    let raised = analysis.faults.iter().map(|fault| fault.raised.0);
    let times = trace.records.iter().map(|record| record.at.0).chain(raised);
    let start = times.clone().min().unwrap_or_default();
    let span = times.max().unwrap_or_default().saturating_sub(start).max(1) as f64;
    let mut faults: Vec<&Fault> = analysis.faults.iter().collect();
    faults.sort_by_key(|fault| std::cmp::Reverse(total(fault)));
    let marks: Vec<Mark> = faults
        .into_iter()
        .take(MARKS)
        .filter_map(|fault| mark(fault, start))
        .collect();
    let again: Vec<f64> = trace
        .records
        .iter()
        .filter(|record| {
            matches!(
                record.event,
                TraceEvent::Nic(Diagnostic::RnrNakReceived { .. } | Diagnostic::Retried { .. })
            )
        })
        .map(|record| record.at.0.saturating_sub(start) as f64)
        .collect();
    let again = again
        .iter()
        .step_by((again.len() / MARKS).saturating_add(1));
    let lowest = marks.iter().map(|m| m.total).fold(f64::INFINITY, f64::min);
    let lowest = if lowest.is_finite() { lowest } else { 1_000.0 };
    let highest = marks.iter().map(|m| m.total).fold(lowest, f64::max);
    svg(|area| {
        let mut chart = ChartBuilder::on(area)
            .caption("Page faults by time and latency", FONT)
            .margin(16)
            .x_label_area_size(40)
            .y_label_area_size(72)
            .build_cartesian_2d(0.0..span, (lowest / 3.0..highest * 2.0).log_scale())?;
        chart
            .configure_mesh()
            .x_desc("time")
            .y_desc("raised until carried out")
            .x_label_formatter(&nanoseconds)
            .y_label_formatter(&nanoseconds)
            .draw()?;
        for stage in Stage::ALL
            .into_iter()
            .filter(|stage| *stage != Stage::Total)
        {
            let of_stage = marks.iter().filter(|mark| mark.longest == stage);
            let style = color(stage).mix(0.7).filled();
            let mut points = of_stage
                .map(|mark| Circle::new((mark.at, mark.total), 3, style))
                .peekable();
            if points.peek().is_some() {
                let name = format!("longest stage: {}", stage.name());
                label(chart.draw_series(points)?, &name, color(stage));
            }
        }
        let mut ticks = again
            .map(|at| PathElement::new([(*at, lowest / 3.0), (*at, lowest / 2.0)], RED))
            .peekable();
        if ticks.peek().is_some() {
            label(
                chart.draw_series(ticks)?,
                "refused (RNR) or sent again",
                RED,
            );
        }
        chart
            .configure_series_labels()
            .border_style(BLACK.mix(0.3))
            .background_style(WHITE.mix(0.8))
            .draw()?;
        Ok(())
    })
}

/// Names a series in the legend.
fn label<'a>(series: &mut SeriesAnno<'a, SVGBackend<'a>>, name: &str, color: RGBColor) {
    series.label(name).legend(move |(x, y)| {
        let [top, bottom] = [y.saturating_sub(4), y.saturating_add(4)];
        Rectangle::new([(x, top), (x.saturating_add(8), bottom)], color.filled())
    });
}

#[cfg(test)]
mod tests {
    use faultline_nic::Instant;
    use proptest::prelude::*;

    use super::*;
    use crate::event::Record;
    use crate::samples::{any_record, trace, write_to_absent_page};

    fn count(svg: &str, element: &str) -> usize {
        svg.matches(&format!("<{element} ")).count()
    }

    #[test]
    fn each_fault_has_a_mark_and_a_place_in_a_bar() {
        let records: Vec<_> = (0..20u32)
            .flat_map(|n| write_to_absent_page(1000 + u64::from(n) * 200_000, u64::from(n) + 1, n))
            .collect();
        let trace = trace(records);
        let line = time_line_picture(&trace).unwrap();
        assert_eq!(count(&line, "circle"), 20);
        assert!(line.contains("longest stage: interrupt"));
        assert!(line.contains("refused (RNR) or sent again"));
        let latency = latency_picture(&trace).unwrap();
        assert!(latency.contains("Latency of 20 accesses"));
        assert!(latency.starts_with("<svg") && latency.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn a_bar_holds_the_durations_between_its_edges() {
        for ns in [1, 2, 3, 4, 5, 6, 7, 8, 1000, 1279, 1280, 1 << 40] {
            let bar = bar(ns);
            assert!(edge(bar) <= ns as f64, "{ns}");
            assert!((ns as f64) < edge(bar + 1), "{ns}");
        }
        assert_eq!((bar(0), bar(u64::MAX)), (0, 256));
    }

    #[test]
    fn bars_are_equally_wide_on_a_logarithmic_axis() {
        for bar in 0..256 {
            let factor = edge(bar + 1) / edge(bar);
            assert!((factor - 2_f64.powf(0.25)).abs() < 1e-9, "{bar}: {factor}");
        }
    }

    #[test]
    fn a_trace_without_faults_has_pictures() {
        let trace = trace(Vec::new());
        assert_eq!(count(&time_line_picture(&trace).unwrap(), "circle"), 0);
        assert!(latency_picture(&trace).is_ok());
    }

    #[test]
    fn faults_outside_the_times_of_the_records_lie_in_the_picture() {
        let record = |at, raised, resumed| Record {
            at: Instant(at),
            nic: 0,
            event: TraceEvent::Nic(Diagnostic::FaultDone {
                token: 3,
                qpn: 17,
                raised: Instant(raised),
                resumed: Instant(resumed),
            }),
        };
        let trace = trace(vec![
            record(0, 2_511_677, 15_270_449),
            record(1, u64::MAX, u64::MAX),
        ]);
        time_line_picture(&trace).unwrap();
        latency_picture(&trace).unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn any_records_have_pictures(records in prop::collection::vec(any_record(), 0..100)) {
            let trace = trace(records);
            for svg in [latency_picture(&trace).unwrap(), time_line_picture(&trace).unwrap()] {
                prop_assert!(svg.len() < 200_000, "{}", svg.len());
            }
        }
    }
}
