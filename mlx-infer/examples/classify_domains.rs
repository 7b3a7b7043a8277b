//! Sorts the lines of a file into domains, with the built-in model or another one.
//!
//! ```text
//! cargo run --release -p mlx-infer --example classify_domains -- lines.txt [checkpoint folder]
//! ```

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use mlx_infer::{
    ClassifyOptions, Error, ErrorKind, LoadOptions, LoadedModel, Message, Prompt, Result,
};

const DOMAINS: [&str; 4] = ["technical", "creative", "ethical", "casual"];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match &arguments[..] {
        [lines] => run(lines, None),
        [lines, model] => run(lines, Some(model)),
        _ => {
            eprintln!("usage: classify_domains LINES [MODEL]");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(lines: &str, model: Option<&str>) -> Result<()> {
    let text = std::fs::read_to_string(lines).map_err(|error| {
        Error::new(ErrorKind::Io, format!("cannot read {lines}")).with_source(error)
    })?;
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let model = match model {
        Some(dir) => LoadedModel::load(dir, LoadOptions::default())?,
        None => LoadedModel::load_default()?,
    };

    // The model was trained on conversations, so each line becomes the question of one.
    let template = model.chat_template()?;
    let render = mlx_infer::RenderOptions {
        add_generation_prompt: true,
        ..Default::default()
    };
    let question = |line: &&str| {
        let question = format!("Classify: {line}");
        template.render(&[Message::new("user", question)], &render)
    };
    let prompts = lines
        .iter()
        .map(|line| question(line).map(Prompt::Text))
        .collect::<Result<Vec<_>>>()?;

    let options = ClassifyOptions {
        labels: DOMAINS.map(str::to_owned).into(),
        // The template has written the special tokens.
        add_special: false,
        ..Default::default()
    };
    let started = Instant::now();
    let results = model.classify(prompts, &options)?;
    let seconds = started.elapsed().as_secs_f64();

    let mut counts = BTreeMap::new();
    for (line, result) in lines.iter().zip(results) {
        // A line that fails does not end the others.
        match result {
            Ok(result) => {
                let labels = result.labels.expect("there are labels");
                let domain = DOMAINS[labels.best];
                *counts.entry(domain).or_insert(0) += 1;
                println!(
                    "{domain:<10} {:>5.1} %  {line}",
                    100.0 * labels.probabilities[labels.best]
                );
            }
            Err(error) => println!("{:<10} {:>7}  {line}: {error}", "-", "-"),
        }
    }
    eprintln!(
        "{} lines in {seconds:.2} s, {:.0} a second: {counts:?}",
        lines.len(),
        lines.len() as f64 / seconds
    );
    Ok(())
}
