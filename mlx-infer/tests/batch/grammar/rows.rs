//! Batches of rows with and without grammars.

use mlx_infer::{
    Choice, Constraint, Engine, EngineOptions, FinishReason, GenerateOptions, Grammar, Limits,
    LoadOptions, LoadedModel, Request,
};

use super::{alone, fox, model, regex, text, with};
use crate::speculation::same;

/// Requests with and without grammars, processors, penalties, drafts.
fn mixed() -> Vec<(String, GenerateOptions)> {
    let grammars = [
        None,
        Some(regex("[a-z ]{300}")),
        None,
        Some(Grammar::JsonSchema(fox())),
        Some(regex("(yes|no)( indeed)*")),
        None,
        Some(Grammar::Lark("start: (\"x\" | \"yz\")+".to_owned())),
    ];
    let options = |(n, grammar): (u64, Option<Grammar>)| {
        let prompt = ["The red fox", "Once upon a time", "47 + 38 ="][n as usize % 3];
        let mut options = with(grammar, 30 + 3 * n as usize, n);
        options.sampling.presence_penalty = 0.1 * n as f32;
        options.sampling.temperature = [1.0, 0.0, 1.3][n as usize % 3];
        options.sampling.top_p = [1.0, 0.9][n as usize % 2];
        options.ignore_eos = options.grammar.is_none();
        (prompt.to_owned(), options)
    };
    (0..).zip(grammars).map(options).collect()
}

fn requests(asked: &[(String, GenerateOptions)]) -> Vec<Request> {
    let request = |(prompt, options): &(String, GenerateOptions)| {
        Request::new(prompt.as_str(), options.clone())
    };
    asked.iter().map(request).collect()
}

fn tokens(model: &LoadedModel, asked: Vec<Request>, limits: &Limits) -> Vec<Vec<Choice>> {
    let results = model.batch_generate(asked, limits).unwrap().into_iter();
    results
        .map(|result| result.into_generated().unwrap().tokens)
        .collect()
}

#[test]
fn neighbours_do_not_show() {
    let model = model();
    let asked = mixed();
    let expected: Vec<Vec<Choice>> = asked
        .iter()
        .map(|(prompt, options)| alone(&model, prompt, options).tokens)
        .collect();
    for rows in [2, 7] {
        let limits = Limits {
            rows,
            ..Limits::default()
        };
        assert_eq!(
            tokens(&model, requests(&asked), &limits),
            expected,
            "{rows} rows"
        );
    }
    let options = LoadOptions {
        max_draft: 4,
        ..Default::default()
    };
    let files = mlx_infer::default_model_files();
    let drafts = LoadedModel::load_files(files, options, &mut |_, _| ()).unwrap();
    // Several tokens at a time may be multiplied by a different kernel than one token.
    let mut drafting = asked.clone();
    for (_, options) in &mut drafting {
        options.speculative = "4".parse().unwrap();
    }
    let found = tokens(&drafts, requests(&drafting), &Limits::default());
    assert!(found.iter().zip(&expected).all(|(a, b)| same(a, b)));
    // A processor on rows without a grammar, and on a row with one.
    let nothing = |_: &[u32], _: &mut [f32]| Ok(());
    let mut processed = requests(&asked);
    for at in [1, 2] {
        let request = processed.remove(at);
        processed.insert(at, request.with_processor(nothing));
    }
    assert_eq!(tokens(&model, processed, &Limits::default()), expected);
}

