//! Chat templates turn a conversation into the text form that a model was trained on.
//!
//! A checkpoint's own template is rendered as transformers renders it (jinja2's sandbox with
//! `trim_blocks`, `lstrip_blocks` and loop controls), to the byte. For a checkpoint without a
//! template, the built-in template of its family is used, if the family has one published form
//! ([`ChatTemplate::load`]).

mod fallback;
mod history;
mod load;
mod message;
mod prompt;
pub mod reply;
mod template;
mod tools;

#[cfg(feature = "serve")]
pub(crate) use self::history::{check_call, content_text};
pub use self::history::{merge_system, prepare};
pub(crate) use self::load::own as own_templates;
pub use self::message::Message;
pub use self::prompt::prompt_text;
#[cfg(feature = "serve")]
pub(crate) use self::template::RESERVED;
pub use self::template::{ChatTemplate, RenderOptions};
