//! The HTTP server: its answers equal the library's, its errors have the form of their API, and a
//! client that disconnects frees its rows.
#![cfg(all(feature = "serve", feature = "cli"))]

mod adapters;
mod agents;
mod answers;
#[cfg(unix)]
mod backend;
mod background;
#[cfg(unix)]
mod batch_models;
mod batches;
mod budget;
mod client;
mod clients;
mod contract;
mod custom;
mod embeddings;
mod faults;
mod forms;
mod fuzz;
mod ids;
mod infill;
mod lifecycle;
mod loading;
mod messages;
#[cfg(unix)]
mod models;
mod namespaces;
mod ollama;
mod openapi;
#[cfg(unix)]
mod operations;
mod page;
mod parameters;
mod peers;
mod pool;
mod process;
mod refusals;
#[cfg(unix)]
mod replicas;
mod responses;
mod samplers;
mod scripted;
#[path = "../embed/cases.rs"]
#[allow(dead_code, reason = "the file is that of another test")]
mod sentence;
mod slow;
mod soak;
#[cfg(feature = "otel")]
mod spans;
mod streams;
mod structured;
mod systemone;
