//! Circles of source files: files of one crate that use each other, directly or through others.
//!
//! A file uses another if it has a path (`crate::…`, `super::…`, `self::…`, or one that begins with a module that it declares)
//! to an item of that file. A re-export is followed to the file that defines the item, and is itself no use. The roots
//! (`lib.rs`, `main.rs`), which only declare modules and re-export, take no part. Test modules (`#[cfg(test)] mod`) are ignored.
//!
//! [`method_uses`] adds methods of a type whose `impl` blocks are in several files: a file uses another if it calls a method on `self` that
//! the other defines for the same type. Calls on other values are not seen.

use std::collections::{BTreeMap, BTreeSet};

/// Path of a module below its crate.
type Module = Vec<String>;

/// Names by a pair of files: the first uses them, the second defines them.
pub type Uses = BTreeMap<(String, String), BTreeSet<String>>;

/// A source file: its path below `src`, and its text.
pub type Source = (String, String);

struct File {
    name: String,
    module: Module,
    /// Types that it declares.
    types: BTreeSet<String>,
    impls: Vec<Impl>,
    /// Paths with the name under which a re-export makes them known, if it is one.
    paths: Vec<(Module, bool)>,
}

/// An `impl` block.
struct Impl {
    /// The type, by its last name.
    of: String,
    /// Its functions; none if it implements a trait.
    defines: BTreeSet<String>,
    /// Names of functions that it calls on `self`, `Self` or the type.
    calls: BTreeSet<String>,
}

impl Impl {
    /// The block whose header and body begin at these words, behind `impl`.
    fn new(words: &[&str]) -> Option<Self> {
        let open = words.iter().position(|word| *word == "{")?;
        let (header, body) = words.split_at(open);
        let mut header = header.split(|word| *word == "where").next()?;
        header = header.get(generics(header)..)?;
        let of_trait = header.iter().position(|word| *word == "for");
        let (header, is_trait) = match of_trait {
            Some(at) => (header.get(at + 1..)?, true),
            None => (header, false),
        };
        let path = header.iter().take_while(|word| **word != "<");
        let of = path.filter(|word| is_name(word)).last()?;
        let mut block = Self {
            of: (*of).to_owned(),
            defines: BTreeSet::new(),
            calls: BTreeSet::new(),
        };
        let mut depth = 0;
        for (at, word) in body.iter().enumerate() {
            match *word {
                "{" => depth += 1,
                "}" if depth == 1 => break,
                "}" => depth -= 1,
                "fn" if depth == 1 && !is_trait => {
                    let name = body.get(at + 1)?;
                    block.defines.insert((*name).to_owned());
                }
                "self" if body.get(at + 1) == Some(&".") => {
                    let is_call = matches!(body.get(at + 3), Some(&"(" | &"::"));
                    let name = body.get(at + 2).filter(|_| is_call);
                    block.calls.extend(name.map(|name| (*name).to_owned()));
                }
                word if (word == "Self" || word == *of) && body.get(at + 1) == Some(&"::") => {
                    let name = body.get(at + 2);
                    block.calls.extend(name.map(|name| (*name).to_owned()));
                }
                _ => {}
            }
        }
        Some(block)
    }
}

/// The `impl` blocks of a file.
fn impls(words: &[&str]) -> Vec<Impl> {
    let begins = |at: usize| {
        let before = at.checked_sub(1).and_then(|before| words.get(before));
        matches!(before, None | Some(&"}" | &";" | &"]" | &"{" | &"unsafe"))
    };
    let at = (0..words.len()).filter(|at| words[*at] == "impl" && begins(*at));
    at.filter_map(|at| Impl::new(&words[at + 1..])).collect()
}

