//! The step `book` of the suite `host`: mdBook builds the documentation as `target/book`, and each link of a page leads to a page and an
//! anchor of the book.
//!
//! Pages link to files of the repository that are not in the book. In a copy of the pages these links become names of files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::command::run_logged;
use crate::host;
use crate::workspace::{Workspace, files_below};

/// The page for errors, whose links are for the root of a server.
const UNCHECKED: &str = "404.html";

/// Builds the book; `dir` gets the copy of the pages. The error has the broken links.
pub fn check(workspace: &Workspace, dir: &Path) -> Result<()> {
    let source = dir.join("book-source");
    let pages = workspace.root().join("docs");
    for file in files_below(&pages)? {
        let name = file.strip_prefix(&pages)?;
        let copy = source.join(name);
        fs::create_dir_all(copy.parent().context("a file has a folder")?)?;
        if name.extension().is_some_and(|extension| extension == "md") {
            let text =
                fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
            fs::write(&copy, page_of_book(name, &text))?;
        } else {
            fs::copy(&file, &copy)?;
        }
    }
    let book = workspace.root().join("target/book");
    let mut mdbook = Command::new(host::mdbook(workspace)?);
    mdbook
        .arg("build")
        .arg(&source)
        .arg("--dest-dir")
        .arg(&book);
    run_logged("mdbook", &mut mdbook, &dir.join("book.log"))?;
    let broken = broken_links(&book)?;
    ensure!(
        broken.is_empty(),
        "the book has broken links:\n{}",
        broken.join("\n")
    );
    Ok(())
}

/// A page with links to pages of the book only. mdBook renames the page `README` to `index`, and follows that in the summary only.
fn page_of_book(name: &Path, text: &str) -> String {
    if name == Path::new("SUMMARY.md") {
        return text.to_owned();
    }
    let mut parts = text.split("](");
    let mut page = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (link, rest) = part.split_once(')').unwrap_or((part, ""));
        if let Some(path) = outside_of_book(name, link) {
            page += &format!("] (`{path}`){rest}");
        } else {
            let link = link.replacen("README.md", "index.md", 1);
            page += &format!("]({link}){rest}");
        }
    }
    page
}

/// The path of a link in the repository if it leads out of `docs`.
fn outside_of_book(page: &Path, link: &str) -> Option<String> {
    let path = destination(&Path::new("docs").join(page), link);
    let is_local = !link.contains("://");
    (is_local && !path.starts_with("docs")).then(|| path.display().to_string())
}

/// The file of a relative link, which may be empty, in a file.
fn destination(file: &Path, link: &str) -> PathBuf {
    let mut path = file.to_owned();
    if !link.is_empty() {
        path.pop();
    }
    for part in Path::new(link).components() {
        if part == Component::ParentDir {
            path.pop();
        } else {
            path.push(part);
        }
    }
    path
}

/// Links of the book's pages to files or anchors that do not exist.
fn broken_links(book: &Path) -> Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    for file in files_below(book)? {
        if file
            .extension()
            .is_some_and(|extension| extension == "html")
        {
            let text = fs::read_to_string(&file)?;
            pages.insert(file, text);
        }
    }
    ensure!(!pages.is_empty(), "{} has no pages", book.display());
    let mut broken = Vec::new();
    for (file, text) in &pages {
        if file.ends_with(UNCHECKED) {
            continue;
        }
        for link in attributes(text, "href").chain(attributes(text, "src")) {
            if !leads_somewhere(&pages, file, link) {
                let name = file.strip_prefix(book).unwrap_or(file);
                broken.push(format!("{}: {link}", name.display()));
            }
        }
    }
    Ok(broken)
}

/// The values of an attribute in a page.
fn attributes<'a>(page: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let begin = format!(" {name}=\"");
    let values: Vec<&str> = page
        .split(&begin)
        .skip(1)
        .filter_map(|rest| rest.split_once('"'))
        .map(|(value, _)| value)
        .collect();
    values.into_iter()
}

/// True if a link of a page leads out of the book, or to a file and an anchor that exist.
fn leads_somewhere(pages: &BTreeMap<PathBuf, String>, page: &Path, link: &str) -> bool {
    if link.contains(':') {
        return true;
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let path = destination(page, file);
    match pages.get(&path) {
        Some(text) => anchor.is_empty() || attributes(text, "id").any(|id| id == anchor),
        None => path.is_file(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_out_of_the_book_become_names() {
        let text = "[a](b.md#c) [d](../README.md) [e](../tests/f.toml), [g](https://h.org/) [i](README.md#j)";
        let expected = "[a](b.md#c) [d] (`README.md`) [e] (`tests/f.toml`), [g](https://h.org/) [i](index.md#j)";
        assert_eq!(page_of_book(Path::new("k.md"), text), expected);
        let summary = "[a](README.md)";
        assert_eq!(page_of_book(Path::new("SUMMARY.md"), summary), summary);
        let text = "[a](../b.md) [c](../../d.md)";
        let expected = "[a](../b.md) [c] (`d.md`)";
        assert_eq!(page_of_book(Path::new("decisions/1.md"), text), expected);
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let book = tempfile::tempdir().unwrap();
        let page = "<a href=\"b.html#x\"> <a href=\"b.html#y\"> <a href=\"c.html\"> <img src=\"d.svg\"> \
                    <a href=\"#z\"> <a href=\"https://e.org/\"> <p id=\"z\">";
        fs::write(book.path().join("a.html"), page).unwrap();
        fs::write(book.path().join("b.html"), "<p id=\"x\">").unwrap();
        fs::write(book.path().join("d.svg"), "").unwrap();
        let broken = broken_links(book.path()).unwrap();
        assert_eq!(broken, ["a.html: b.html#y", "a.html: c.html"]);
    }
}
