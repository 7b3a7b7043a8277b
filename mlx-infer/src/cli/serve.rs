//! `mlx-infer serve`.

mod models;

use std::io::IsTerminal;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Args;
use mlx_infer::serve::{PooledModel, ServeOptions, Server};
use mlx_infer::{
    EngineOptions, Error, ErrorKind, GenerateOptions, Limits, RequestOptions, Speculative, console,
    follow_engine, rank_here, ranks_lost,
};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use super::{Failure, Result, args, backend, drafters, listen, memory};

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    models: models::ModelArgs,
    #[command(flatten)]
    load: args::LoadFlags,
    #[command(flatten)]
    drafters: drafters::Drafters,
    #[command(flatten)]
    backend: backend::BackendArgs,
    /// Address to listen at; an address that other machines reach needs an API key
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    host: String,
    /// Port; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    port: u16,
    /// Adapter that requests may choose by its name; the model without it stays available. May be
    /// given several times
    #[arg(long, value_name = "NAME=DIR", value_parser = name_and_folder)]
    adapter: Vec<(String, PathBuf)>,
    /// Folder of adapters that clients may load and unload while the server runs (/v1/load_lora_adapter). Without it such
    /// requests are refused
    #[arg(long, value_name = "DIR")]
    adapters_dir: Option<PathBuf>,
    /// API key that requests must have; may be given several times. Other users of the machine can read it in the list of processes: prefer the file
    #[arg(
        long,
        value_name = "KEY",
        env = "MLX_INFER_API_KEY",
        hide_env_values = true
    )]
    api_key: Vec<String>,
    /// File with API keys, one a line; lines that begin with # are comments. SIGHUP reads it again
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Let other machines connect without an API key
    #[arg(long)]
    insecure: bool,
    /// Origin of web pages that may send requests, as in https://example.org, or * for all; may be
    /// given several times
    #[arg(long, value_name = "ORIGIN")]
    cors_origin: Vec<String>,
    /// Refuse requests with unknown parameters, instead of naming the parameters in the header
    /// x-ignored-params
    #[arg(long)]
    strict: bool,
    /// Most tokens of an answer to a request without a maximum
    #[arg(long, value_name = "N", default_value_t = ServeOptions::default().max_output)]
    max_output: usize,
    /// Most tokens of reasoning of an answer to a request without a number; 0: the model does not
    /// reason [default: no limit]
    #[arg(long, value_name = "N")]
    reasoning_budget: Option<usize>,
    /// Most requests that are computed at a time
    #[arg(long, value_name = "N", default_value_t = Limits::default().rows)]
    rows: usize,
    /// Most requests in progress, including those in the queue; more are refused with 503
    #[arg(long, value_name = "N", default_value_t = EngineOptions::default().max_requests)]
    max_requests: usize,
    /// Most requests of one API key at a time; more are refused with 429
    #[arg(long, value_name = "N")]
    key_requests: Option<usize>,
    /// Most tokens of a step: one of each row that decodes, then chunks of prompts in order of arrival
    /// [default: on a CPU 4, and 2.5 for each row that decodes; on CUDA 8,192 for prompts, in passes of their own; on other GPUs 2,048]
    #[arg(long, value_name = "N")]
    step_tokens: Option<usize>,
    /// Most bytes of the requests' caches [default: on an NVIDIA GPU what weights, prefixes and work leave, else no limit]
    #[arg(long, value_name = "BYTES")]
    cache_bytes: Option<usize>,
    /// Most bytes of stored prefixes, which requests with the same beginning reuse; 0 stores none
    /// [default: a sixteenth of the memory that is free at the start]
    #[arg(long, value_name = "BYTES")]
    prefix_bytes: Option<usize>,
    #[command(flatten)]
    prefix_dir: args::PrefixDirArgs,
    /// Folder of files and batches (/v1/files, /v1/batches), which are kept after the server's end. Batches are
    /// computed at a lower priority than other requests
    #[arg(long, value_name = "DIR")]
    batch_dir: Option<PathBuf>,
    /// Seconds that requests may continue after SIGTERM or Ctrl-C; a second signal ends the server
    /// at once
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    drain: u64,
    /// Seconds in which the head of a request must arrive, then its body, and for which a client
    /// may read no byte of its answer; idle connections are closed after this time
    #[arg(long, value_name = "SECONDS", default_value_t = ServeOptions::default().client_timeout.as_secs())]
    client_timeout: u64,
    /// Seconds of silence after which a stream gets a comment, so that no proxy closes its connection as idle
    #[arg(long, value_name = "SECONDS", default_value_t = ServeOptions::default().ping.as_secs())]
    ping: u64,
    #[command(flatten)]
    listen: listen::ListenArgs,
    /// Write no line to stderr for each request
    #[arg(long)]
    quiet: bool,
    /// Temperature of requests without one [default: generation_config.json's, 0 if do_sample is false there, else 1]
    #[arg(long, value_name = "T")]
    temperature: Option<f32>,
    /// top_p of requests without one [default: generation_config.json's, else 1]
    #[arg(long, value_name = "P")]
    top_p: Option<f32>,
    /// top_k of requests without one [default: generation_config.json's, else all]
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// min_p of requests without one [default: generation_config.json's, else 0]
    #[arg(long, value_name = "P")]
    min_p: Option<f32>,
    /// Speculation of requests without a mode: off, auto, or a maximum of 1 to 8, which is then that of all requests.
    /// The tokens stay the same
    #[arg(long, value_name = "MODE", default_value_t = Speculative::Off)]
    speculative: Speculative,
}

