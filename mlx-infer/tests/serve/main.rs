//! The HTTP server: its answers equal the library's, its errors have the form of their API, and a
//! client that disconnects frees its rows.
#![cfg(all(feature = "serve", feature = "cli"))]

mod answers;
#[cfg(unix)]
mod backend;
mod budget;
mod client;
mod clients;
mod contract;
mod custom;
mod faults;
mod forms;
mod fuzz;
mod ids;
mod infill;
mod lifecycle;
mod messages;
mod page;
mod parameters;
mod peers;
mod process;
mod refusals;
mod responses;
mod samplers;
mod scripted;
mod slow;
mod soak;
mod streams;
mod structured;
mod systemone;
