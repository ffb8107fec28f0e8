//! Reports of KCSAN, the kernel's detector of data races, in the serial output of a guest.
//!
//! A report begins with a headline and ends with a line of equals signs. Between them are the stacks of both accesses, in
//! which functions of a module have its name in brackets. Reports of other detectors are not read here.

use std::collections::BTreeMap;

/// Part of the headline.
const HEADLINE: &str = "BUG: KCSAN: ";
/// Part of the last line.
const END: &str = "====================";
/// The text behind a function of the driver under test.
const DRIVER: &str = "[faultline]";

/// Data races between two functions of the kernel, and why a driver that calls one of them is not at fault.
const OF_KERNEL: [(&str, &str); 3] = [
    (
        "data-race in hrtimer_wakeup / schedule_hrtimeout_range_clock",
        "a sleeper (usleep_range) has set its state before it looks whether its timer has expired, so the wake-up is not lost",
    ),
    (
        "data-race in ktime_get_mono_fast_ns / timekeeping_update",
        "the reader repeats what a latch (seqcount_latch) shows it changing; Linux 6.13 tells KCSAN so",
    ),
    (
        "data-race in process_one_work / process_one_work",
        "a workqueue counts completed work (PWQ_STAT_COMPLETED) without its lock, for statistics",
    ),
];

/// True for the headline of a report.
pub fn is_headline(line: &str) -> bool {
    line.contains(HEADLINE)
}

/// True if a stack of the report names a function of the driver, and the race is not one of the kernel's own; `lines` begin with
/// the headline.
pub fn is_of_driver(lines: &[&str]) -> bool {
    let is_own = |line: &&str| {
        OF_KERNEL
            .iter()
            .any(|(race, _)| line.trim_end().ends_with(race))
    };
    if lines.first().is_some_and(is_own) {
        return false;
    }
    let report = lines.iter().take_while(|line| !line.contains(END));
    report.into_iter().any(|line| line.contains(DRIVER))
}

/// The races in which the driver has no part: the functions, and how often each was reported.
pub fn of_others(serial: &str) -> BTreeMap<String, usize> {
    let lines: Vec<&str> = serial.lines().collect();
    let mut races = BTreeMap::new();
    for (at, line) in lines.iter().enumerate() {
        if let Some((_, race)) = line.split_once(HEADLINE)
            && !is_of_driver(&lines[at..])
        {
            *races.entry(race.trim().to_owned()).or_default() += 1;
        }
    }
    races
}

/// The output without a report at its end that the kernel is still writing.
pub fn without_unfinished(serial: &str) -> &str {
    let Some(headline) = serial.rfind(HEADLINE) else {
        return serial;
    };
    let (before, report) = serial.split_at(headline);
    match report.contains(END) {
        true => serial,
        false => &serial[..before.rfind('\n').map_or(0, |end| end + 1)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_DRIVER: &str = "[ 9.1] ==================================================================\n\
        [ 9.1] BUG: KCSAN: data-race in rb_next / faultline_poll_cq [faultline]\n\
        [ 9.1] write to 0xffff88800d6a1c40 of 4 bytes by task 301 on cpu 1:\n\
        [ 9.1]  faultline_poll_cq+0x44/0x90 [faultline]\n\
        [ 9.1] ==================================================================\n";
    const OF_OTHERS: &str = "[ 9.2] ==================================================================\n\
        [ 9.2] BUG: KCSAN: data-race in tick_sched_timer / tick_nohz_next_event\n\
        [ 9.2] read to 0xffff88800d6a1c40 of 4 bytes by task 301 on cpu 1:\n\
        [ 9.2]  tick_nohz_next_event+0x44/0x90\n\
        [ 9.2] ==================================================================\n";

    #[test]
    fn reports_of_the_driver_are_distinguished_from_others() {
        let of_others = |serial: &str| of_others(serial).into_iter().collect::<Vec<_>>();
        assert_eq!(of_others(OF_DRIVER), []);
        let both = [OF_OTHERS, OF_DRIVER, OF_OTHERS].concat();
        let race = "data-race in tick_sched_timer / tick_nohz_next_event";
        assert_eq!(of_others(&both), [(race.to_owned(), 2)]);
    }

    /// A stack names the driver, even if the functions that access the value are of the kernel.
    #[test]
    fn a_caller_in_the_driver_counts() {
        let called = OF_OTHERS.replace(
            "tick_nohz_next_event+0x44/0x90\n",
            "tick_nohz_next_event+0x44/0x90\n[ 9.2]  faultline_reg_mr+0x4/0x9 [faultline]\n",
        );
        assert!(of_others(&called).is_empty());
    }

    /// Races of the kernel for which its caller is not at fault.
    #[test]
    fn races_of_the_kernel_are_not_the_drivers() {
        for (race, _) in OF_KERNEL {
            let (_, functions) = OF_DRIVER.split_once("data-race in ").unwrap();
            let (functions, _) = functions.split_once('\n').unwrap();
            let report = OF_DRIVER.replace(&format!("data-race in {functions}"), race);
            assert_eq!(of_others(&report).keys().collect::<Vec<_>>(), [race]);
            let longer = report.replace(race, &format!("{race}_more"));
            assert!(of_others(&longer).is_empty());
        }
    }

    #[test]
    fn a_report_is_read_when_it_is_complete() {
        for at in 0..OF_DRIVER.len() {
            let seen = without_unfinished(&OF_DRIVER[..at]);
            assert!(!seen.contains(HEADLINE) || seen.contains("faultline_poll_cq+"));
        }
        assert_eq!(without_unfinished(OF_DRIVER), OF_DRIVER);
        let unfinished = format!("{OF_OTHERS}[ 9.3] ok\n[ 9.4] BUG: KCSAN: data-race in a / b\n[");
        assert_eq!(
            without_unfinished(&unfinished),
            format!("{OF_OTHERS}[ 9.3] ok\n")
        );
    }
}
