//! The processes that a process has started.

use std::fs;
use std::iter;

/// A process and its descendants. The children of each are looked up at the request for the next item. If the caller
/// changes each process at once, children that it starts later inherit the change.
pub fn with_descendants(process: i32) -> impl Iterator<Item = i32> {
    let mut left = vec![process];
    let mut last = None;
    iter::from_fn(move || {
        left.extend(last.into_iter().flat_map(children));
        last = left.pop();
        last
    })
}

/// The processes that a process has started.
pub fn children(process: i32) -> Vec<i32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else {
        return Vec::new();
    };
    let lists = tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let list = lists.collect::<Vec<_>>().join(" ");
    list.split_whitespace()
        .filter_map(|id| id.parse().ok())
        .collect()
}
