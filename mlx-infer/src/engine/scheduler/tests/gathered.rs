use super::cost;
use crate::engine::scheduler::{Id, RequestProgress, Scheduler, Table};
use crate::request::limits::Limits;

fn submit(scheduler: &mut Scheduler, requests: &mut Table<RequestProgress>, id: Id) {
    requests.insert(id, RequestProgress::new(3, 9, 512));
    scheduler.submit(requests, id);
}

/// A scheduler whose requests gather, with `running` rows of `rows` that decode and `waiting`
/// requests.
fn started(rows: usize, running: u64, waiting: u64) -> (Scheduler, Table<RequestProgress>) {
    let limits = Limits {
        rows,
        ..Limits::default()
    };
    let mut scheduler = Scheduler::new(limits, cost(), false).gathering();
    let mut requests = Table::new();
    (0..running).for_each(|id| submit(&mut scheduler, &mut requests, id));
    scheduler.plan(&mut requests, |_| Vec::new());
    (0..running).for_each(|id| scheduler.joined(&mut requests, id, rows));
    (running..running + waiting).for_each(|id| submit(&mut scheduler, &mut requests, id));
    (scheduler, requests)
}

fn prefilling(scheduler: &mut Scheduler, requests: &mut Table<RequestProgress>) -> usize {
    scheduler.plan(requests, |_| Vec::new());
    scheduler.counts()[1]
}

/// Requests that gather wait until as many can enter as an eighth of the rows that decode.
#[test]
fn requests_gather_until_several_rows_are_free() {
    let (mut scheduler, mut requests) = started(24, 24, 5);
    for (leaves, admitted) in [(0, 0), (1, 2)] {
        scheduler.remove(&mut requests, leaves);
        assert_eq!(
            prefilling(&mut scheduler, &mut requests),
            admitted,
            "after {leaves} has left"
        );
    }
}

/// They do not wait long: a step for four rows that decode, at most 16.
#[test]
fn requests_do_not_gather_for_long() {
    for (running, steps) in [(24, 6), (40, 10), (200, 16)] {
        // Rows are free, or the only one that is free is that of a row that has left.
        for (rows, leaves) in [(256, false), (running as usize, true)] {
            let (mut scheduler, mut requests) = started(rows, running, 1);
            if leaves {
                scheduler.remove(&mut requests, 0);
            }
            let rest = running - u64::from(leaves);
            let waited = (0..).find(|_| prefilling(&mut scheduler, &mut requests) == 1);
            assert_eq!(
                waited,
                Some(steps.min(rest as usize / 4)),
                "{running} rows of {rows}"
            );
        }
    }
}

/// With few rows there is nothing to wait for, and a request that comes while a prompt is computed
/// enters beside it.
#[test]
fn requests_beside_few_rows_and_beside_prompts_do_not_gather() {
    let (mut scheduler, mut requests) = started(64, 15, 1);
    assert_eq!(prefilling(&mut scheduler, &mut requests), 1);
    let (mut scheduler, mut requests) = started(64, 0, 1);
    assert_eq!(prefilling(&mut scheduler, &mut requests), 1);
    for id in 1..30 {
        submit(&mut scheduler, &mut requests, id);
        assert_eq!(prefilling(&mut scheduler, &mut requests), id as usize + 1);
    }
}
