//! Text generation on MLX: the library and the mlx-infer command
#![forbid(unsafe_code)]

pub mod chat;
mod detokenize;
mod error;
mod files;
mod stop;
mod tokenizer;

pub use chat::{ChatTemplate, Message, RenderOptions};
pub use detokenize::Detokenizer;
pub use error::{Error, ErrorKind, Result};
pub use files::Files;
pub use stop::StopStrings;
pub use tokenizer::Tokenizer;
