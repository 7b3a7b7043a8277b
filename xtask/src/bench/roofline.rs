//! The least time of a computation on this machine: the roofline of Williams et al. (2009). Weights
//! and caches are read at the memory's rate, products are computed at the best rate for 16-bit
//! products, and the slower of the two is the limit. The fraction of the limit that a side or a
//! goal reaches shows how much can be gained.

use std::fmt::Write;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::stats::{Row, digits, head};

/// The bytes and operations of a step or a prompt.
pub struct Amount {
    pub bytes: f64,
    /// Multiplications and additions.
    pub flop: f64,
    /// The number of tokens or texts that it counts as.
    pub units: f64,
}

/// The bytes and multiplications of a step of a model.
pub struct Shape {
    /// Bytes of all weights that a step reads.
    pub bytes: u64,
    /// Elements in the matrices of the layers, by which each token of a prompt is multiplied.
    pub matrix_elements: u64,
    /// Elements in the output head, by which only the last token of a row is multiplied.
    pub head_elements: u64,
    /// Bytes of the cache for a token, in 16 bits.
    pub cache_bytes: u64,
    /// Multiplications for each key that a token sees: of its query with the key, and of the weight
    /// with the value.
    pub attention_products: u64,
}

impl Shape {
    /// The shape that a `config.json` describes.
    pub fn of(config: &Value, bytes: u64) -> Result<Self> {
        let size = |name: &str| {
            let size = config[name].as_u64();
            size.with_context(|| format!("config.json has no {name}"))
        };
        let (hidden, head) = (size("hidden_size")?, size("head_dim")?);
        let heads = size("num_attention_heads")?;
        let kv_heads = size("num_key_value_heads")?;
        let attention = 2 * hidden * head * (heads + kv_heads);
        let mlp = 3 * hidden * size("intermediate_size")?;
        let layers = size("num_hidden_layers")?;
        Ok(Self {
            bytes,
            matrix_elements: layers * (attention + mlp),
            head_elements: size("vocab_size")? * hidden,
            cache_bytes: layers * 2 * kv_heads * head * 2,
            attention_products: layers * 2 * heads * head,
        })
    }

    /// The bytes and operations of `rows` prompts of `length` tokens if at most one token is
    /// generated after each; otherwise those of a step in the middle.
    pub fn amount(&self, rows: usize, length: usize, tokens: usize) -> Amount {
        let (rows, length) = (rows as f64, length as f64);
        // For a row: the tokens that the layers compute, the keys that all of these see, and the keys in the KV cache.
        let (passed, seen, cached) = match tokens {
            ..2 => (length, length * (length + 1.0) / 2.0, 0.0),
            _ => {
                let context = length + tokens as f64 / 2.0;
                (1.0, context, context)
            }
        };
        let products = passed * self.matrix_elements as f64
            + seen * self.attention_products as f64
            + self.head_elements as f64;
        Amount {
            bytes: self.bytes as f64 + rows * cached * self.cache_bytes as f64,
            flop: 2.0 * rows * products,
            units: if tokens == 1 { rows * length } else { rows },
        }
    }
}

/// The rates of a machine, in 10^9 a second.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    pub memory_gb_s: f64,
    /// The best rate for products of 16-bit numbers.
    pub product_gflop_s: f64,
}

/// The limit of a measured rate.
pub struct Roof {
    row: Row,
    /// Gigabytes and 10^9 operations of a step or a prompt.
    gigabytes: f64,
    gflop: f64,
    /// The largest possible rate in the measure's unit, and whether the memory limits it.
    most: f64,
    by_memory: bool,
}

impl Roof {
    /// The roofline of a measured rate.
    pub fn new(row: &Row, amount: &Amount, rates: &Rates) -> Self {
        let (gigabytes, gflop) = (amount.bytes / 1e9, amount.flop / 1e9);
        let reading = gigabytes / rates.memory_gb_s;
        let computing = gflop / rates.product_gflop_s;
        Self {
            row: row.clone(),
            gigabytes,
            gflop,
            most: amount.units / reading.max(computing),
            by_memory: reading > computing,
        }
    }

