//! Callgrind's output, with names and positions in full.
//!
//! Counted is the code of the program itself. The C library differs from host to host, and callgrind counts each octet of
//! `rep movsb` as an instruction, so its code is left out; the octets that it copies and sets are estimated from its stores.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

/// Octets that a store of the C library's functions for memory writes, with the processor features that the lab leaves them
/// (SSE2). Shorter copies are made by one or two shorter stores.
const OCTETS_PER_STORE: u64 = 16;

/// What callgrind has counted.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Instructions of the program, by function.
    pub functions: BTreeMap<String, u64>,
    /// Misses of the first-level instruction cache, in the program.
    pub i1_misses: u64,
    /// Octets that the C library has copied or set for the program: an estimate.
    pub copied: u64,
    /// Instructions of the rest of the C library, such as its allocator.
    pub library: u64,
}

/// Columns of the costs.
struct Columns {
    instructions: usize,
    stores: usize,
    i1_misses: usize,
}

impl Columns {
    fn of(events: &str) -> Result<Self> {
        let names: Vec<&str> = events.split_whitespace().collect();
        let column = |name: &str| {
            let at = names.iter().position(|have| *have == name);
            at.with_context(|| format!("callgrind has not counted {name}"))
        };
        Ok(Self {
            instructions: column("Ir")?,
            stores: column("Dw")?,
            i1_misses: column("I1mr")?,
        })
    }
}

impl Profile {
    /// Reads the file. `program` is the path of the program that was counted.
    pub fn parse(text: &str, program: &str) -> Result<Self> {
        let events = text.lines().find_map(|line| line.strip_prefix("events: "));
        let columns = Columns::of(events.context("callgrind has written no events")?)?;
        let mut profile = Self::default();
        let (mut object, mut function) = ("", String::new());
        let (mut callee, mut callee_object) = ("", "");
        let mut is_call = false;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("ob=") {
                object = name;
            } else if let Some(name) = line.strip_prefix("fn=") {
                function = plain(name);
            } else if let Some(name) = line.strip_prefix("cfn=") {
                callee = name;
            } else if let Some(name) = line.strip_prefix("cob=") {
                callee_object = name;
            } else if line.starts_with("calls=") {
                // The number of calls includes those that were not counted.
                is_call = true;
            } else if line.starts_with(|c: char| c.is_ascii_digit()) {
                let costs: Vec<u64> = line
                    .split_whitespace()
                    .skip(1)
                    .map(str::parse)
                    .collect::<Result<_, _>>()
                    .with_context(|| format!("a line of costs: {line:?}"))?;
                let cost = |column: usize| costs.get(column).copied().unwrap_or(0);
                let is_call = std::mem::take(&mut is_call);
                if object == program && !is_call {
                    let own = profile.functions.entry(function.clone()).or_default();
                    *own += cost(columns.instructions);
                    profile.i1_misses += cost(columns.i1_misses);
                } else if object == program && callee_object.contains("/libc.so") {
                    // Costs of the call, with those of nested calls. The first one is that of the whole program.
                    if is_memory_function(callee) {
                        profile.copied += cost(columns.stores) * OCTETS_PER_STORE;
                    } else if !callee.starts_with("__libc_start") {
                        profile.library += cost(columns.instructions);
                    }
                }
                // Callgrind names the object of a callee only if it is not that of the caller.
                callee_object = "";
            }
        }
        profile
            .functions
            .retain(|_, instructions| *instructions > 0);
        Ok(profile)
    }

    /// Instructions of the program.
    pub fn instructions(&self) -> u64 {
        self.functions.values().sum()
    }
}

/// True for memcpy and its like. Their variants for a processor have names only where the debug symbols of the C library are
/// installed; everything else that a program calls in it has one.
fn is_memory_function(name: &str) -> bool {
    let has_name = name.contains("mem") && !name.contains("memalign");
    has_name || name.starts_with("0x") || name.starts_with("???")
}

/// The name of a function without the parts that differ between builds: the hash of its crate, or its own.
fn plain(name: &str) -> String {
    // Callgrind numbers recursive calls.
    let name = match name.rsplit_once('\'') {
        Some((name, number)) if number.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => name,
    };
    let is_hash = |text: &str| text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
    if let Some((path, hash)) = name.rsplit_once("::h")
        && is_hash(hash)
    {
        return path.to_owned();
    }
    let mut plain = String::with_capacity(name.len());
    let mut rest = name;
    while let Some((before, after)) = rest.split_once('[') {
        plain.push_str(before);
        match after.split_once(']') {
            Some((hash, after))
                if hash.bytes().all(|b| b.is_ascii_hexdigit()) && hash.len() > 8 =>
            {
                rest = after;
            }
            _ => {
                plain.push('[');
                rest = after;
            }
        }
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# callgrind format
positions: line
events: Ir Dr Dw I1mr D1mr
summary: 100 1 2 3

ob=/t/counts
fl=???
fn=(below main)
cob=/usr/lib/libc.so.6
cfn=__libc_start_main@@GLIBC_2.34
calls=1 0
0 1000 50 60

fn=counts::counted_pass::h0123456789abcdef
0 10 0 4 2
cfn=faultline::engine::pass
calls=5 0
0 90 1 2 1
cob=/usr/lib/libc.so.6
cfn=malloc
calls=3 0
0 30
fi=other.rs
0 7

fn=faultline::engine::pass
0 40 1 1 5
cob=/usr/lib/libc.so.6
cfn=0x00000000001604c0
calls=2 0
0 900 20 30

ob=/usr/lib/libc.so.6
fn=0x00000000001604c0
0 900 20 30 1
";

    #[test]
    fn instructions_of_the_program_are_counted_and_those_of_the_library_are_not() {
        let profile = Profile::parse(TEXT, "/t/counts").unwrap();
        let functions = [
            ("counts::counted_pass", 17),
            ("faultline::engine::pass", 40),
        ];
        assert_eq!(
            profile,
            Profile {
                functions: functions.map(|(name, n)| (name.to_owned(), n)).into(),
                i1_misses: 7,
                copied: 30 * 16,
                library: 30,
            }
        );
        assert_eq!(profile.instructions(), 57);
    }

    #[test]
    fn a_file_without_the_cache_is_refused() {
        let text = TEXT.replace("I1mr", "x");
        let error = Profile::parse(&text, "/t/counts").unwrap_err();
        assert_eq!(error.to_string(), "callgrind has not counted I1mr");
    }

    #[test]
    fn functions_for_memory_have_many_names() {
        for name in [
            "memcpy@GLIBC_2.2.5",
            "__memset_sse2_unaligned",
            "0x00000000001604c0",
        ] {
            assert!(is_memory_function(name), "{name}");
        }
        for name in ["malloc", "posix_memalign", "aligned_alloc", "write"] {
            assert!(!is_memory_function(name), "{name}");
        }
    }

    #[test]
    fn hashes_are_no_part_of_a_name() {
        assert_eq!(plain("a::b::h0123456789abcdef"), "a::b");
        assert_eq!(plain("a::hash"), "a::hash");
        assert_eq!(
            plain("a[0123456789abcdef]::<[u8; 4]>::f"),
            "a::<[u8; 4]>::f"
        );
        assert_eq!(plain("a::b'2"), "a::b");
        assert_eq!(plain("a<'_>::b"), "a<'_>::b");
    }
}