/// Number of the words of the generic parameters with which these words begin.
fn generics(words: &[&str]) -> usize {
    let mut depth = 0;
    for (at, word) in words.iter().enumerate() {
        match *word {
            "<" => depth += 1,
            ">" if at == 0 || words[at - 1] != "-" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return if at == 0 { 0 } else { at + 1 };
        }
    }
    0
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

impl File {
    fn new(name: &str, text: &str) -> Self {
        let text = code(text);
        let module = module_of(name);
        let words = words(&text);
        let children: BTreeSet<&str> = words
            .windows(3)
            .filter(|part| part[0] == "mod" && part[2] == ";")
            .map(|part| part[1])
            .collect();
        let mut paths = Vec::new();
        let mut re_exports = false;
        for (at, word) in words.iter().enumerate() {
            match *word {
                "use" => re_exports = at > 0 && matches!(words[at - 1], "pub" | ")"),
                ";" => re_exports = false,
                _ => {}
            }
            let begins = words.get(at + 1) == Some(&"::")
                && (at == 0 || !matches!(words[at - 1], "::" | "$"));
            let start = match *word {
                "crate" => Vec::new(),
                "self" => module.clone(),
                "super" => parent(&module),
                child if children.contains(child) => {
                    let mut start = module.clone();
                    start.push(child.to_owned());
                    start
                }
                _ => continue,
            };
            if begins {
                let mut found = Vec::new();
                tree(&words[at + 1..], start, &mut found);
                paths.extend(found.into_iter().map(|path| (path, re_exports)));
            }
        }
        let declared = words
            .windows(2)
            .filter(|pair| matches!(pair[0], "struct" | "enum" | "union"));
        Self {
            name: name.to_owned(),
            module,
            types: declared.map(|pair| pair[1].to_owned()).collect(),
            impls: impls(&words),
            paths,
        }
    }

    fn is_root(&self) -> bool {
        self.module.is_empty()
    }
}

fn parent(module: &Module) -> Module {
    let mut parent = module.clone();
    parent.pop();
    parent
}

fn module_of(name: &str) -> Module {
    let path = name.trim_end_matches(".rs");
    let mut module: Module = path.split('/').map(str::to_owned).collect();
    if matches!(module.last().map(String::as_str), Some("mod")) {
        module.pop();
    }
    if matches!(path, "lib" | "main") {
        module.clear();
    }
    module
}

/// The text without comments, without its tests, and without the paths of visibilities.
fn code(text: &str) -> String {
    let text = text
        .split_once("#[cfg(test)]\nmod ")
        .map_or(text, |(code, _)| code);
    let code = without_texts(text);
    let mut parts = code.split("pub(in ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |code, part| {
        code + "pub" + part.split_once(')').map_or("", |(_, rest)| rest)
    })
}

