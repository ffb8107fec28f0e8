//! The tables of `docs/compatibility.md`, and the declarations of C headers that they must have.
//!
//! A section names in its heading the structures and enumerations that its rows are about: the operations of a
//! structure (its fields, if it has no operations) or the names of an enumeration. It may be about several, and
//! they may differ between headers: then all names of all of them count.

use std::collections::{BTreeMap, BTreeSet};

/// Enumerations whose names begin so must stand in a heading or be listed as left out.
const ALL_OF: &str = "enum ibv_";
/// The heading of the section of those that are left out.
const LEFT_OUT: &str = "Left out";

/// What becomes of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It works, and a test shows it.
    Yes,
    /// It works with a restriction, or not all of it has a test; the note says which.
    Partly,
    /// It is refused, or never happens.
    No,
    /// There is nothing to do or to refuse: a name that is reserved, or the work of others.
    Nothing,
}

/// A line of a table: one name, or several with the same description.
#[derive(Debug)]
pub struct Row {
    /// What it is about.
    pub names: Vec<String>,
    /// What becomes of it.
    pub answer: Answer,
    /// Tests, or why not.
    pub note: String,
}

/// A section of the document.
#[derive(Debug)]
pub struct Section {
    /// Its heading.
    pub heading: String,
    /// Its table.
    pub rows: Vec<Row>,
}

impl Section {
    /// The structures and enumerations of the heading, as `struct x` or `enum x`.
    pub fn types(&self) -> Vec<&str> {
        quoted(&self.heading)
            .into_iter()
            .filter(|word| word.starts_with("struct ") || word.starts_with("enum "))
            .collect()
    }

    fn names(&self) -> impl Iterator<Item = &String> {
        self.rows.iter().flat_map(|row| &row.names)
    }
}

/// What stands between backquotes.
pub fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The sections of the document that have a table.
pub fn sections(document: &str) -> Result<Vec<Section>, String> {
    let mut sections = Vec::new();
    for text in document.split("\n## ").skip(1) {
        let (heading, body) = text.split_once('\n').unwrap_or((text, ""));
        let lines = body.lines().filter(|line| line.starts_with("| `"));
        let rows = lines.map(row).collect::<Result<_, _>>()?;
        let section = Section {
            heading: heading.to_owned(),
            rows,
        };
        let mut seen = BTreeSet::new();
        for name in section.names() {
            if !seen.insert(name) {
                return Err(format!("{heading}: {name} is there twice"));
            }
        }
        sections.push(section);
    }
    Ok(sections)
}

fn row(line: &str) -> Result<Row, String> {
    let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
    let [names, answer, note] = cells[..] else {
        return Err(format!("not three cells: {line}"));
    };
    let answer = match answer {
        "yes" => Answer::Yes,
        "partly" => Answer::Partly,
        "no" => Answer::No,
        "—" => Answer::Nothing,
        _ => return Err(format!("yes, partly, no or —? {line}")),
    };
    if note.is_empty() {
        return Err(format!("neither test nor reason: {line}"));
    }
    Ok(Row {
        names: quoted(names).into_iter().map(str::to_owned).collect(),
        answer,
        note: note.to_owned(),
    })
}

/// Names by structure or enumeration.
pub type Declarations = BTreeMap<String, BTreeSet<String>>;

