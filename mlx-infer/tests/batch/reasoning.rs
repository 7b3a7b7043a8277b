//! A budget of reasoning: the answer behind a forced mark equals that of a plain run whose prompt
//! ends with the same reasoning and the mark, alone and beside other rows, with drafts and with
//! grammars.

use mlx_core::DType;
use mlx_infer::{
    Constraint, GenerateOptions, Grammar, Limits, LoadOptions, LoadedModel, MessageHeads,
    ReasoningBudget, Request, SamplingParams, Speculative, default_model_files,
};

use crate::checkpoint::testdata;

const PROMPT: &str = "The red fox";
const MOST: usize = 24;

fn options() -> LoadOptions {
    LoadOptions {
        dtype: Some(DType::F32),
        max_draft: 4,
        ..LoadOptions::default()
    }
}

fn load() -> LoadedModel {
    LoadedModel::load_files(default_model_files(), options(), &mut |_, _| ()).unwrap()
}

/// Models without drafts of their own, with a draft model, and with a head.
fn models() -> [LoadedModel; 3] {
    let mut twice = load();
    twice.load_draft_model(default_model_files()).unwrap();
    let head = LoadedModel::load(testdata("hybrid-model"), options()).unwrap();
    [load(), twice, head]
}

fn run(model: &LoadedModel, requests: Vec<(Vec<u32>, GenerateOptions)>) -> Vec<Vec<u32>> {
    let requests = requests.into_iter();
    let requests = requests.map(|(ids, options)| Request::new(ids, options));
    let results = model.batch_generate(requests.collect(), &Limits::default());
    let results = results.unwrap().into_iter();
    let ids = results.map(|result| {
        assert!(result.error.is_none(), "{:?}", result.error);
        result.tokens.iter().map(|choice| choice.id).collect()
    });
    ids.collect()
}

fn alone(model: &LoadedModel, ids: &[u32], options: &GenerateOptions) -> Vec<u32> {
    run(model, vec![(ids.to_vec(), options.clone())]).remove(0)
}

fn drawn(seed: u64, speculative: Speculative) -> GenerateOptions {
    let temperature = [0.0, 0.8][seed as usize % 2];
    GenerateOptions {
        sampling: SamplingParams {
            temperature,
            seed: Some(seed),
            ..Default::default()
        },
        max_tokens: MOST,
        speculative,
        ..Default::default()
    }
}

fn with(budget: &ReasoningBudget, options: &GenerateOptions) -> GenerateOptions {
    GenerateOptions {
        reasoning_budget: Some(budget.clone()),
        ..options.clone()
    }
}

/// How the reasoning of an answer ended.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ended {
    /// There was none, or the answer ended within it.
    No,
    /// The model wrote the mark, before its last token of reasoning or behind it.
    ByModel {
        is_last: bool,
    },
    Forced,
}

/// The tokens that are expected: those of plain runs.
fn expected(
    model: &LoadedModel,
    prompt: &[u32],
    options: &GenerateOptions,
    budget: &ReasoningBudget,
) -> (Vec<u32>, Ended) {
    let tokenizer = model.tokenizer().unwrap();
    let free = GenerateOptions {
        grammar: None,
        ..options.clone()
    };
    let plain = alone(model, prompt, &free);
    let text = |ids: &[u32]| tokenizer.decode(ids, false).unwrap();
    let begin = match budget.is_begun {
        true => Some(0),
        false => (1..plain.len()).find(|&at| text(&plain[..at]).trim() == budget.open.trim()),
    };
    let Some(begin) = begin else {
        return (plain, Ended::No);
    };
    let ends = begin + 1..=plain.len();
    let end = ends
        .clone()
        .find(|&at| text(&plain[begin..at]).contains(&budget.close));
    let (before, ended) = match end {
        Some(end) if end - begin <= budget.tokens => {
            let is_last = end - begin == budget.tokens;
            (plain[..end].to_vec(), Ended::ByModel { is_last })
        }
        _ if plain.len() <= begin + budget.tokens => return (plain, Ended::No),
        _ => {
            let mark = tokenizer.encode(&budget.close, false).unwrap();
            let before = [&plain[..begin + budget.tokens], &mark].concat();
            (before, Ended::Forced)
        }
    };
    let left = MOST - before.len();
    let behind = GenerateOptions {
        max_tokens: left,
        grammar: options.grammar.clone().map(|grammar| Constraint {
            after: None,
            ..grammar
        }),
        ..options.clone()
    };
    let answer = alone(model, &[prompt, &before].concat(), &behind);
    ([before, answer].concat(), ended)
}

