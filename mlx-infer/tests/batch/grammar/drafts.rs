//! Rows with grammars that draft: a draft that the mask forbids is not kept, and an error ends only
//! its own row.

use mlx_core::DType;
use mlx_infer::{
    Constraint, ErrorKind, GenerateOptions, Grammar, Limits, LoadOptions, LoadedModel, Request,
    Speculative, default_model_files,
};

use super::regex;
use crate::checkpoint::testdata;
use crate::speculation::same;

fn greedy(grammar: Option<Constraint>, speculative: Speculative) -> GenerateOptions {
    GenerateOptions {
        max_tokens: 40,
        grammar,
        speculative,
        ..Default::default()
    }
}

/// The models whose heads or draft models draft.
fn drafting() -> [LoadedModel; 2] {
    let options = || LoadOptions {
        dtype: Some(DType::F32),
        max_draft: 4,
        ..LoadOptions::default()
    };
    let head = LoadedModel::load(testdata("hybrid-model"), options()).unwrap();
    let files = default_model_files();
    let mut twice = LoadedModel::load_files(files, options(), &mut |_, _| ()).unwrap();
    twice.load_draft_model(default_model_files()).unwrap();
    [head, twice]
}

/// A mark of several tokens that opens reasoning.
#[test]
fn an_opening_mark_of_several_tokens_may_come_while_rows_draft() {
    let prompt = "The red fox eats a ripe berry. The red fox eats";
    let form = |opener: Option<&str>, after: Option<&str>| Constraint {
        opener: opener.map(str::to_owned),
        after: after.map(str::to_owned),
        ..regex(" [0-9]{2,5}").into()
    };
    let front = Constraint {
        front: Some("start: \" a ripe\" \" \"? /[a-z]{3,5}/ \".\"".to_owned()),
        ..regex(" [0-9]{2,5}").into()
    };
    let forms = [
        None,
        Some(form(Some(" a ripe"), Some("."))),
        Some(form(None, Some("."))),
        Some(form(None, None)),
        Some(front),
    ];
    let mut opened = 0;
    for model in drafting() {
        let run = |speculative: Speculative, rows: usize| {
            let request =
                |form: &Option<Constraint>| Request::new(prompt, greedy(form.clone(), speculative));
            let requests = forms.iter().chain(&forms[1..2]).map(request).collect();
            let limits = Limits {
                rows,
                ..Limits::default()
            };
            model.batch_generate(requests, &limits).unwrap()
        };
        let expected = run(Speculative::Off, 6);
        for rows in [1, 2, 6] {
            let mut drafted = 0;
            for (found, expected) in run(Speculative::Tokens(2), rows).iter().zip(&expected) {
                assert!(found.error.is_none(), "{:?}", found.error);
                assert!(same(&found.tokens, &expected.tokens), "{rows} rows");
                drafted += found.metrics.drafted_tokens;
            }
            assert!(drafted > 5, "{rows} rows: {drafted}");
        }
        let text = expected[1].text.as_deref().unwrap();
        opened += usize::from(text.starts_with(" a ripe"));
    }
    assert!(opened > 0, "no row opened its reasoning");
}

/// A regular expression whose mask takes too much work fails while its drafts are verified.
#[test]
fn a_mask_that_fails_behind_a_draft_ends_its_own_row() {
    let files = default_model_files();
    let options = LoadOptions {
        max_draft: 4,
        ..Default::default()
    };
    let model = LoadedModel::load_files(files, options, &mut |_, _| ()).unwrap();
    let large = regex("(((((a{1,60}){1,60}){1,60}){1,60}){1,60})");
    let neighbour = |grammar: Option<Grammar>| GenerateOptions {
        ignore_eos: true,
        ..greedy(grammar.map(Constraint::from), Speculative::Tokens(4))
    };
    let asked = || {
        [
            Request::new("The red fox", neighbour(None)),
            Request::new(
                "a",
                greedy(Some(large.clone().into()), Speculative::Tokens(4)),
            ),
            Request::new("The red fox", neighbour(Some(regex("[a-z ]{60}")))),
        ]
    };
    let alone: Vec<_> = asked()
        .into_iter()
        .map(|request| {
            let mut results = model.batch_generate(vec![request], &Limits::default());
            results.as_mut().unwrap().remove(0)
        })
        .collect();
    let together = model
        .batch_generate(asked().into(), &Limits::default())
        .unwrap();
    for at in [0, 2] {
        assert!(together[at].error.is_none(), "{:?}", together[at].error);
        assert!(same(&together[at].tokens, &alone[at].tokens), "row {at}");
    }
    for result in [&alone[1], &together[1]] {
        let error = result.error.as_ref().unwrap();
        assert_eq!(error.kind(), ErrorKind::Argument);
        assert!(
            error
                .to_string()
                .starts_with("regex: no mask could be computed"),
            "{error}"
        );
    }
}
