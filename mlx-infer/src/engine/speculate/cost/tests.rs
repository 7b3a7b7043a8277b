use super::*;

fn costs(rows: usize, seconds: &[f64]) -> Costs {
    let mut costs = Costs::default();
    for (at, &seconds) in seconds.iter().enumerate() {
        for _ in 0..KEPT {
            costs.learn(rows, at + 1, DraftOrigin::Text, seconds);
        }
    }
    costs
}

fn offer(most: usize, rate: f64) -> Offer {
    Offer {
        most,
        rates: Rates::of([rate; MOST]),
        ..Offer::default()
    }
}

fn one(costs: &Costs, offer: Offer) -> usize {
    costs.plan(1, &[offer])[0]
}

#[test]
fn the_draft_with_the_most_tokens_a_second_is_taken() {
    let costs = costs(1, &[1.0, 1.1, 1.2, 2.9, 3.0]);
    assert_eq!(one(&costs, offer(4, 1.0)), 2);
    assert_eq!(one(&costs, offer(4, 0.5)), 2);
    assert_eq!(one(&costs, offer(4, 0.0)), 0);
    // A gain of less than 10 % does not count, nor one of less than 3 % where a row already drafts.
    assert_eq!(one(&costs, offer(1, 0.2)), 0);
    assert_eq!(one(&costs, offer(1, 0.22)), 1);
    let goes_on = |rate| Offer {
        goes_on: true,
        ..offer(1, rate)
    };
    assert_eq!(one(&costs, goes_on(0.12)), 0);
    assert_eq!(one(&costs, goes_on(0.14)), 1);
}

#[test]
fn steps_with_drafts_are_measured_once_and_then_modelled() {
    assert_eq!(one(&Costs::default(), offer(3, 1.0)), 0);
    assert_eq!(one(&costs(1, &[1.0]), offer(8, 1.0)), 3);
    assert_eq!(one(&costs(1, &[1.0]), offer(2, 1.0)), 2);
    // Each further token adds 0.1.
    assert_eq!(one(&costs(1, &[1.0, 1.1]), offer(3, 1.0)), 3);
    assert_eq!(one(&costs(1, &[1.0, 1.9]), offer(3, 0.5)), 0);
    // Computed drafts have separate times.
    let drawn = Offer {
        origin: DraftOrigin::Model,
        ..offer(3, 1.0)
    };
    let mut costs = costs(1, &[1.0, 1.1]);
    for _ in 0..SURE {
        assert_eq!(one(&costs, drawn), 1);
        costs.learn(1, 2, DraftOrigin::Model, 2.5);
    }
    assert_eq!(one(&costs, drawn), 0);
    assert_eq!(one(&costs, offer(3, 1.0)), 3);
}

/// One slow step of the width that seemed best: its time is compared with the line through the
/// others.
#[test]
fn first_times_of_a_width_are_weighed() {
    let after = |slow: f64, times: usize| {
        let mut costs = costs(1, &[1.0, 1.3, 1.6]);
        for _ in 0..times {
            costs.learn(1, 4, DraftOrigin::Text, slow);
        }
        one(&costs, offer(3, 1.0))
    };
    // The line gives 1.9. Three tokens in a step of 1.6 are as many a second as four in a step of
    // 2.13.
    assert_eq!(after(2.3, 0), 3);
    assert_eq!([1, 2, 3].map(|times| after(2.3, times)), [3, 2, 2]);
    assert_eq!([1, 2, 3].map(|times| after(3.0, times)), [2, 2, 2]);
    // A width between is modelled by the line through a wider one.
    let mut costs = costs(1, &[1.0]);
    costs.learn(1, 4, DraftOrigin::Text, 4.0);
    assert!((costs.guess(1, 2, DraftOrigin::Text, 1.0).unwrap() - 2.0).abs() < 1e-9);
}

#[test]
fn rows_without_drafts_lose_little() {
    let rows = [offer(2, 1.0), Offer::default()];
    assert_eq!(costs(2, &[1.0, 1.04, 1.2]).plan(2, &rows), [1, 0]);
    assert_eq!(costs(2, &[1.0, 1.2, 1.2]).plan(2, &rows), [0, 0]);
    assert_eq!(costs(2, &[1.0, 1.2, 1.25]).plan(2, &[rows[0]; 2]), [2, 2]);
}

