use super::cost;
use crate::engine::scheduler::GATHERED_STEPS;
use crate::engine::scheduler::{Id, RequestProgress, Scheduler, Table};
use crate::request::limits::Limits;

/// Requests that gather wait until an eighth of the rows is free, or for 16 steps.
#[test]
fn requests_gather_until_several_rows_are_free() {
    let limits = Limits {
        rows: 24,
        ..Limits::default()
    };
    let submit = |scheduler: &mut Scheduler, requests: &mut Table<RequestProgress>, id: Id| {
        requests.insert(id, RequestProgress::new(3, 9, 512));
        scheduler.submit(requests, id);
    };
    let started = |waiting: u64| {
        let mut scheduler = Scheduler::new(limits.clone(), cost(), false).gathering();
        let mut requests = Table::new();
        (0..24).for_each(|id| submit(&mut scheduler, &mut requests, id));
        scheduler.plan(&mut requests, |_| Vec::new());
        (0..24).for_each(|id| scheduler.joined(&mut requests, id, 24));
        (24..24 + waiting).for_each(|id| submit(&mut scheduler, &mut requests, id));
        (scheduler, requests)
    };
    let prefilling = |scheduler: &mut Scheduler, requests: &mut Table<RequestProgress>| {
        scheduler.plan(requests, |_| Vec::new());
        scheduler.counts()[1]
    };

    let (mut scheduler, mut requests) = started(5);
    for (leaves, admitted) in [(0, 0), (1, 0), (2, 3)] {
        scheduler.remove(&mut requests, leaves);
        assert_eq!(
            prefilling(&mut scheduler, &mut requests),
            admitted,
            "after {leaves} has left"
        );
    }

    // No other request arrives: one free row is enough for one request.
    let (mut scheduler, mut requests) = started(1);
    scheduler.remove(&mut requests, 0);
    assert_eq!(prefilling(&mut scheduler, &mut requests), 1);

    // No other row leaves.
    let (mut scheduler, mut requests) = started(5);
    scheduler.remove(&mut requests, 0);
    let steps = (0..).find(|_| prefilling(&mut scheduler, &mut requests) == 1);
    assert_eq!(steps, Some(GATHERED_STEPS));
}
