//! Stories as one HTML page: no script, no style, no outside resources, and a policy that forbids them.

use std::fmt::Write;

use super::rows::{Shape, time};
use super::story::Told;
use super::svg::{escaped, picture};

/// The beginning of the page. The policy forbids everything that the page could load or execute (Content Security Policy level 3).
const HEAD: &str = "<!DOCTYPE html>
<html lang=\"en\">
<head>
<meta charset=\"utf-8\">
<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; base-uri 'none'; form-action 'none'\">
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<meta name=\"color-scheme\" content=\"light\">
<title>Stories of an RDMA connection</title>
</head>
<body>
<main>
<h1>Stories of an RDMA connection</h1>
<p>Each picture and each step is an event of a run of two simulated hosts in virtual time.</p>
";

/// A page with stories.
pub(super) fn page(told: &[Told]) -> String {
    let mut html = HEAD.to_owned();
    for told in told {
        add(&mut html, told);
    }
    html + "</main>\n</body>\n</html>\n"
}

fn add(html: &mut String, told: &Told) {
    let (name, title) = (escaped(&told.name), escaped(&told.title));
    // Writing to a string does not fail.
    let _ = writeln!(html, "<section id=\"{name}\">\n<h2>{title}</h2>");
    for line in &told.summary {
        let _ = writeln!(html, "<p>{}</p>", escaped(line));
    }
    *html += &picture(told);
    *html += "<details>\n<summary>The steps in words</summary>\n<ol>\n";
    for row in &told.rows {
        let text = escaped(&row.text);
        let _ = match &row.shape {
            Shape::Gap => continue,
            Shape::Note { host } => writeln!(html, "<li>{} nic{host}: {text}</li>", time(row.at)),
            Shape::Arrow { from, lost } => {
                let lost = lost
                    .as_deref()
                    .map(|why| format!(" (lost: {})", escaped(why)));
                let lost = lost.unwrap_or_default();
                writeln!(
                    html,
                    "<li>{} nic{from} sends {text}{lost}</li>",
                    time(row.at)
                )
            }
        };
    }
    let scenario = escaped(&told.scenario);
    let _ = writeln!(
        html,
        "</ol>\n</details>\n<details>\n<summary>The scenario</summary>\n<pre>{scenario}</pre>\n</details>\n</section>"
    );
}
