//! `mlx-infer list`.

use std::time::SystemTime;

use clap::Args;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use mlx_infer::hub::{Cached, Hub};
use mlx_infer::{Files, console};
use serde_json::{Value, json};

use super::{Result, output};

/// The number of digits of a commit that the table shows.
const SHORT: usize = 12;

#[derive(Args)]
pub(super) struct ListArgs {
    /// Print one JSON document: cache, models
    #[arg(long)]
    json: bool,
}

impl ListArgs {
    pub(super) fn run(self) -> Result {
        let hub = Hub::from_env()?;
        let models: Vec<Value> = hub.cached()?.iter().map(describe).collect();
        if self.json {
            return output::print_json(&json!({"cache": hub.cache(), "models": models}));
        }
        if models.is_empty() {
            console::note(&format!("no models in {}", hub.cache().display()));
            return Ok(());
        }
        output::print(&table(&models))
    }
}

fn describe(model: &Cached) -> Value {
    // A folder without a readable config.json is listed with what it lacks.
    let config = Files::directory(&model.path).and_then(|files| files.json("config.json"));
    let architecture = config.ok().flatten().and_then(|config| {
        let name = config.get("model_type")?.as_str()?;
        Some(name.to_owned())
    });
    let known = mlx_models::known_types();
    let supported = architecture.as_deref().map(|name| known.contains(&name));
    json!({
        "name": model.name,
        "revisions": model.revisions,
        "commit": model.commit,
        "bytes": model.bytes,
        "architecture": architecture,
        "supported": supported,
        "missing": model.missing,
        "last_used": model.last_used.and_then(time).map(|time| time.to_string()),
        "path": model.path,
    })
}

fn time(time: SystemTime) -> Option<Timestamp> {
    let time = Timestamp::try_from(time).ok()?;
    Timestamp::from_second(time.as_second()).ok()
}

fn table(models: &[Value]) -> String {
    let header = ["NAME", "REVISION", "SIZE", "ARCHITECTURE", "LAST USED"].map(str::to_owned);
    let rows = models.iter().map(|model| {
        let text = |key: &str| model[key].as_str().unwrap_or("-").to_owned();
        let revisions = model["revisions"].as_array().into_iter().flatten();
        let revisions: Vec<&str> = revisions.filter_map(Value::as_str).collect();
        let commit: String = text("commit").chars().take(SHORT).collect();
        let revision = match revisions.is_empty() {
            true => commit,
            false => format!("{} ({commit})", revisions.join(", ")),
        };
        let missing = model["missing"].as_array().into_iter().flatten();
        let missing: Vec<&str> = missing.filter_map(Value::as_str).collect();
        let state = match &model["supported"] {
            _ if !missing.is_empty() => format!(", incomplete: lacks {}", missing.join(", ")),
            Value::Bool(false) => ", not supported".to_owned(),
            _ => String::new(),
        };
        let day = text("last_used").parse::<Timestamp>();
        let day = day.map(|time| time.to_zoned(TimeZone::system()).date().to_string());
        [
            text("name"),
            revision,
            output::bytes(model["bytes"].as_u64().unwrap_or(0) as usize),
            text("architecture") + &state,
            day.unwrap_or_else(|_| "-".to_owned()),
        ]
    });
    let rows: Vec<[String; 5]> = std::iter::once(header).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let line = |row: &[String; 5]| {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let width = width(column).unwrap_or(0);
            format!("{cell:<width$}")
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}
