//! The example of two NICs in one process has the output of the tutorial.

#[expect(dead_code, reason = "`main` is called by cargo only")]
#[path = "../examples/loopback.rs"]
mod example;

const TUTORIAL: &str = include_str!("../../../docs/tutorial.md");

#[test]
fn the_tutorial_shows_the_output_of_the_example() {
    let story = example::story().unwrap();
    assert!(story.len() > 10, "{story:?}");
    let shown: Vec<&str> = TUTORIAL
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .filter(|line| line.trim_start().split_once(" us  ").is_some())
        .collect();
    assert_eq!(shown, story);
}