#[test]
fn each_row_has_its_own_length() {
    let rows = [
        offer(4, 0.9),
        offer(4, 0.1),
        offer(1, 0.9),
        Offer {
            is_fixed: true,
            ..offer(2, 0.0)
        },
    ];
    // A row whose second token is reached once in a hundred times brings only one token.
    assert_eq!(
        costs(4, &[1.0, 1.0, 1.0, 1.0, 1.0]).plan(4, &rows),
        [4, 1, 1, 2]
    );
    // If the step is that wide anyway, the row brings all its tokens.
    assert_eq!(
        costs(4, &[1.0, 5.0, 9.0, 30.0, 40.0]).plan(4, &rows),
        [2, 1, 1, 2]
    );
}

/// While a row drafts, another program takes a quarter of the machine. The time of the plain step,
/// measured before, then counts as longer by the same factor.
#[test]
fn a_slow_machine_changes_no_plan() {
    let mut costs = costs(1, &[1.0, 1.3]);
    assert_eq!(one(&costs, offer(1, 0.5)), 1);
    for _ in 0..30 {
        costs.learn(1, 2, DraftOrigin::Text, 1.25 * 1.3);
        assert_eq!(one(&costs, offer(1, 0.5)), 1);
    }
    assert!((costs.of(1, 2, DraftOrigin::Text).unwrap() - 1.3).abs() < 1e-9);
    // Single slow steps also change nothing.
    for step in 0..200 {
        let late = if step % 7 == 0 { 3.0 } else { 1.0 };
        costs.learn(1, 2, DraftOrigin::Text, 1.3 * late);
        assert_eq!(one(&costs, offer(1, 0.5)), 1, "{step}");
    }
}

/// Compared with the second plain step, drafts would seem to pay.
#[test]
fn slow_first_steps_are_not_the_usual_ones() {
    let mut costs = Costs::default();
    for seconds in [2.0, 1.6, 1.0] {
        costs.learn(1, 1, DraftOrigin::Text, seconds);
    }
    (0..SURE).for_each(|_| costs.learn(1, 2, DraftOrigin::Text, 2.0));
    assert_eq!(one(&costs, offer(1, 0.7)), 0);
}

/// The first times of a width were measured on a busy machine.
#[test]
fn drafts_that_almost_pay_are_tried() {
    let mut costs = costs(1, &[1.0]);
    (0..SURE).for_each(|_| costs.learn(1, 2, DraftOrigin::Text, 1.75));
    assert_eq!(one(&costs, offer(1, 0.7)), 1);
    assert_eq!(one(&costs, offer(1, 0.5)), 0);
    let mut slow = costs.clone();
    for tries in SURE..TRIED {
        assert_eq!(one(&slow, offer(1, 0.7)), 1, "{tries}");
        slow.learn(1, 2, DraftOrigin::Text, 1.75);
    }
    assert_eq!(one(&slow, offer(1, 0.7)), 0);
    costs.learn(1, 2, DraftOrigin::Text, 1.3);
    assert_eq!(one(&costs, offer(1, 0.5)), 1);
}

/// A row continues to draft after one slow step, and stops after three.
#[test]
fn one_slow_step_says_little() {
    let mut costs = costs(1, &[1.0]);
    for _ in 0..SURE {
        assert_eq!(one(&costs, offer(1, 0.7)), 1);
        costs.learn(1, 2, DraftOrigin::Text, 9.0);
    }
    assert_eq!(one(&costs, offer(1, 0.7)), 0);
    // An old time is measured again.
    for _ in 0..STALE {
        costs.learn(1, 1, DraftOrigin::Text, 1.0);
    }
    assert_eq!(one(&costs, offer(1, 0.7)), 1);
    costs.learn(1, 2, DraftOrigin::Text, 1.2);
    assert_eq!(costs.of(1, 2, DraftOrigin::Text), Some(1.2));
}
