//! The emulator at its sockets: one program, which is linked once. Its tests share a process and run in parallel; those that cannot
//! are in `alone.rs` and `logged.rs`.

mod addresses;
mod back_pressure;
mod bursts;
mod capture;
mod check;
mod device_memory;
mod doorbell_pages;
mod dump;
mod durability;
mod engines;
mod flow_control;
mod held_clock;
mod hostile;
mod lifecycle;
mod live_rules;
mod malformed;
mod maps;
mod observed;
mod operator;
mod paging;
mod power;
mod presence;
mod python;
mod recording;
mod reset;
mod rss;
mod scenarios;
mod server;
mod stderr;
mod steering;
mod tags;
mod traced;
mod transport;
mod vlans;
mod wire;