/// Adds the declarations of a header to those of others.
pub fn declare(declarations: &mut Declarations, header: &str) {
    let text = without_comments_and_directives(header);
    for keyword in ["enum", "struct"] {
        for (at, _) in text.match_indices(keyword) {
            let starts = !text[..at].ends_with(is_name);
            let rest = &text[at + keyword.len()..];
            let Some((name, body)) = rest.split_once('{') else {
                continue;
            };
            let name = name.trim();
            if !starts || name.is_empty() || !name.chars().all(is_name) {
                continue;
            }
            let body = until_closed(body);
            let names = match keyword {
                "enum" => enumerators(body),
                _ => members(body),
            };
            let all = declarations.entry(format!("{keyword} {name}"));
            all.or_default().extend(names);
        }
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn without_comments_and_directives(header: &str) -> String {
    let mut text = String::with_capacity(header.len());
    let mut rest = header;
    while let Some((before, comment)) = rest.split_once("/*") {
        text.push_str(before);
        text.push(' ');
        rest = comment.split_once("*/").map_or("", |(_, after)| after);
    }
    text.push_str(rest);
    let text = text.replace("\\\n", " ");
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .map(|line| line.split_once("//").map_or(line, |(code, _)| code));
    lines.collect::<Vec<_>>().join("\n")
}

/// The text up to the brace that closes it.
fn until_closed(text: &str) -> &str {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => return &text[..at],
            '}' => depth -= 1,
            _ => {}
        }
    }
    text
}

fn enumerators(body: &str) -> Vec<String> {
    body.split(',')
        .map(|part| part.trim().chars().take_while(|c| is_name(*c)).collect())
        .filter(|name: &String| !name.is_empty())
        .collect()
}

/// The operations of a structure, or its fields if it has none.
fn members(body: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut depth = 0;
    for c in body.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        match (c, depth) {
            (';', 0) => parts.push(String::new()),
            _ => parts.last_mut().expect("one part").push(c),
        }
    }
    let operations: Vec<String> = parts.iter().filter_map(|part| operation(part)).collect();
    if !operations.is_empty() {
        return operations;
    }
    parts.iter().filter_map(|part| field(part)).collect()
}

/// The name in `type (*name)(…)`.
fn operation(declaration: &str) -> Option<String> {
    let (_, rest) = declaration.split_once('(')?;
    let name = rest.trim_start().strip_prefix('*')?.trim_start();
    let length = name.find(|c| !is_name(c))?;
    let (name, rest) = name.split_at(length);
    rest.trim_start()
        .starts_with(')')
        .then(|| name.to_owned())
        .filter(|name| !name.is_empty())
}