#[test]
fn the_answer_behind_a_forced_mark_is_that_of_a_plain_run() {
    let mut seen = Vec::new();
    for (number, model) in models().iter().enumerate() {
        let prompt = model.tokenizer().unwrap().encode(PROMPT, true).unwrap();
        let mut cases = Vec::new();
        for tokens in 0..12 {
            let seed = tokens as u64;
            let speculative = match number {
                0 => [Speculative::Off, Speculative::Tokens(3)][tokens % 2],
                _ => Speculative::Tokens(1 + tokens % 4),
            };
            // A mark of many tokens that the model never writes, and one that ends its sentences.
            for close in ["</think>", "."] {
                let budget = ReasoningBudget::new(tokens, "<think>", close);
                cases.push((budget.begun(), drawn(seed, speculative)));
            }
            let first = alone(model, &prompt, &drawn(seed, Speculative::Off))[0];
            let opener = model.tokenizer().unwrap().decode(&[first], false).unwrap();
            let budget = ReasoningBudget::new(tokens, opener.trim(), ".");
            cases.push((budget, drawn(seed, speculative)));
        }
        let expected: Vec<(Vec<u32>, Ended)> = (cases.iter())
            .map(|(budget, options)| expected(model, &prompt, options, budget))
            .collect();
        let requests = cases.iter();
        let requests = requests.map(|(budget, options)| (prompt.clone(), with(budget, options)));
        let requests: Vec<_> = requests.collect();
        // A row without a budget is beside them.
        let plain = drawn(1, Speculative::Off);
        let others = alone(model, &prompt, &plain);
        let together = [&requests[..], &[(prompt.clone(), plain)]].concat();
        let mut found = run(model, together);
        assert_eq!(found.pop(), Some(others));
        for (((found, (expected, ended)), (budget, _)), (ids, options)) in
            found.iter().zip(&expected).zip(&cases).zip(&requests)
        {
            assert_eq!(found, expected, "{number}: {budget:?} {ended:?}");
            assert_eq!(
                &alone(model, ids, options),
                expected,
                "{number}: {budget:?}"
            );
            seen.push((*ended, budget.is_begun));
        }
    }
    for ended in [
        Ended::Forced,
        Ended::ByModel { is_last: true },
        Ended::ByModel { is_last: false },
    ] {
        for is_begun in [true, false] {
            assert!(seen.contains(&(ended, is_begun)), "{ended:?} {is_begun}");
        }
    }
}

#[test]
fn a_grammar_holds_behind_the_forced_mark() {
    for model in models() {
        let prompt = model.tokenizer().unwrap().encode(PROMPT, true).unwrap();
        for (close, tokens) in [("</think>", 0), ("</think>", 3), (".", 2), (".", 9)] {
            let budget = ReasoningBudget::new(tokens, "<think>", close).begun();
            let options = GenerateOptions {
                grammar: Some(Constraint {
                    after: Some(close.to_owned()),
                    ..Grammar::Regex(" [0-9]{2,5}".to_owned()).into()
                }),
                ..drawn(tokens as u64, Speculative::Tokens(3))
            };
            let (expected, _) = expected(&model, &prompt, &options, &budget);
            let request = (prompt.clone(), with(&budget, &options));
            let plain = (prompt.clone(), drawn(3, Speculative::Off));
            let found = run(&model, vec![request.clone(), plain, request]);
            for found in [&found[0], &found[2]] {
                assert_eq!(found, &expected, "{budget:?}");
            }
        }
    }
}

