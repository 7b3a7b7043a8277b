//! The HTTP server: OpenAI's, Anthropic's and Ollama's APIs on one [`Engine`](crate::Engine)
//! for each model.
//!
//! All requests for a model share its engine's batch. A handler validates and tokenises on its own thread,
//! submits, and turns the events of its [`Handle`](crate::Handle) into JSON. When a client
//! disconnects, the handler drops the handle, which cancels the request.
//!
//! | file | content |
//! |---|---|
//! | `server`, `state`, `settings` | start, drain, end; what handlers share; the settings |
//! | `pool`, `keep_alive` | which models are in memory, and which requests wait for one |
//! | `http` | connections, access, errors, the keys of a body, streams of events, metrics |
//! | `batches` | files of requests that are answered in the background |
//! | `routes` | the table of routes, and one file a route: it reads the body and writes the answer |
//! | `turn` | from a request's parameters to the events of its rows, and to the parts of its reply |

mod adapters;
mod batches;
mod http;
mod keep_alive;
mod pool;
mod routes;
mod server;
mod settings;
mod state;
mod turn;

pub use self::batches::offline::{BatchCounts, BatchFile};
pub use self::http::tls::TlsFiles;
pub use self::keep_alive::KeepAlive;
pub use self::pool::{PoolEvent, PoolOptions, PooledModel};
pub use self::server::{CertificateReader, KeyRing, Server, Stopper};
pub use self::settings::ServeOptions;

/// The largest body of a request.
const MAX_BODY: usize = 8 << 20;
