use super::cost;
use crate::engine::scheduler::GATHERED_STEPS;
use crate::engine::scheduler::{Job, Scheduler};
use crate::request::limits::Limits;

/// Requests that gather wait until an eighth of the rows is free, or for 16 steps.
#[test]
fn requests_gather_until_several_rows_are_free() {
    let limits = Limits {
        rows: 24,
        ..Limits::default()
    };
    let job = |id| Job {
        id,
        prompt: 3,
        replay: 0,
        most: 9,
        chunk: 512,
    };
    let started = |waiting: u64| {
        let mut scheduler = Scheduler::new(limits.clone(), cost(), false).gathering();
        (0..24).for_each(|id| scheduler.submit(job(id)));
        scheduler.plan();
        (0..24).for_each(|id| scheduler.joined(id, 24));
        (24..24 + waiting).for_each(|id| scheduler.submit(job(id)));
        scheduler
    };
    let prefilling = |scheduler: &mut Scheduler| {
        scheduler.plan();
        scheduler.counts()[1]
    };

    let mut scheduler = started(5);
    for (leaves, admitted) in [(0, 0), (1, 0), (2, 3)] {
        scheduler.remove(leaves);
        assert_eq!(
            prefilling(&mut scheduler),
            admitted,
            "after {leaves} has left"
        );
    }

    // Nobody else comes: one free row is enough for one request.
    let mut scheduler = started(1);
    scheduler.remove(0);
    assert_eq!(prefilling(&mut scheduler), 1);

    // No other row leaves.
    let mut scheduler = started(5);
    scheduler.remove(0);
    let steps = (0..).find(|_| prefilling(&mut scheduler) == 1);
    assert_eq!(steps, Some(GATHERED_STEPS));
}