/// Reasoning that begins again has what is left of the budget; a message of reasoning does not
/// begin when nothing is left.
#[test]
fn the_budget_counts_all_reasoning_of_an_answer() {
    let model = load();
    let tokenizer = model.tokenizer().unwrap();
    let prompt = tokenizer.encode(PROMPT, true).unwrap();
    let plain = alone(&model, &prompt, &drawn(0, Speculative::Off));
    let text = tokenizer.decode(&plain, true).unwrap();
    assert!(
        text.matches('.').count() > 1 && text.matches(" ").count() > 4,
        "{text}"
    );
    // Every blank begins reasoning, which ends at once.
    let budget = ReasoningBudget {
        is_anywhere: true,
        ..ReasoningBudget::new(0, " ", "?")
    };
    let found = alone(&model, &prompt, &with(&budget, &drawn(0, Speculative::Off)));
    let text = tokenizer.decode(&found, true).unwrap();
    let blanks = text.match_indices(' ').map(|(at, _)| &text[at + 1..]);
    let closed = blanks.filter(|rest| {
        let word = rest.split([' ', '?']).next().unwrap_or_default();
        !rest[word.len()..].starts_with('?') && !word.is_empty() && rest.len() > word.len()
    });
    assert_eq!(closed.count(), 0, "{text}");
    assert!(text.contains('?'), "{text}");
    let drafted = alone(
        &model,
        &prompt,
        &with(&budget, &drawn(0, Speculative::Tokens(3))),
    );
    assert_eq!(drafted, found);
    // The word behind a full stop is not the one that the model prefers.
    let preferred = text_behind(&tokenizer.decode(&plain, true).unwrap());
    let heads = MessageHeads {
        next: ".".to_owned(),
        mark: ".".to_owned(),
        kind: preferred.clone(),
    };
    let budget = ReasoningBudget {
        is_anywhere: true,
        heads: Some(heads),
        ..ReasoningBudget::new(0, "<never>", "<end>")
    };
    for speculative in [Speculative::Off, Speculative::Tokens(3)] {
        let found = alone(&model, &prompt, &with(&budget, &drawn(0, speculative)));
        let text = tokenizer.decode(&found, true).unwrap();
        assert!(
            !text.contains(&format!(".{preferred}")) && text.contains('.'),
            "{text}"
        );
    }
}

/// The word behind the first full stop, with its blank.
fn text_behind(text: &str) -> String {
    let (_, rest) = text.split_once('.').unwrap();
    let end = rest[1..].find([' ', '.']).unwrap() + 1;
    rest[..end].to_owned()
}

#[test]
fn budgets_that_cannot_hold_are_refused() {
    let model = load();
    let budget = ReasoningBudget::new(3, "", "</think>");
    let options = with(&budget, &drawn(0, Speculative::Off));
    let error = model.generate(PROMPT, &options).err().unwrap();
    assert!(
        error.to_string().contains("a mark of reasoning is empty"),
        "{error}"
    );
    // A bias that forbids the mark leaves no token.
    let tokenizer = model.tokenizer().unwrap();
    let mut options = with(
        &ReasoningBudget::new(2, "<", ".").begun(),
        &drawn(0, Speculative::Off),
    );
    let mark = tokenizer.encode(".", false).unwrap()[0];
    options.sampling.logit_bias.insert(mark, f32::NEG_INFINITY);
    let request = Request::new(PROMPT, options);
    let results = model
        .batch_generate(vec![request], &Limits::default())
        .unwrap();
    let error = results[0].error.as_ref().unwrap().to_string();
    assert!(
        error.contains("reasoning_budget: logit_bias forbids every token"),
        "{error}"
    );
}
