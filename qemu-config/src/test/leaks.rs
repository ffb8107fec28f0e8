//! Leaks that a debug kernel reports when its guests end.

use std::time::{Duration, Instant};

use super::pair::{Pair, Pairs};
use super::tally::{Tally, Verdict};
use crate::image::Kernel;

/// Ends the pair that is kept if its kernel can report leaks; the report is a test of `label`.
pub fn leave_without(pairs: &mut Pairs<'_>, label: &str, tally: &mut Tally) {
    if let Some(pair) = pairs.kept()
        && pair.cluster.plan.kernel == Kernel::Debug
    {
        look_for_leaks(pair, label, tally);
        pairs.leave();
    }
}

/// Requests the leaks from the debug kernels of a pair, as a test of its own.
fn look_for_leaks(pair: &mut Pair, prefix: &str, tally: &mut Tally) {
    let started = Instant::now();
    let mut found = String::new();
    for guest in &pair.cluster.guests {
        match guest.run("look_for_leaks", Duration::from_secs(300)) {
            Ok(outcome) if outcome.success() => found.push_str(&outcome.text()),
            Ok(outcome) => found.push_str(&format!("kmemleak: {}", outcome.describe())),
            Err(error) => found.push_str(&format!("{error:#}")),
        }
    }
    found.push_str(&pair.troubles(prefix).join("\n"));
    let verdict = match found.is_empty() {
        true => Verdict::Passed,
        false => Verdict::Failed(found),
    };
    tally.add(&format!("{prefix}::leaks"), started.elapsed(), verdict);
}