const AFTER_HELP: &str = "\
Routes: POST /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages, /v1/messages/count_tokens,
/v1/classify, /v1/embeddings, /v1/rerank, /v1/score, /v1/systemone, /v1/files, /v1/batches, /v1/models/load,
/v1/models/unload, /v1/load_lora_adapter, /v1/unload_lora_adapter, /lora-adapters, /infill, /tokenize, /detokenize,
/sleep, /wake_up; GET /v1/models, /lora-adapters, /tokenizer_info, /is_sleeping, /health, /ready, /metrics,
/openapi.json, and a page at /. Those with /v1 are there without it too. Ollama's: POST /api/chat, /api/generate,
/api/embed, /api/show; GET /api/tags, /api/ps, /api/version. docs/guide/serving.md describes each.";

impl ServeArgs {
    pub(super) fn run(self) -> Result {
        self.listen.begin();
        let prefix_bytes = self.prefix_bytes();
        self.backend.check(&GenerateOptions {
            speculative: self.speculative,
            ..Default::default()
        })?;
        self.drafters.check(&self.backend, self.speculative)?;
        self.backend.refuse(&[
            ("adapter", !self.adapter.is_empty()),
            ("adapters-dir", self.adapters_dir.is_some()),
        ])?;
        if self.models.are_several() {
            self.refuse_with_several()?;
        }
        let rank = rank_here();
        if rank.is_some() {
            self.refuse_with_ranks()?;
        }
        let loading = models::Loading {
            flags: self.load.clone(),
            backend: self.backend.clone(),
            drafters: self.drafters.clone(),
            speculative: self.speculative,
            asked: [
                ("--cache-bytes", self.cache_bytes),
                ("--prefix-bytes", self.prefix_bytes),
            ],
        };
        if rank.is_some_and(|rank| rank > 0) {
            return self.follow(&loading, prefix_bytes);
        }
        let models = self.models.open(&loading)?;
        let options = self.options(prefix_bytes, &models)?;
        let server = Server::bind(options).map_err(|error| match error.kind() {
            ErrorKind::Argument => Failure::Usage(error.to_string()),
            _ => error.into(),
        })?;
        self.watch(&server)?;
        if rank.is_some() {
            end_when_lost();
        }
        console::note(&format!("listening at {}", server.url()));
        let on_event = match self.models.are_several() {
            true => models::of_several(&models),
            false => models::of_one(&models[0], prefix_bytes),
        };
        let ended = server.run_pool(models, self.models.options(), on_event);
        ended.map_err(|error| match error.kind() {
            ErrorKind::Argument if self.models.are_several() => Failure::Usage(error.to_string()),
            _ => error.into(),
        })
    }

