//! The HTTP server: answers equal the library's, errors have their shape, clients that leave free their rows.
#![cfg(feature = "serve")]

mod answers;
#[cfg(unix)]
mod backend;
mod client;
mod clients;
mod fuzz;
mod lifecycle;
mod messages;
mod page;
mod refusals;
mod responses;
mod slow;
mod soak;
mod streams;
mod structured;
mod systemone;
