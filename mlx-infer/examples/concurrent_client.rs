//! Several threads ask one engine at the same time; their answers share the batch.
//!
//! ```text
//! cargo run --release -p mlx-infer --example concurrent_client -- [checkpoint folder]
//! ```

use std::time::Instant;

use mlx_infer::{
    Engine, EngineOptions, Event, GenerateOptions, LoadOptions, LoadedModel, Request, Result,
    SamplingParams,
};

const PROMPTS: [&str; 6] = [
    "The red fox",
    "The white owl",
    "12 + 30 =",
    "The little bird",
    "77 - 50 =",
    "The green frog",
];

fn main() -> Result<()> {
    let dir = std::env::args().nth(1);
    let load = move || match &dir {
        Some(dir) => LoadedModel::load(dir, LoadOptions::default()),
        None => LoadedModel::load_default(),
    };
    // The model is loaded on the engine's own thread and stays there.
    let engine = Engine::start(load, EngineOptions::default())?;
    let started = Instant::now();
    let outcomes = std::thread::scope(|scope| {
        let clients: Vec<_> = PROMPTS
            .iter()
            .enumerate()
            .map(|(number, prompt)| {
                let engine = &engine;
                scope.spawn(move || ask(engine, number, prompt))
            })
            .collect();
        clients
            .into_iter()
            .map(|client| client.join().expect("a client does not panic"))
            .collect::<Vec<_>>()
    });
    let seconds = started.elapsed().as_secs_f64();
    let mut tokens = 0;
    for (prompt, outcome) in PROMPTS.iter().zip(outcomes) {
        match outcome {
            Ok((text, n)) => {
                tokens += n;
                println!("{prompt}{text}");
            }
            Err(error) => println!("{prompt}: {error}"),
        }
    }
    eprintln!(
        "{tokens} tokens in {seconds:.2} s, {:.0} a second",
        tokens as f64 / seconds
    );
    // Waits for the requests in progress; dropping the engine would end them.
    engine.finish()
}

/// One client: it follows the events of its request, and ends it after the first sentence.
fn ask(engine: &Engine, number: usize, prompt: &str) -> Result<(String, usize)> {
    let options = GenerateOptions {
        sampling: SamplingParams {
            temperature: 0.7,
            // Its tokens depend on its prompt, settings and seed, not on the other clients.
            seed: Some(number as u64),
            ..Default::default()
        },
        max_tokens: 64,
        ..Default::default()
    };
    let mut handle = engine.submit(Request::new(prompt, options))?;
    let (mut text, mut tokens) = (String::new(), 0);
    while let Some(event) = handle.next() {
        let event = event?;
        tokens += usize::from(matches!(event, Event::Token { .. }));
        text.push_str(event.text());
        if text.contains('.') {
            // The request ends at its next step; its last event still arrives.
            handle.cancel();
        }
    }
    Ok((text, tokens))
}
