//! The HTTP server: OpenAI's and Anthropic's APIs on one [`Engine`](crate::Engine).
//!
//! All requests share the engine's batch. A handler validates and tokenises on its own thread, submits, and turns the events of its
//! [`Handle`](crate::Handle) into JSON. A client that leaves drops the handle, which cancels the request.
//!
//! | file | has |
//! |---|---|
//! | `server`, `settings` | start, drain, end; the settings |
//! | `connection` | connections and the time that clients have |
//! | `http`, `guard`, `trace`, `error` | routes, access, the log line and metrics of a request, errors |
//! | `fields`, `params`, `edits` | a body's keys, and the options they make |
//! | `room` | how many bytes of long requests are under way |
//! | `choices`, `sse` | the events of a request's rows, and streams of server-sent events |
//! | `completions`, `chat`, … | one file a route |

mod chat;
mod choices;
mod chunks;
mod classify;
mod completions;
mod connection;
mod edits;
mod error;
mod fields;
mod grammar;
mod guard;
mod health;
mod http;
mod logprobs;
mod messages;
mod metrics;
mod models;
mod page;
mod params;
mod responses;
mod room;
mod server;
mod settings;
mod sse;
mod state;
mod systemone;
mod tokenize;
mod trace;
mod turn;

pub use self::server::{KeyRing, Server, Stopper};
pub use self::settings::ServeOptions;

/// The largest body of a request.
const MAX_BODY: usize = 8 << 20;
