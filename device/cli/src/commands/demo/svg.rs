//! The picture of a story: two hosts, and the events between them, from top to bottom. Times are not to scale.

use std::fmt::Write;

use super::rows::{Mark, Row, Shape, time};
use super::story::Told;

const WIDTH: u32 = 780;
/// Where the lines of the hosts are.
const HOSTS: [u32; 2] = [110, 740];
const TOP: u32 = 70;
/// Height of a step.
const STEP: u32 = 30;
/// Height by which an arrow falls.
const FALL: u32 = 10;
const FONT: &str = "font-family=\"sans-serif\" font-size=\"13\"";

/// The picture of a story as SVG. It has no style and no script, and names nothing outside.
pub(super) fn picture(told: &Told) -> String {
    let steps = u32::try_from(told.rows.len()).unwrap_or(u32::MAX);
    let bottom = steps.saturating_mul(STEP).saturating_add(TOP);
    let height = bottom.saturating_add(20);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\" \
         {FONT}>\n<title>{}</title>\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n",
        escaped(&told.title)
    );
    text(&mut svg, (WIDTH / 2, 24), "middle", "#222222", &told.title);
    for (host, x) in HOSTS.into_iter().enumerate() {
        text(
            &mut svg,
            (x, 50),
            "middle",
            "#222222",
            &format!("nic{host}"),
        );
        line(&mut svg, [(x, 58), (x, bottom)], "#888888", "");
    }
    for (step, row) in (0_u32..).zip(&told.rows) {
        let y = step
            .saturating_mul(STEP)
            .saturating_add(TOP)
            .saturating_add(STEP / 2);
        draw(&mut svg, row, y);
    }
    svg + "</svg>\n"
}

/// A step, at a height.
fn draw(svg: &mut String, row: &Row, y: u32) {
    let [left, right] = HOSTS;
    let colour = colour(row.mark);
    if row.shape != Shape::Gap {
        let x = left.saturating_sub(14);
        text(
            svg,
            (x, y.saturating_add(4)),
            "end",
            "#666666",
            &time(row.at),
        );
    }
    match &row.shape {
        Shape::Arrow { from, lost } => arrow(svg, row, *from == 0, lost.as_deref(), y),
        Shape::Note { host } => {
            let x = if *host == 0 { left } else { right };
            let _ = writeln!(
                svg,
                "<circle cx=\"{x}\" cy=\"{y}\" r=\"5\" fill=\"{colour}\"/>"
            );
            let (x, anchor) = match *host {
                0 => (left.saturating_add(14), "start"),
                _ => (right.saturating_sub(14), "end"),
            };
            text(svg, (x, y.saturating_add(4)), anchor, colour, &row.text);
        }
        Shape::Gap => {
            let middle = (left.saturating_add(right) / 2, y.saturating_add(4));
            text(
                svg,
                middle,
                "middle",
                "#666666",
                &format!("{} later", row.text),
            );
            for x in HOSTS {
                let ends = [(x, y.saturating_sub(9)), (x, y.saturating_add(9))];
                line(
                    svg,
                    ends,
                    "#ffffff",
                    " stroke-dasharray=\"3 3\" stroke-width=\"3\"",
                );
            }
        }
    }
}

/// A packet.
fn arrow(svg: &mut String, row: &Row, to_right: bool, lost: Option<&str>, y: u32) {
    let [left, right] = HOSTS;
    let colour = colour(row.mark);
    let span = right.saturating_sub(left);
    let reach = match lost {
        Some(_) => span.saturating_mul(2) / 3,
        None => span,
    };
    let (from, to) = match to_right {
        true => (left, left.saturating_add(reach)),
        false => (right, right.saturating_sub(reach)),
    };
    let end = y.saturating_add(FALL);
    line(svg, [(from, y), (to, end)], colour, " stroke-width=\"1.5\"");
    let middle = from.saturating_add(to) / 2;
    text(svg, (middle, y), "middle", colour, &row.text);
    // The head of the arrow, or a cross.
    let back = |by: u32| match to_right {
        true => to.saturating_sub(by),
        false => to.saturating_add(by),
    };
    let (above, below) = (end.saturating_sub(5), end.saturating_add(5));
    match lost {
        None => {
            let tail = back(10);
            let _ = writeln!(
                svg,
                "<polygon points=\"{to},{end} {tail},{above} {tail},{below}\" fill=\"{colour}\"/>"
            );
        }
        Some(why) => {
            let (one, other) = (to.saturating_sub(5), to.saturating_add(5));
            line(
                svg,
                [(one, above), (other, below)],
                colour,
                " stroke-width=\"2\"",
            );
            line(
                svg,
                [(one, below), (other, above)],
                colour,
                " stroke-width=\"2\"",
            );
            let (x, anchor) = match to_right {
                true => (to.saturating_add(12), "start"),
                false => (to.saturating_sub(12), "end"),
            };
            text(svg, (x, end.saturating_add(4)), anchor, colour, why);
        }
    }
}

/// The colour of a step: those of a palette that colour-blind readers distinguish (Okabe and Ito), darker for text on white.
fn colour(mark: Mark) -> &'static str {
    match mark {
        Mark::Plain => "#444444",
        Mark::Post => "#222222",
        Mark::Fault => "#a66a00",
        Mark::Good => "#00734f",
        Mark::RnrNak => "#8f3d70",
        Mark::Again => "#005c91",
        Mark::Bad => "#b03a00",
    }
}

fn line(svg: &mut String, [(x1, y1), (x2, y2)]: [(u32, u32); 2], colour: &str, more: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(
        svg,
        "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" stroke=\"{colour}\"{more}/>"
    );
}

fn text(svg: &mut String, (x, y): (u32, u32), anchor: &str, colour: &str, text: &str) {
    let text = escaped(text);
    let _ = writeln!(
        svg,
        "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{text}</text>"
    );
}

/// Text for XML and HTML.
pub(super) fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}
