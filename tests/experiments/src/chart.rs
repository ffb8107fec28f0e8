//! Pictures of figures.

use anyhow::{Result, anyhow};
use plotters::chart::SeriesAnno;
use plotters::coord::Shift;
use plotters::prelude::*;

const SIZE: (u32, u32) = (860, 420);
const FONT: (&str, u32) = ("sans-serif", 16);
/// Colors that can be told apart without seeing red or green (Okabe and Ito).
const COLORS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// A line of a chart.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// Points with positive numbers.
    pub points: Vec<(f64, f64)>,
}

/// Texts of a chart.
#[derive(Clone, Copy, Debug)]
pub struct Texts {
    /// Heading.
    pub title: &'static str,
    /// Horizontal axis.
    pub x: &'static str,
    /// Vertical axis.
    pub y: &'static str,
}

fn svg(draw: impl FnOnce(&DrawingArea<SVGBackend<'_>, Shift>) -> Result<()>) -> Result<String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        draw(&area)?;
        area.present()?;
    }
    Ok(text)
}

fn label<'a>(series: &mut SeriesAnno<'a, SVGBackend<'a>>, name: &str, color: RGBColor) {
    series
        .label(name)
        .legend(move |(x, y)| Rectangle::new([(x, y - 4), (x + 8, y + 4)], color.filled()));
}

/// Lines over two logarithmic axes.
///
/// # Errors
/// There are no points, or drawing fails.
pub fn lines(texts: Texts, lines: &[Line], show_y: &dyn Fn(f64) -> String) -> Result<String> {
    let all = || lines.iter().flat_map(|line| line.points.iter().copied());
    let range = |values: &mut dyn Iterator<Item = f64>| {
        values.fold((f64::INFINITY, 0.0_f64), |(low, high), value| {
            (low.min(value), high.max(value))
        })
    };
    let (left, right) = range(&mut all().map(|point| point.0));
    let (low, high) = range(&mut all().map(|point| point.1));
    if !(left > 0.0 && low > 0.0) {
        return Err(anyhow!("{}: points must be positive", texts.title));
    }
    svg(|area| {
        let x = (left / 1.2..right * 1.2).log_scale();
        // The legend is above the lines.
        let y = (low / 2.0..high * (high / low).powf(0.6) * 2.0).log_scale();
        let mut chart = ChartBuilder::on(area)
            .caption(texts.title, FONT)
            .margin(16)
            .x_label_area_size(40)
            .y_label_area_size(80)
            .build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .x_desc(texts.x)
            .y_desc(texts.y)
            .x_label_formatter(&|value| format!("{value:.0}"))
            .y_label_formatter(&|value| show_y(*value))
            .draw()?;
        for (line, color) in lines.iter().zip(COLORS.iter().cycle()) {
            let points = line.points.iter().copied();
            let style = color.stroke_width(2);
            label(
                chart.draw_series([PathElement::new(points.clone().collect::<Vec<_>>(), style)])?,
                &line.name,
                *color,
            );
            chart.draw_series(points.map(|point| Circle::new(point, 4, color.filled())))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .border_style(BLACK.mix(0.3))
            .background_style(WHITE.mix(0.8))
            .draw()?;
        Ok(())
    })
}

/// The vertical axis of bars.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// From 0.
    Linear,
    /// Powers of ten from this value.
    LogarithmicFrom(f64),
}

impl Scale {
    fn height(self, value: f64) -> f64 {
        match self {
            Self::Linear => value,
            Self::LogarithmicFrom(first) => (value / first).log10().max(0.0),
        }
    }

    fn label(self, height: f64) -> String {
        match self {
            Self::Linear => format!("{height:.0}"),
            Self::LogarithmicFrom(first) => format!("{}", first * 10.0_f64.powf(height)),
        }
    }
}

/// Groups of bars: the values of each series in each group.
///
/// # Errors
/// Drawing fails.
pub fn bars(
    texts: Texts,
    groups: &[String],
    series: &[(String, Vec<f64>)],
    scale: Scale,
) -> Result<String> {
    let values = series.iter().flat_map(|(_, values)| values);
    let highest = values.map(|value| scale.height(*value)).fold(1.0, f64::max) * 1.3;
    let each = 0.8 / series.len().max(1) as f64;
    svg(|area| {
        let mut chart = ChartBuilder::on(area)
            .caption(texts.title, FONT)
            .margin(16)
            .x_label_area_size(40)
            .y_label_area_size(80)
            .build_cartesian_2d(0.0..groups.len() as f64, 0.0..highest)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(2 * groups.len() + 1)
            .x_desc(texts.x)
            .y_desc(texts.y)
            .y_labels(8)
            .y_label_formatter(&|height| scale.label(*height))
            .x_label_formatter(&|value| {
                let is_middle = (value.fract() - 0.5).abs() < 0.1;
                let name = groups.get(value.floor() as usize).filter(|_| is_middle);
                name.cloned().unwrap_or_default()
            })
            .draw()?;
        for (index, (name, values)) in series.iter().enumerate() {
            let color = COLORS[index % COLORS.len()];
            let of_series = values.iter().enumerate().map(|(group, value)| {
                let from = group as f64 + 0.1 + each * index as f64;
                Rectangle::new(
                    [(from, 0.0), (from + each, scale.height(*value))],
                    color.filled(),
                )
            });
            label(chart.draw_series(of_series)?, name, color);
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .border_style(BLACK.mix(0.3))
            .background_style(WHITE.mix(0.8))
            .draw()?;
        Ok(())
    })
}
