//! Families on several ranks: each test starts this program again, once for each rank of a ring.

mod ranks;

use std::time::{Duration, Instant};

use mlx_models::LoadOptions;
use mlx_nn::shard::Ranks;

use super::case::Case;
use crate::launch::{Ring, assert_ended_well};
pub use ranks::run;

fn on_ranks(program: &str, size: usize) {
    let ring = Ring::new(size);
    for (rank, output) in ring.run(program).iter().enumerate() {
        assert_ended_well(output, &format!("{program}, rank {rank} of {size}"));
    }
}

#[test]
fn families_on_two_ranks_equal_one_process() {
    on_ranks("families", 2);
}

#[test]
fn families_on_three_ranks_equal_one_process() {
    on_ranks("families", 3);
}

#[test]
fn families_with_other_heads_equal_one_process() {
    on_ranks("redrawn", 2);
    on_ranks("redrawn", 3);
}

#[test]
fn adapters_on_two_ranks_equal_one_process() {
    on_ranks("adapters", 2);
}

#[test]
fn a_model_without_a_head_on_two_ranks_equals_one_process() {
    on_ranks("headless", 2);
}

#[test]
fn a_number_of_ranks_that_does_not_divide_heads_is_refused_by_name() {
    let case = Case::all();
    let case = case.iter().find(|case| case.name == "qwen3").unwrap();
    let load = |size: usize| {
        let ranks = Ranks::new(0, size).unwrap();
        let options = LoadOptions {
            ranks,
            ..LoadOptions::default()
        };
        mlx_models::load_from("here", case.config("config.json"), case.files(), options)
    };
    let error = match load(7) {
        Ok(_) => panic!("7 ranks have taken it"),
        Err(error) => error.to_string(),
    };
    for part in [
        "here",
        "qwen3",
        "7 ranks",
        "model.layers.0.self_attn",
        "heads",
        "ranks that work: 2",
    ] {
        assert!(error.contains(part), "{error}");
    }
    assert!(Ranks::new(2, 2).is_err() && Ranks::new(0, 0).is_err());
}

#[test]
fn a_rank_that_dies_is_an_error_of_the_others() {
    let ring = Ring::new(2);
    let mut ranks = ring.start("survivor");
    for rank in &mut ranks {
        rank.wait_for_line("ready");
    }
    let start = Instant::now();
    ranks[1].kill();
    let output = ranks.remove(0).output();
    assert_ended_well(&output, "the rank that is left");
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "{:?}",
        start.elapsed()
    );
}