fn field(declaration: &str) -> Option<String> {
    let name = declaration
        .split('[')
        .next()
        .unwrap_or_default()
        .trim_end()
        .rsplit(|c| !is_name(c))
        .next()?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// Rows that the document lacks, and names in it that no header declares.
pub fn differences(sections: &[Section], declarations: &Declarations) -> Vec<String> {
    let mut found = Vec::new();
    let mut spoken_of: BTreeSet<&str> = BTreeSet::new();
    for section in sections {
        let heading = &section.heading;
        if heading.starts_with(LEFT_OUT) {
            spoken_of.extend(section.names().map(String::as_str));
            let gone = section
                .names()
                .filter(|name| !declarations.contains_key(*name));
            found.extend(gone.map(|name| format!("{heading}: no header has {name}")));
            continue;
        }
        let types = section.types();
        if types.is_empty() {
            found.push(format!("{heading}: names no structure or enumeration"));
        }
        spoken_of.extend(&types);
        let mut declared = BTreeSet::new();
        for name in types {
            match declarations.get(name) {
                Some(names) => declared.extend(names),
                None => found.push(format!("{heading}: no header has {name}")),
            }
        }
        let named: BTreeSet<&String> = section.names().collect();
        let missing = declared.difference(&named);
        found.extend(missing.map(|name| format!("{heading}: there is no row for {name}")));
        let gone = named.difference(&declared);
        found.extend(gone.map(|name| format!("{heading}: no header has {name}")));
    }
    let all = declarations.keys().filter(|name| name.starts_with(ALL_OF));
    let silent = all.filter(|name| !spoken_of.contains(name.as_str()));
    found.extend(silent.map(|name| format!("{name}: neither a section nor left out")));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "
#define BROKEN enum ibv_color { \\
        IBV_NOT_THIS }
/* enum ibv_nothing { IBV_NOTHING }; */
enum ibv_color {
	IBV_RED		= 1 << 0, // enum ibv_pale { IBV_PINK };
	/* one, two */
	IBV_GREEN	= (IBV_RED << 1) | OTHER(3),
	IBV_BLUE = IBV_GREEN
};
struct my_ops {
	struct module *owner;
	struct net *(*open)(struct dev *dev, enum ibv_color color,
			    void (*setup)(struct net *));
#ifdef CONFIG_SHUT
	void	( * shut ) (struct dev *dev);
#endif
	DECLARE_SIZE(ib_ah);
};
struct caps {
	char name[64];
	struct { int inner; } nested;
	enum ibv_color color;
};
enum ibv_color paint(enum ibv_color color);
";

    const DOCUMENT: &str = "# Title

## Colors: `enum ibv_color`

| Name | | Why |
|---|---|---|
| `IBV_BLUE` | yes | `lab::x` |
| `IBV_GREEN`, `IBV_RED` | no | why not |

## Operations: `struct my_ops` of the kernel

| `open` | yes | `lab::x` |
| `shut` | — | nobody calls it |

## Fields: `struct caps`

| `color`, `name`, `nested` | yes | `lab::x` |
";

    fn compare(document: &str, headers: &[&str]) -> Vec<String> {
        let mut declarations = Declarations::new();
        for header in headers {
            declare(&mut declarations, header);
        }
        differences(&sections(document).unwrap(), &declarations)
    }

    #[test]
    fn a_document_that_has_everything_is_right() {
        assert_eq!(compare(DOCUMENT, &[HEADER]), Vec::<String>::new());
    }

    #[test]
    fn omissions_are_named() {
        let without = DOCUMENT.replace("`IBV_GREEN`, ", "");
        assert_eq!(
            compare(&without, &[HEADER]),
            ["Colors: `enum ibv_color`: there is no row for IBV_GREEN"]
        );
        let without = DOCUMENT.replace("| `shut` | — | nobody calls it |\n", "");
        assert_eq!(
            compare(&without, &[HEADER]),
            ["Operations: `struct my_ops` of the kernel: there is no row for shut"]
        );
    }

    #[test]
    fn names_that_no_header_has_are_reported() {
        let more = DOCUMENT.replace("`IBV_BLUE`", "`IBV_BLUE`, `IBV_GRAY`");
        assert_eq!(
            compare(&more, &[HEADER]),
            ["Colors: `enum ibv_color`: no header has IBV_GRAY"]
        );
        let found = compare(DOCUMENT, &[]);
        assert_eq!(
            found[0],
            "Colors: `enum ibv_color`: no header has enum ibv_color"
        );
    }

    #[test]
    fn names_of_all_headers_count() {
        let newer = HEADER.replace("IBV_BLUE =", "IBV_VIOLET, IBV_BLUE =");
        assert_eq!(
            compare(DOCUMENT, &[HEADER, &newer]),
            ["Colors: `enum ibv_color`: there is no row for IBV_VIOLET"]
        );
    }

    #[test]
    fn every_enumeration_of_the_library_has_a_section_or_is_left_out() {
        let header =
            format!("{HEADER}\nenum ibv_shape {{ IBV_ROUND }};\nenum ib_own {{ IB_OWN }};");
        assert_eq!(
            compare(DOCUMENT, &[&header]),
            ["enum ibv_shape: neither a section nor left out"]
        );
        let document =
            format!("{DOCUMENT}\n## Left out\n\n| `enum ibv_shape` | — | only round |\n");
        assert_eq!(compare(&document, &[&header]), Vec::<String>::new());
        assert_eq!(
            compare(&document, &[HEADER]),
            ["Left out: no header has enum ibv_shape"]
        );
    }

    #[test]
    fn rows_must_be_whole() {
        for bad in [
            "\n## A\n| `a` | maybe | why |",
            "\n## A\n| `a` | no | |",
            "\n## A\n| `a` | no |",
            "\n## A\n| `a` | no | why |\n| `b`, `a` | no | why |",
        ] {
            assert!(sections(bad).is_err(), "{bad}");
        }
    }
}