    /// The fraction of the limit that each measured side reaches.
    fn parts(&self) -> Vec<Option<f64>> {
        let sides = 0..self.row.values.len();
        sides
            .map(|side| Some(self.row.median(side)? / self.most))
            .collect()
    }

    /// The fraction of the limit that the goals need.
    fn asked(&self) -> Vec<f64> {
        let goals = self.row.goals.iter().enumerate();
        goals
            .filter_map(|(at, goal)| Some((*goal)? * self.row.median(at + 1)? / self.most))
            .collect()
    }

    pub fn json(&self) -> Value {
        json!({
            "labels": self.row.labels,
            "measure": self.row.measure,
            "gigabytes": self.gigabytes,
            "gflop": self.gflop,
            "most": self.most,
            "limit": self.limit(),
            "reached": self.parts(),
            "asked": self.asked(),
        })
    }

    fn limit(&self) -> &'static str {
        if self.by_memory { "memory" } else { "products" }
    }
}

/// A table of limits.
pub fn markdown(labels: &[&str], sides: &[&str], roofs: &[Roof]) -> String {
    let mut text = "The most that the machine allows, as weights and caches must be read once and products computed, and how much of it is \
         reached; what the goal asks for:\n\n"
        .to_owned();
    let texts = labels.iter().chain(&["measure"]).map(|&name| (name, false));
    let amounts = ["GB", "GFLOP", "at most"].map(|name| (name, true));
    let parts = sides.iter().chain(&["goal"]).map(|&name| (name, true));
    text += &head(texts.chain(amounts).chain([("limit", false)]).chain(parts));
    let percent = |part: f64| match part {
        ..0.095 => format!("{:.1} %", 100.0 * part),
        _ => format!("{:.0} %", 100.0 * part),
    };
    for roof in roofs {
        let parts = roof.parts();
        let parts = parts
            .iter()
            .map(|part| part.map_or("–".to_owned(), percent));
        let asked: Vec<String> = roof.asked().into_iter().map(percent).collect();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            roof.row.labels.join(" | "),
            roof.row.measure,
            digits(roof.gigabytes),
            digits(roof.gflop),
            digits(roof.most),
            roof.limit(),
            parts.collect::<Vec<_>>().join(" | "),
            asked.join(", ")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slower_of_memory_and_products_is_the_limit() {
        let rates = Rates {
            memory_gb_s: 10.0,
            product_gflop_s: 1000.0,
        };
        let row = Row {
            labels: vec!["tiny".to_owned()],
            measure: "tokens/s",
            more_is_better: true,
            values: vec![vec![24.0], vec![2.0], Vec::new()],
            goals: vec![Some(30.0), None],
        };
        let amount = |bytes, flop| Amount {
            bytes,
            flop,
            units: 8.0,
        };
        // 0.2 s of reading, 0.1 s of products.
        let step = Roof::new(&row, &amount(2e9, 100e9), &rates);
        assert!(step.by_memory);
        assert_eq!(step.most, 40.0);
        assert_eq!(step.parts(), [Some(0.6), Some(0.05), None]);
        assert_eq!(step.asked(), [1.5]);
        let prompt = Roof::new(&row, &amount(2e9, 400e9), &rates);
        assert!(!prompt.by_memory);
        assert_eq!(prompt.most, 20.0);
        let table = markdown(&["shape"], &["ours", "theirs", "slow"], &[step, prompt]);
        assert!(table.contains(
            "\n| shape | measure | GB | GFLOP | at most | limit | ours | theirs | slow | goal |\n\
             |---|---|---:|---:|---:|---|---:|---:|---:|---:|\n"
        ));
        let last: Vec<&str> = table.lines().rev().take(2).collect();
        assert_eq!(
            last[1],
            "| tiny | tokens/s | 2.00 | 100 | 40.0 | memory | 60 % | 5.0 % | – | 150 % |"
        );
        let columns = |line: &str| line.matches('|').count();
        let lines = table.lines().skip(2);
        assert!(
            lines
                .into_iter()
                .all(|line| columns(line) == columns(last[0]))
        );
    }
}
