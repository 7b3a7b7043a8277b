//! Requests that are computed together: batches, the engine, classification.
#![cfg(feature = "cli")]

#[path = "../model/checkpoint.rs"]
#[allow(dead_code, reason = "shared with the tests of single requests")]
mod checkpoint;

mod adapters;
mod awaiting;
mod backlog;
mod classify;
mod command;
mod constrained;
mod draft_model;
mod drafted_schedules;
mod drafters;
mod endless;
mod engine;
mod grammar;
mod heads;
mod independence;
#[cfg(unix)]
mod interruption;
mod joins;
mod least;
mod poison;
mod prefix_dir;
mod prefixes;
mod processors;
mod quantized;
mod reasoning;
mod schedules;
mod shared;
mod speculation;
mod trained_head;
