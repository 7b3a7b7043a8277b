//! Flags of `mlx-infer serve` for the place where it listens, and for its log.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use mlx_infer::console;
use mlx_infer::serve::TlsFiles;

use super::config;

#[derive(Args)]
pub(super) struct ListenArgs {
    /// File with flags of this command by their names, in TOML; flags and variables come first
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Listen at a unix socket instead of an address: not together with --host or --port
    #[arg(long, value_name = "PATH", conflicts_with_all = ["host", "port"])]
    pub(super) unix_socket: Option<PathBuf>,
    /// Beginning of all paths, as in /llm, for a proxy that does not remove it
    #[arg(
        long,
        value_name = "/PATH",
        default_value = "",
        hide_default_value = true
    )]
    pub(super) path_prefix: String,
    /// File with the server's certificate and those of its issuers in PEM; connections are then
    /// encrypted (TLS 1.2 and 1.3). SIGHUP reads it again
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// File with the private key of --tls-cert in PEM; it may be the same file
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// OpenTelemetry collector that gets the traces of requests (OTLP over HTTP), as in http://localhost:4318
    #[cfg(feature = "otel")]
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    pub(super) otlp_endpoint: Option<String>,
    /// Form of the lines on stderr
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum LogFormat {
    Text,
    /// A JSON object each, with time, level and message
    Json,
}

impl ListenArgs {
    /// Sets the form of the lines on stderr, and warns of variables that are not known.
    pub(super) fn begin(&self) {
        if self.is_json() {
            console::use_json_lines();
        }
        for name in config::unknown_variables() {
            console::note(&format!(
                "warning: {name} is set, and mlx-infer serve has no flag of that name"
            ));
        }
    }

    pub(super) fn is_json(&self) -> bool {
        self.log_format == LogFormat::Json
    }

    pub(super) fn tls(&self) -> Option<TlsFiles> {
        let (cert, key) = (self.tls_cert.clone()?, self.tls_key.clone()?);
        Some(TlsFiles { cert, key })
    }
}