    /// Refuses flags that are for a server with one model.
    fn refuse_with_several(&self) -> Result {
        let [draft, mtp] = self.drafters.flags();
        let flags = [
            ("adapter", !self.adapter.is_empty()),
            ("adapters-dir", self.adapters_dir.is_some()),
            ("backend mlx-lm", !self.backend.is_native()),
            draft,
            mtp,
        ];
        match flags.iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) => Err(Failure::Usage(format!(
                "--{name} is for a server with one model"
            ))),
            None => Ok(()),
        }
    }

    /// Refuses flags that are for a server of one process.
    fn refuse_with_ranks(&self) -> Result {
        let flags = [
            ("models-dir or several --model", self.models.are_several()),
            ("backend mlx-lm", !self.backend.is_native()),
        ];
        match flags.iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) => Err(Failure::Usage(format!(
                "--{name} is for a server of one process, not of several ranks"
            ))),
            None => Ok(()),
        }
    }

    /// Computes what the first rank computes. It ends with that rank, and not by a signal before, because the first rank
    /// may still answer requests.
    fn follow(&self, loading: &models::Loading, prefix_bytes: usize) -> Result {
        let ignored = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT] {
            flag::register(signal, ignored.clone()).map_err(|error| {
                Error::new(ErrorKind::Io, "cannot watch for signals").with_source(error)
            })?;
        }
        let options = self.options(prefix_bytes, &[])?;
        let model = self.models.load_one(loading)?;
        end_when_lost();
        Ok(follow_engine(model, &options.engine)?)
    }

    /// Watches for signals: SIGTERM and Ctrl-C end the server, SIGHUP reads the file with keys and
    /// the certificate again. Without both, SIGHUP ends the server if its terminal is closed, and has no
    /// effect otherwise.
    fn watch(&self, server: &Server) -> Result {
        let (stopper, key_ring) = (server.stopper(), server.key_ring());
        let certificate = server.certificate_reader();
        let file = self.api_key_file.clone();
        let given = self.api_key.clone();
        let has_terminal = std::io::stderr().is_terminal();
        let mut watched = vec![SIGTERM, SIGINT];
        #[cfg(unix)]
        watched.push(signal_hook::consts::SIGHUP);
        let mut signals = Signals::new(watched).map_err(|error| {
            Error::new(ErrorKind::Io, "cannot watch for signals").with_source(error)
        })?;
        std::thread::spawn(move || {
            let mut is_ending = false;
            for signal in signals.forever() {
                let is_hangup = ![SIGTERM, SIGINT].contains(&signal);
                if let (Some(certificate), true) = (&certificate, is_hangup) {
                    console::note(&match certificate.read_again() {
                        Ok(()) => "the certificate was read again".to_owned(),
                        Err(error) => format!("the certificate stays as it is: {error}"),
                    });
                }
                match (&file, is_hangup) {
                    (Some(file), true) => {
                        let read = keys_in(file).and_then(|keys| {
                            let keys = [&given[..], &keys].concat();
                            key_ring.replace(&keys)?;
                            Ok(keys.len())
                        });
                        console::note(&match read {
                            Ok(n) => format!("the API keys were read again: {n}"),
                            Err(Failure::Failed(error)) => {
                                format!("the API keys stay as they are: {error}")
                            }
                            Err(Failure::Usage(what)) => {
                                format!("the API keys stay as they are: {what}")
                            }
                        });
                    }
                    (None, true) if certificate.is_some() => {}
                    (None, true) if !has_terminal => {
                        console::note("SIGHUP: there is no --api-key-file to read again");
                    }
                    _ if is_ending => std::process::exit(128 + signal),
                    _ => {
                        is_ending = true;
                        console::note(
                            "ending: requests under way may finish; another signal ends them",
                        );
                        stopper.stop();
                    }
                }
            }
        });
        Ok(())
    }

    /// Most bytes of stored prefixes. The native back end's default is a fraction of the memory
    /// that is free now.
    fn prefix_bytes(&self) -> usize {
        match self.prefix_bytes {
            Some(bytes) => bytes,
            None if self.backend.is_native() => memory::share(),
            None => Limits::default().prefix_bytes,
        }
    }

    fn options(&self, prefix_bytes: usize, models: &[PooledModel]) -> Result<ServeOptions> {
        let mut keys = self.api_key.clone();
        if let Some(file) = &self.api_key_file {
            keys.extend(keys_in(file)?);
        }
        let names = models.iter().flat_map(|model| &model.names);
        let names = names.cloned().collect();
        Ok(ServeOptions {
            address: self.address()?,
            names,
            keys,
            insecure: self.insecure,
            cors_origins: self.cors_origin.clone(),
            strict: self.strict,
            max_output: self.max_output,
            reasoning_budget: self.reasoning_budget,
            key_requests: self.key_requests,
            defaults: RequestOptions {
                temperature: self.temperature,
                top_p: self.top_p,
                top_k: self.top_k,
                min_p: self.min_p,
                speculative: Some(self.speculative),
                ..Default::default()
            },
            drain: Duration::from_secs(self.drain),
            client_timeout: Duration::from_secs(self.client_timeout),
            ping: Duration::from_secs(self.ping),
            engine: EngineOptions {
                limits: Limits {
                    rows: self.rows,
                    step_tokens: self.step_tokens,
                    cache_bytes: self.cache_bytes,
                    models_bytes: None,
                    prefix_bytes,
                    prefix_host_bytes: self.prefix_dir.prefix_host_bytes,
                    prefix_dir: self.prefix_dir.limits(),
                },
                max_requests: self.max_requests,
                adapters: self.adapter.clone(),
                ..Default::default()
            },
            log: !self.quiet,
            #[cfg(feature = "otel")]
            otlp_endpoint: self.listen.otlp_endpoint.clone(),
            batch_dir: self.batch_dir.clone(),
            adapters_dir: self.adapters_dir.clone(),
            json_log: self.listen.is_json(),
            unix_socket: self.listen.unix_socket.clone(),
            tls: self.listen.tls(),
            path_prefix: self.listen.path_prefix.clone(),
        })
    }

    fn address(&self) -> Result<SocketAddr> {
        if let Ok(ip) = self.host.parse::<IpAddr>() {
            return Ok(SocketAddr::new(ip, self.port));
        }
        let found = (self.host.as_str(), self.port).to_socket_addrs();
        found
            .ok()
            .and_then(|mut found| found.next())
            .ok_or_else(|| {
                let message = format!(
                    "host must be an address or a known name, given {:?}",
                    self.host
                );
                Failure::Usage(message)
            })
    }
}

/// Ends the program when another rank of the model has died, after clients had time to read the error.
fn end_when_lost() {
    std::thread::spawn(|| {
        loop {
            std::thread::sleep(Duration::from_millis(200));
            if let Some(reason) = ranks_lost() {
                std::thread::sleep(Duration::from_secs(1));
                let _ = console::end(Err(Error::new(ErrorKind::Closed, reason)));
                std::process::exit(1);
            }
        }
    });
}

/// The keys in a file, one on each line, without empty lines and lines that begin with `#`.
fn keys_in(file: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        let message = format!("cannot read {}", file.display());
        Error::new(ErrorKind::Io, message).with_source(error)
    })?;
    let lines = text.lines().map(str::trim);
    let keys = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let keys: Vec<String> = keys.map(str::to_owned).collect();
    match keys.is_empty() {
        true => Err(Failure::Usage(format!("{} has no API key", file.display()))),
        false => Ok(keys),
    }
}

fn name_and_folder(text: &str) -> std::result::Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, dir)) if !name.is_empty() && !dir.is_empty() => {
            Ok((name.to_owned(), dir.into()))
        }
        _ => Err("expected a name and a folder, as in sport=adapters/sport".to_owned()),
    }
}
