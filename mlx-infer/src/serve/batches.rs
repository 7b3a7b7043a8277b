//! Batches in OpenAI's form: files of requests that are answered in the background, in a folder
//! that outlives the server.
//!
//! | file | content |
//! |---|---|
//! | `lines` | the lines of such a file, and the routes that they may name |
//! | `answers` | answers lines with the server's own routes, and appends the answers to a file |
//! | `objects` | what clients see: files and batches |
//! | `store` | the objects on disk |
//! | `drive` | the life of a batch: checked, computed, cancelled, expired, complete |
//! | `offline` | the same for a file, without a server |

pub(super) mod answers;
pub(super) mod drive;
pub(super) mod lines;
pub(super) mod objects;
pub(super) mod offline;
pub(super) mod store;
