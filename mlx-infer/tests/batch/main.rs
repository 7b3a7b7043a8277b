//! Requests beside others: batches, the engine, classification.

#[path = "../model/checkpoint.rs"]
#[allow(dead_code, reason = "shared with the tests of single requests")]
mod checkpoint;

mod classify;
mod command;
mod engine;
mod independence;
mod poison;
mod scheduler;
mod schedules;
mod statistics;