#[test]
fn rows_that_were_preempted_go_on() {
    // Caches grow after 256 tokens. From then on the memory is enough for two rows.
    let mut asked = mixed();
    asked.truncate(5);
    for (prompt, _) in &mut asked {
        *prompt = prompt.repeat(80);
    }
    let (cost, expected) = {
        let model = model();
        let costs = model.state_costs();
        let cost = costs.iter().map(|cost| cost.bytes(256)).sum::<usize>();
        let tokenizer = model.tokenizer().unwrap();
        let mut expected = Vec::new();
        for (prompt, options) in &mut asked {
            let mut ids = tokenizer.encode(prompt, true).unwrap();
            ids.truncate(205);
            options.max_tokens = 60;
            *prompt = tokenizer.decode(&ids, true).unwrap();
            expected.push(alone(&model, prompt, options).tokens);
        }
        (cost, expected)
    };
    let options = EngineOptions {
        limits: Limits {
            cache_bytes: Some(cost * 4),
            prefix_bytes: 0,
            ..Limits::default()
        },
        ..Default::default()
    };
    let engine = Engine::start(LoadedModel::load_default, options).unwrap();
    let handles: Vec<_> = requests(&asked)
        .into_iter()
        .map(|request| engine.submit(request).unwrap())
        .collect();
    for (handle, expected) in handles.into_iter().zip(expected) {
        let result = handle.wait();
        assert!(result.error.is_none(), "{:?}", result.error);
        assert_eq!(result.tokens, expected);
    }
    let load = engine.load();
    assert!(load.preemptions > 0, "nothing was preempted");
    assert!(load.masks > 60 && !load.mask_time.is_zero(), "{load:?}");
    engine.finish().unwrap();
}

/// A row with a grammar and the other rows take a token in every step, so they end in the order of
/// their lengths.
#[test]
fn no_row_waits() {
    let model = model();
    let free = |max_tokens, seed| GenerateOptions {
        ignore_eos: true,
        ..with(None, max_tokens, seed)
    };
    let asked = [
        free(31, 1),
        with(regex("[a-z]{400}"), 30, 2),
        free(29, 3),
        with(regex("[a-z]{400}"), 32, 4),
    ];
    let asked = asked.map(|options| Request::new("The red fox", options));
    let mut order = Vec::new();
    let on_done = |index, result: mlx_infer::BatchResult| {
        assert!(result.error.is_none());
        order.push(index);
        std::ops::ControlFlow::Continue(())
    };
    model
        .batch_generate_with(asked.into(), &Limits::default(), on_done)
        .unwrap();
    assert_eq!(order, [2, 1, 0, 3]);
}

#[test]
fn the_grammar_begins_behind_a_mark() {
    let model = model();
    let marked = |after: &str, seed| GenerateOptions {
        grammar: Some(Constraint {
            after: Some(after.to_owned()),
            ..regex("[0-9]{4}").into()
        }),
        ..with(None, 120, seed)
    };
    let mut begun = 0;
    for seed in 0..12 {
        let generated = alone(&model, "The red fox", &marked(".", seed));
        let text = text(&generated);
        let free = alone(&model, "The red fox", &with(None, 120, seed));
        match text.split_once('.') {
            // The mark never came. The text without the grammar may end, the other one may not end
            // before its mark.
            None => {
                let mut ids = free.tokens.iter().map(|token| token.id);
                let end = ids.position(|id| model.eos_ids().contains(&id));
                let shared = end.unwrap_or(free.tokens.len());
                assert_eq!(generated.tokens[..shared], free.tokens[..shared]);
                assert_eq!(generated.reason, FinishReason::Length);
            }
            Some((before, rest)) => {
                begun += 1;
                // Up to the mark the text equals that without the grammar.
                let found = free.text.as_deref().unwrap().split_once('.');
                assert_eq!(found.map(|(before, _)| before), Some(before), "{text}");
                assert!(
                    rest.len() == 4 && rest.bytes().all(|b| b.is_ascii_digit()),
                    "{text}"
                );
                assert_eq!(generated.reason, FinishReason::Stop);
            }
        }
    }
    assert!(begun > 3, "the mark came {begun} times");
    // A mark that begins inside of a token.
    let generated = alone(&model, "The red fox", &marked("e", 1));
    let (_, rest) = text(&generated).split_once('e').unwrap();
    assert!(
        rest.len() == 4 && rest.bytes().all(|b| b.is_ascii_digit()),
        "{rest}"
    );
}