/// The text without comments, and with empty strings and characters.
fn without_texts(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let after = &rest[first.len_utf8()..];
        let hashes = after.len() - after.trim_start_matches('#').len();
        let is_raw = first == 'r'
            && after[hashes..].starts_with('"')
            && !code.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if is_raw {
            let end = format!("\"{}", "#".repeat(hashes));
            let body = hashes + 2;
            rest[body..]
                .find(&end)
                .map_or(rest.len(), |at| body + at + end.len())
        } else if first == '"' || first == '\'' && is_character(after) {
            quoted(after, first) + 1
        } else {
            code.push(first);
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    code
}

/// True if a character, and not a lifetime, is behind this quotation mark.
fn is_character(after: &str) -> bool {
    let mut chars = after.chars();
    chars.next() == Some('\\') || chars.next() == Some('\'')
}

/// Bytes up to the end of a string or character, with its last quotation mark.
fn quoted(text: &str, mark: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices() {
        if c == mark && !is_escaped {
            return at + c.len_utf8();
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    text.len()
}

/// Names, `::`, and single other characters.
fn words(text: &str) -> Vec<&str> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if is_name(first) {
            rest.find(|c| !is_name(c)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        let (word, after) = rest.split_at(length);
        words.push(word);
        rest = after.trim_start();
    }
    words
}

/// Adds the paths that go on from `path`, where `words` begins behind it; returns how many words they take.
fn tree(words: &[&str], mut path: Module, found: &mut Vec<Module>) -> usize {
    let mut at = 0;
    while words.get(at) == Some(&"::") {
        match words.get(at + 1) {
            Some(&"{") => {
                at += 2;
                while let Some(word) = words.get(at).filter(|word| **word != "}") {
                    if *word == "," {
                        at += 1;
                        continue;
                    }
                    let mut inner = path.clone();
                    if *word != "self" {
                        inner.push((*word).to_owned());
                    }
                    at += 1;
                    at += tree(&words[at..], inner, found);
                    // `as` and the other name.
                    if words.get(at) == Some(&"as") {
                        at += 2;
                    }
                }
                return at + 1;
            }
            Some(&"super") => {
                path.pop();
                at += 2;
            }
            Some(name) if name.starts_with(|c: char| c.is_alphabetic() || c == '_') => {
                path.push((*name).to_owned());
                at += 2;
            }
            _ => break,
        }
    }
    found.push(path);
    at
}

/// The file that defines the object of a path, and its name.
fn definition<'a>(files: &'a [File], path: &[String], depth: usize) -> Option<(&'a File, String)> {
    let mut longest: Option<&File> = None;
    for length in 0..=path.len() {
        let found = files.iter().find(|file| file.module == path[..length]);
        longest = found.or(longest);
    }
    let file = longest?;
    let rest = path.get(file.module.len()..).unwrap_or_default();
    let Some(name) = rest.first() else {
        let name = path.last().cloned().unwrap_or_default();
        return Some((file, name));
    };
    let re_export = file
        .paths
        .iter()
        .find(|(path, re_exports)| *re_exports && path.last() == Some(name));
    match re_export {
        Some((path, _)) if depth > 0 => definition(files, path, depth - 1),
        _ => Some((file, name.clone())),
    }
}

fn files_of(sources: &[Source]) -> Vec<File> {
    let files = sources.iter();
    files.map(|(name, text)| File::new(name, text)).collect()
}

/// The file that declares a type which another file names.
fn declaration<'a>(files: &'a [File], user: &'a File, name: &str) -> Option<&'a File> {
    if user.types.contains(name) {
        return Some(user);
    }
    let mut paths = user.paths.iter().map(|(path, _)| path);
    if let Some(path) = paths.find(|path| path.last().is_some_and(|last| last == name)) {
        return definition(files, path, 4).map(|(file, _)| file);
    }
    let mut declaring = files.iter().filter(|file| file.types.contains(name));
    declaring.next().filter(|_| declaring.next().is_none())
}

/// Pairs of files: the first calls methods that the second defines, for a type with `impl` blocks in both.
pub fn method_uses(sources: &[Source]) -> Uses {
    let files = files_of(sources);
    let mut blocks = Vec::new();
    for file in &files {
        for block in &file.impls {
            if let Some(declaring) = declaration(&files, file, &block.of) {
                blocks.push((file, (&declaring.name, &block.of), block));
            }
        }
    }
    let mut uses = Uses::new();
    for (user, of, calling) in &blocks {
        let others = blocks.iter().filter(|(file, other, _)| {
            other == of && file.name != user.name && !file.is_root() && !user.is_root()
        });
        for (used, _, defining) in others {
            for name in calling.calls.intersection(&defining.defines) {
                let pair = (user.name.clone(), used.name.clone());
                let name = format!("{}::{name}", calling.of);
                uses.entry(pair).or_default().insert(name);
            }
        }
    }
    uses
}

/// Uses of one file of a crate by another, with the used names.
pub fn uses(sources: &[Source]) -> Uses {
    let files = files_of(sources);
    let mut uses = Uses::new();
    for file in files.iter().filter(|file| !file.is_root()) {
        for (path, _) in file.paths.iter().filter(|(_, re_exports)| !re_exports) {
            if let Some((target, name)) = definition(&files, path, 4)
                && !target.is_root()
                && target.name != file.name
            {
                let pair = (file.name.clone(), target.name.clone());
                uses.entry(pair).or_default().insert(name);
            }
        }
    }
    uses
}

/// The files that one file uses, directly or through others.
fn reached<'a>(uses: &'a Uses, from: &'a str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut pending = vec![from];
    while let Some(file) = pending.pop() {
        let next = uses.keys().filter(|(user, _)| user == file);
        pending.extend(
            next.filter_map(|(_, used)| reached.insert(used.as_str()).then_some(used.as_str())),
        );
    }
    reached
}

/// The uses that are part of a circle.
pub fn circles(uses: &Uses) -> Uses {
    let in_circle = |(user, used): &(String, String)| reached(uses, used).contains(user.as_str());
    uses.iter()
        .filter(|(pair, _)| in_circle(pair))
        .map(|(pair, names)| (pair.clone(), names.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree_of(sources: &[(&str, &str)]) -> Vec<Source> {
        let owned = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
        sources.iter().map(owned).collect()
    }

    #[track_caller]
    fn found(sources: &[(&str, &str)]) -> Vec<String> {
        circles(&uses(&tree_of(sources)))
            .iter()
            .map(|((user, used), names)| {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                format!("{user} -> {used}: {}", names.join(", "))
            })
            .collect()
    }

    #[test]
    fn a_circle_is_found_with_the_names_that_cause_it() {
        assert_eq!(
            found(&[
                ("lib.rs", "mod a; mod b; mod c; mod d;"),
                (
                    "a.rs",
                    "use crate::b::{Bee, Buzz as B};\nuse crate::d::Dee;"
                ),
                ("b.rs", "fn f() -> crate::c::Sea { todo() }"),
                ("c.rs", "use super::a;\nfn g(x: a::Aye) {}"),
                ("d.rs", "struct Dee;"),
            ]),
            [
                "a.rs -> b.rs: Bee, Buzz",
                "b.rs -> c.rs: Sea",
                "c.rs -> a.rs: a"
            ]
        );
    }

    #[test]
    fn a_re_export_is_followed_to_the_definition() {
        assert_eq!(
            found(&[
                ("lib.rs", "mod a; mod b;\npub use a::Aye;\npub use b::Bee;"),
                ("a.rs", "use crate::Bee;"),
                ("b.rs", "use crate::Aye;"),
            ]),
            ["a.rs -> b.rs: Bee", "b.rs -> a.rs: Aye"]
        );
    }

    #[test]
    fn a_folder_and_its_files_make_a_circle_if_they_use_each_other() {
        assert_eq!(
            found(&[
                ("lib.rs", "mod qp;"),
                (
                    "qp/mod.rs",
                    "mod send;\nuse send::Sender;\npub struct Qp(Sender);"
                ),
                ("qp/send.rs", "use super::Qp;\nuse super::super::qp::Other;"),
            ]),
            [
                "qp/mod.rs -> qp/send.rs: Sender",
                "qp/send.rs -> qp/mod.rs: Other, Qp"
            ]
        );
        assert_eq!(
            found(&[
                ("lib.rs", "mod qp;"),
                (
                    "qp/mod.rs",
                    "mod send;\nmod state;\npub(crate) use send::Sender;\npub use state::State;"
                ),
                ("qp/send.rs", "use super::State;"),
                ("qp/state.rs", "pub enum State {}"),
            ]),
            Vec::<String>::new()
        );
    }

    #[test]
    fn methods_of_a_type_in_several_files_can_make_a_circle() {
        let sources = tree_of(&[
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            (
                "a.rs",
                "pub struct Aye<T>(T);\nimpl<T: Fn() -> u8> Aye<T> {\n fn one(&self) { self.two(\"}\", '{') }\n fn four(&self) {}\n}",
            ),
            (
                "b.rs",
                "use crate::a::Aye;\nimpl<T> Aye<T> {\n fn two(&self) { Self::four(self); self.field; }\n fn field() {}\n}",
            ),
            (
                "c.rs",
                "use crate::a::Aye;\nimpl<T> Drop for Aye<T> where T: Copy {\n fn drop(&mut self) { self.two() }\n}",
            ),
            // Another type of this name.
            (
                "d.rs",
                "struct Aye;\nimpl Aye { fn one(&self) { self.two() } }",
            ),
        ]);
        let found: Vec<String> = method_uses(&sources)
            .iter()
            .map(|((user, used), names)| format!("{user} -> {used}: {names:?}"))
            .collect();
        assert_eq!(
            found,
            [
                "a.rs -> b.rs: {\"Aye::two\"}",
                "b.rs -> a.rs: {\"Aye::four\"}",
                "c.rs -> b.rs: {\"Aye::two\"}"
            ]
        );
    }

    #[test]
    fn texts_are_no_code() {
        assert_eq!(
            without_texts("a(\"{\\\"}\", r#\"\"{\"#, '\\'', '{', &'a b) // {\nc"),
            "a(, , , , &'a b) \nc"
        );
    }

    #[test]
    fn visibilities_do_not_count() {
        assert_eq!(
            found(&[
                ("lib.rs", "mod a; mod b;"),
                ("a.rs", "use crate::b::Bee;"),
                (
                    "b.rs",
                    "pub(in crate::a) struct Bee;\npub(in crate::a) fn bee() {}"
                ),
            ]),
            Vec::<String>::new()
        );
    }

    #[test]
    fn comments_and_tests_do_not_count() {
        assert_eq!(
            found(&[
                ("lib.rs", "mod a; mod b;"),
                ("a.rs", "use crate::b::Bee;"),
                (
                    "b.rs",
                    "// See crate::a::Aye.\n#[cfg(test)]\nmod tests {\n use crate::a::Aye;\n}\n"
                ),
            ]),
            Vec::<String>::new()
        );
    }
}
