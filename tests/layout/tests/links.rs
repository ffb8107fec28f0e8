//! Links between documents: files and headings exist, and the book has each page once.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use faultline_layout::named::{read, root};

/// A part of `docs/test-suites.md`, where its links lead somewhere.
const PART: &str = "qemu-config/src/test/introduction.md";

/// The Markdown files of the repository.
fn documents() -> Vec<String> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .arg("*.md")
        .current_dir(root())
        .output()
        .expect("git runs");
    assert!(output.status.success());
    let names = String::from_utf8(output.stdout).expect("names are UTF-8");
    let names = names.lines().map(str::to_owned);
    names.filter(|name| root().join(name).is_file()).collect()
}

/// The lines outside of code blocks, which are fenced or indented.
fn text_lines(document: &str) -> impl Iterator<Item = &str> {
    let mut is_fenced = false;
    document.lines().filter(move |line| {
        if line.starts_with("```") {
            is_fenced = !is_fenced;
            return false;
        }
        !is_fenced && !line.starts_with("    ")
    })
}

/// A line without the code in backquotes.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

/// The destinations of the links in a document. The text of a link may have a line break.
fn links(document: &str) -> Vec<String> {
    let text: Vec<String> = text_lines(document).map(without_code).collect();
    let text = text.join("\n");
    let ends = text.split("](").skip(1);
    ends.filter_map(|rest| rest.split_once(')'))
        .map(|(link, _)| link.to_owned())
        .collect()
}

/// The text of a heading, without the destinations of its links.
fn heading_text(heading: &str) -> String {
    let mut parts = heading.split("](");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text += part.split_once(')').map_or(part, |(_, rest)| rest);
    }
    text
}

/// The anchors of the headings: lower case, without punctuation, with hyphens for spaces; repeated ones are numbered.
fn anchors(document: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in text_lines(document) {
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let is_kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
        let text = heading_text(heading.trim()).to_lowercase();
        let anchor: String = text.chars().filter(is_kept).collect();
        let anchor = anchor.replace(' ', "-");
        let numbered = (1..).map(|n| format!("{anchor}-{n}"));
        let mut candidates = std::iter::once(anchor.clone()).chain(numbered);
        let free = candidates.find(|name| !found.contains(name));
        found.extend(free);
    }
    found
}

/// The path of a link in a document, from the top of the tree.
fn destination(document: &str, link: &str) -> PathBuf {
    let mut path = PathBuf::from(document);
    if !link.is_empty() {
        path.pop();
        for part in Path::new(link).components() {
            if part == Component::ParentDir {
                path.pop();
            } else {
                path.push(part);
            }
        }
    }
    path
}

/// Why a link of a document leads nowhere.
fn broken(document: &str, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let path = destination(document, file);
    if !root().join(&path).exists() {
        return Some(format!("{document}: {link}: no such file"));
    }
    let is_document = path.extension().is_some_and(|extension| extension == "md");
    if anchor.is_empty() || !is_document {
        return None;
    }
    let is_known = anchors(&read(&path.to_string_lossy())).contains(anchor);
    (!is_known).then(|| format!("{document}: {link}: no such heading"))
}

#[test]
fn links_between_documents_lead_somewhere() {
    let documents = documents();
    let mut wrong = Vec::new();
    let mut count = 0;
    for document in documents.iter().filter(|name| *name != PART) {
        for link in links(&read(document)) {
            count += 1;
            wrong.extend(broken(document, &link));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 300, "only {count} links");
}

#[test]
fn the_book_has_each_page_once() {
    let mut chapters = links(&read("docs/SUMMARY.md"));
    let is_page = |name: &&str| *name != "SUMMARY.md";
    let documents = documents();
    let pages = documents
        .iter()
        .filter_map(|name| name.strip_prefix("docs/"));
    let mut pages: Vec<&str> = pages.filter(is_page).collect();
    chapters.sort();
    pages.sort_unstable();
    assert_eq!(chapters, pages);
}

#[test]
fn headings_have_the_anchors_that_links_use() {
    let document = "# A: `b_c`, d-e\n\n    # code\n\n## [Link](x.md) (2)\n\n```\n# fenced\n```\n\n## Same\n\n## Same\n";
    let expected = ["a-b_c-d-e", "link-2", "same", "same-1"];
    assert!(anchors(document).iter().eq(expected));
    assert_eq!(
        links("[a\nb](c.md#d), `[e](f)`, ![g](h.svg)"),
        ["c.md#d", "h.svg"]
    );
    for (link, path) in [
        ("../README.md", "README.md"),
        ("", "docs/a.md"),
        ("b/c.md", "docs/b/c.md"),
    ] {
        assert_eq!(destination("docs/a.md", link), Path::new(path));
    }
    assert!(broken("README.md", "docs/no-such-page.md").is_some());
    assert!(broken("README.md", "docs/tutorial.md#no-such-heading").is_some());
}
