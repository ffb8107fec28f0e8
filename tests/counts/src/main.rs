//! Work of the data path, one shape in each run, for `cargo lab bench --counts`.
//!
//! Engines without threads execute the work ([`faultline_daemon::engines::manual`]), on NICs with the doorbell pages and memory of the
//! product. The driver of simulated hosts posts it. Callgrind counts instructions in the functions `counted_pass` and `counted_look` only,
//! so the driver and the preparation are not counted. Without callgrind the program checks that the work is done.
//!
//! It has no clock, no thread and no random numbers, except for the seeds of the standard library's hash tables.

#![forbid(unsafe_code)]

#[cfg(test)]
mod delay;
mod fabric;
#[cfg(test)]
mod neighbour;
mod shapes;

use clap::Parser;

#[derive(Debug, Parser)]
#[command(about = "Executes work of the data path whose instructions are counted")]
struct Args {
    /// Print the names of all shapes, each with the work that it repeats
    #[arg(long)]
    list: bool,
    /// The shape to execute
    #[arg(required_unless_present = "list")]
    shape: Option<String>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let Some(name) = args.shape.filter(|_| !args.list) else {
        for shape in shapes::SHAPES {
            println!("{}\t{}", shape.name, shape.operation);
        }
        return Ok(());
    };
    let operations = shapes::run(&name)?;
    println!("{operations}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shape_does_its_work() {
        for shape in shapes::SHAPES {
            let operations =
                shapes::run(shape.name).unwrap_or_else(|e| panic!("{}: {e:#}", shape.name));
            assert!(operations > 0, "{}", shape.name);
        }
    }
}
