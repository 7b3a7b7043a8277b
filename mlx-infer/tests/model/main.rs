//! Models of `testdata`, with the library and with the command.
#![cfg(feature = "cli")]

#[cfg(unix)]
mod backend;
mod bench;
mod checkpoint;
mod command;
mod default_model;
mod family;
mod finite;
mod generate;
mod guessed;
mod hostile;
mod info;
mod interruption;
#[cfg(unix)]
mod ordinary;
mod parts;
mod prompt_cache;
mod real;
mod score;
mod streams;
