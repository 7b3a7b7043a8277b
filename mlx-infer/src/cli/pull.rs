//! `mlx-infer pull`.

use clap::Args;
use mlx_infer::console;
use mlx_infer::hub::{Bar, Hub, Name};
use serde_json::json;

use super::{Failure, Result, output};

#[derive(Args)]
pub(super) struct PullArgs {
    /// Models of the hub
    #[arg(required = true, value_name = "ORG/NAME[@REV]")]
    names: Vec<String>,
    /// Print one JSON document a model: name, revision, commit, path, fetched_bytes
    #[arg(long)]
    json: bool,
}

impl PullArgs {
    pub(super) fn run(self) -> Result {
        let names: mlx_infer::Result<Vec<Name>> =
            self.names.iter().map(|name| Name::parse(name)).collect();
        let names = names.map_err(|error| Failure::Usage(error.to_string()))?;
        let hub = Hub::from_env()?;
        for name in &names {
            let mut bar = Bar::default();
            let found = hub.pull(name, &mut |progress| bar.show(progress));
            drop(bar);
            let found = found?;
            if self.json {
                output::print_json(&json!({
                    "name": name.repo(),
                    "revision": name.revision(),
                    "commit": found.commit(),
                    "path": found.path(),
                    "fetched_bytes": found.fetched_bytes(),
                }))?;
                continue;
            }
            let fetched = match found.fetched_bytes() {
                0 => "all of it was in the cache".to_owned(),
                bytes => format!("{} fetched", output::bytes(bytes as usize)),
            };
            console::note(&format!("{name}: commit {}, {fetched}", found.commit()));
            output::print(&format!("{}\n", found.path().display()))?;
        }
        Ok(())
    }
}
