//! The scheduler on plain data: random schedules of requests, each run by a model of a machine that
//! follows the plans.

use std::collections::BTreeMap;

use crate::engine::scheduler::{
    CacheCost, Id, RequestProgress, Scheduled, Scheduler, Status, Table,
};
use crate::request::limits::Limits;
use mlx_core::DType;
use mlx_nn::{CacheOptions, KvShape, LayerKind, RecurrentShape, StateCost, StatePart};
use proptest::prelude::*;

mod gathered;
mod recorded;

const PAGE: usize = 4;

fn cost() -> CacheCost {
    let options = CacheOptions::default();
    // Keys and values of half a byte each.
    let kinds = [LayerKind::Full, LayerKind::Window(6)];
    let cost = |kind: LayerKind| StateCost {
        row_bytes: 0,
        position_bytes: 1,
        limit: kind.window(&options),
    };
    CacheCost::new(kinds.map(cost).to_vec(), PAGE)
}

#[test]
fn a_row_costs_its_pages() {
    // A layer that keeps all positions, and one that keeps six, in pages of four.
    for (len, bytes) in [
        (0, 0),
        (1, 4 + 4),
        (4, 4 + 4),
        (5, 8 + 8),
        (9, 12 + 12),
        (30, 32 + 12),
    ] {
        assert_eq!(cost().row(len), bytes, "{len} positions");
    }
}

/// A recurrent layer costs a row its fixed bytes, also before its first position.
#[test]
fn a_recurrent_layer_costs_the_same_at_any_length() {
    let parts = [
        StatePart::Window {
            name: "conv",
            len: 3,
            width: 10,
        },
        StatePart::Carry {
            name: "state",
            shape: [2, 4, 5],
            dtype: DType::F32,
        },
    ];
    let kv = KvShape {
        heads: 2,
        key_dim: 8,
        value_dim: 4,
    };
    let options = CacheOptions::default();
    let kinds = [
        LayerKind::Full,
        LayerKind::Recurrent(RecurrentShape::new(&parts)),
    ];
    let costs = kinds.map(|kind| kind.cost(kv, DType::BF16, &options).unwrap());
    let fixed = 3 * 10 * 2 + 2 * 4 * 5 * 4;
    assert_eq!((costs[1].row_bytes, costs[1].position_bytes), (fixed, 0));
    assert_eq!(costs[0].position_bytes, 2 * (8 + 4) * 2);
    let cost = CacheCost::new(costs.to_vec(), PAGE);
    for (len, positions) in [(0, 0), (5, 8), (9, 12)] {
        assert_eq!(cost.row(len), fixed + positions * 48);
    }
}

/// A request: its prompt, and the tokens that it generates before it ends.
#[derive(Clone, Debug)]
struct Asked {
    prompt: usize,
    tokens: usize,
    chunk: usize,
    /// The tick at which it arrives, and that at which it is cancelled if it still runs.
    arrives: usize,
    cancelled: Option<usize>,
    /// How much of its prompt is stored already, and where the prompt is cut, in sixteenths.
    reused: usize,
    cut: Option<usize>,
    is_background: bool,
}

#[derive(Clone, Debug)]
struct Day {
    asked: Vec<Asked>,
    limits: Limits,
    /// The ticks whose step or prefill fails.
    failures: Vec<usize>,
    /// Whether lengths of prompts are recorded.
    records: bool,
    /// Whether the number of slots is rounded up.
    rounds: bool,
}

fn days() -> impl Strategy<Value = Day> {
    let cancelled = prop_oneof![3 => Just(None), 1 => (0..60usize).prop_map(Some)];
    let reused = prop_oneof![Just(0usize), 0..16usize];
    let cut = prop_oneof![Just(None), (0..16usize).prop_map(Some)];
    let asked = (
        1..15usize,
        1..12usize,
        1..6usize,
        0..40usize,
        cancelled,
        reused,
        cut,
        any::<bool>(),
    );
    let asked = asked.prop_map(
        |(prompt, tokens, chunk, arrives, cancelled, reused, cut, is_background)| Asked {
            prompt,
            tokens,
            chunk,
            arrives,
            cancelled,
            reused,
            cut,
            is_background,
        },
    );
    let memory = prop_oneof![Just(None), (10..150usize).prop_map(Some)];
    let limits =
        (1..20usize, 1..30usize, memory).prop_map(|(rows, step_tokens, cache_bytes)| Limits {
            rows,
            step_tokens: Some(step_tokens),
            cache_bytes,
            ..Limits::default()
        });
    let failures = proptest::collection::vec(0..60usize, 0..3);
    let asked = proptest::collection::vec((asked, any::<bool>()), 1..24);
    let flags = (any::<bool>(), any::<bool>());
    (asked, limits, failures, flags).prop_map(|(asked, limits, failures, flags)| {
        let (records, rounds) = flags;
        let (mut asked, same): (Vec<Asked>, Vec<bool>) = asked.into_iter().unzip();
        // Some requests have the prompt of the previous one.
        for at in 1..asked.len() {
            if same[at] {
                (asked[at].prompt, asked[at].chunk) = (asked[at - 1].prompt, asked[at - 1].chunk);
            }
        }
        Day {
            asked,
            limits,
            failures,
            records,
            rounds,
        }
    })
}

impl Scheduled for RequestProgress {
    fn progress(&self) -> &RequestProgress {
        self
    }

    fn progress_mut(&mut self) -> &mut RequestProgress {
        self
    }
}

/// A row of the machine: its progress for the scheduler, and its own counts of prompt tokens
/// computed, tokens generated, and positions stored if it decodes.
#[derive(Clone, Debug)]
struct Row {
    progress: RequestProgress,
    done: usize,
    generated: usize,
    held: Option<usize>,
}

impl Scheduled for Row {
    fn progress(&self) -> &RequestProgress {
        &self.progress
    }

    fn progress_mut(&mut self) -> &mut RequestProgress {
        &mut self.progress
    }
}

/// Ends a request.
fn remove(scheduler: &mut Scheduler, rows: &mut Table<Row>, id: Id) {
    scheduler.remove(rows, id);
    let row = rows.remove(&id).expect("a request that ends exists");
    assert_eq!(row.progress.status(), Status::Finished);
}

/// The numbers of requests that wait, are in prefill, and decode, by their statuses.
fn statuses(rows: &Table<Row>) -> [usize; 3] {
    let count = |wanted: &[Status]| {
        let rows = rows.values();
        rows.filter(|row| wanted.contains(&row.progress.status()))
            .count()
    };
    [
        count(&[Status::Waiting, Status::Preempted]),
        count(&[Status::Prefilling]),
        count(&[Status::Running]),
    ]
}

#[derive(Debug, PartialEq)]
enum End {
    Finished(usize),
    Cancelled,
    Refused,
    Blamed,
}

/// Runs a day and returns how each request ended.
fn run(day: &Day) -> Result<BTreeMap<u64, End>, TestCaseError> {
    let mut scheduler = Scheduler::new(day.limits.clone(), cost(), day.records);
    if day.rounds {
        scheduler = scheduler.rounding();
    }
    let mut rows: Table<Row> = Table::new();
    let mut ends = BTreeMap::new();
    let mut slots = 0;
    let asked = |id: u64| &day.asked[id as usize];
    for tick in 0..2000 {
        for (id, request) in day.asked.iter().enumerate() {
            let id = id as u64;
            if request.arrives == tick {
                let most = request.prompt + request.tokens;
                let row = Row {
                    progress: RequestProgress::new(request.prompt, most, request.chunk)
                        .in_background(request.is_background),
                    done: 0,
                    generated: 0,
                    held: None,
                };
                rows.insert(id, row);
                scheduler.submit(&mut rows, id);
            }
            if request.cancelled == Some(tick) && rows.contains_key(&id) {
                remove(&mut scheduler, &mut rows, id);
                ends.insert(id, End::Cancelled);
            }
        }
        let fails = day.failures.contains(&tick);
        let plan = scheduler.plan(&mut rows, |_| Vec::new());
        for (id, _) in plan.refuse {
            // Only requests that cannot fit even alone are refused.
            let row = rows.remove(&id).expect("a refused request exists");
            let needs = cost().row(asked(id).prompt + row.generated + 1);
            prop_assert!(day.limits.cache_bytes.is_some_and(|limit| needs > limit));
            prop_assert!(scheduler.running().all(|other| other != id));
            prop_assert_eq!(row.progress.status(), Status::Finished);
            ends.insert(id, End::Refused);
        }
        for id in plan.preempt {
            let row = rows.get_mut(&id).expect("a preempted request exists");
            (row.done, row.held) = (0, None);
            prop_assert_eq!(row.progress.status(), Status::Preempted);
            let known = asked(id).prompt + row.generated;
            scheduler.requeue(&mut rows, id, asked(id).prompt, known);
        }
        if let Some(wanted) = plan.compact {
            let held = rows.values().filter(|row| row.held.is_some()).count();
            prop_assert!(held <= wanted && wanted <= slots.max(held));
            slots = wanted;
            scheduler.set_slots(slots);
        }
        prop_assert_eq!(statuses(&rows), scheduler.counts());
        // A request in the background has no row while another one waits.
        let with = |is_background: bool, wanted: [Status; 2]| {
            let mut all = rows.iter();
            all.any(|(&id, row)| {
                asked(id).is_background == is_background && wanted.contains(&row.progress.status())
            })
        };
        let others_wait = with(false, [Status::Waiting, Status::Preempted]);
        let has_row = with(true, [Status::Prefilling, Status::Running]);
        // Slots without rows are removed first.
        prop_assert!(plan.compact.is_some() || !others_wait || !has_row);
        let mut leaders = BTreeMap::new();
        for id in scheduler.leading(&rows).collect::<Vec<u64>>() {
            let Asked { prompt, chunk, .. } = asked(id);
            let leader = *leaders.entry((prompt, chunk)).or_insert(id);
            if leader != id && rows[&id].done == 0 && rows[&id].generated == 0 {
                rows.get_mut(&id).unwrap().progress.follow(leader);
            }
        }
        let fresh: Vec<u64> = scheduler.fresh(&rows).collect();
        for id in fresh {
            let Asked {
                prompt,
                reused,
                cut,
                ..
            } = asked(id);
            let row = rows.get_mut(&id).expect("a request that begins exists");
            prop_assert_eq!(row.done, 0);
            row.done = prompt * reused / 16;
            let cut = cut
                .map(|cut| prompt * cut / 16)
                .filter(|&cut| cut > row.done);
            row.progress.reuse(row.done, cut);
        }
        let chunks = scheduler.chunks(&rows);
        let ids: Vec<u64> = chunks.iter().map(|chunk| chunk.id).collect();
        let decoding = scheduler.running().count();
        let tokens: usize = chunks.iter().map(|chunk| chunk.end - chunk.start).sum();
        prop_assert!(
            decoding == 0 || ids.len() <= 1 || decoding + tokens <= day.limits.step_tokens.unwrap()
        );
        if fails && !ids.is_empty() {
            for id in &ids {
                rows.get_mut(id).unwrap().done = 0;
            }
            if let Some(id) = scheduler.prefill_failed(&mut rows, &ids) {
                remove(&mut scheduler, &mut rows, id);
                ends.insert(id, End::Blamed);
            }
        } else {
            for chunk in chunks {
                let row = rows
                    .get_mut(&chunk.id)
                    .expect("a request in prefill exists");
                prop_assert_eq!(row.done, chunk.start, "no part twice, none left out");
                prop_assert!(chunk.end - chunk.start <= asked(chunk.id).chunk);
                row.done = chunk.end;
                prop_assert_eq!(chunk.is_last, chunk.end == asked(chunk.id).prompt);
                if chunk.is_cut {
                    let Asked { prompt, cut, .. } = asked(chunk.id);
                    prop_assert!(
                        !chunk.is_last && cut.map(|cut| prompt * cut / 16) == Some(chunk.end)
                    );
                }
                if !chunk.is_last {
                    row.progress.prefilled(chunk.end);
                    continue;
                }
                let followers: Vec<u64> = scheduler.followers(&rows, chunk.id).collect();
                for id in [chunk.id].into_iter().chain(followers) {
                    prop_assert_eq!(asked(id).prompt, chunk.end);
                    let row = rows.get_mut(&id).expect("a request in prefill exists");
                    row.generated = row.generated.max(1);
                    if row.generated == asked(id).tokens {
                        remove(&mut scheduler, &mut rows, id);
                        ends.insert(id, End::Finished(asked(id).tokens));
                        continue;
                    }
                    (row.done, row.held) = (chunk.end, Some(chunk.end));
                    let live = rows.values().filter(|row| row.held.is_some()).count();
                    if live > slots {
                        slots = scheduler.slots_for(&rows, live);
                    }
                    scheduler.joined(&mut rows, id, slots);
                }
            }
        }
        let running: Vec<u64> = scheduler.running().collect();
        let held: Vec<u64> = rows
            .iter()
            .filter(|(_, row)| row.held.is_some())
            .map(|(&id, _)| id)
            .collect();
        let mut sorted = running.clone();
        sorted.sort_unstable();
        prop_assert_eq!(
            &sorted,
            &held,
            "the scheduler and the machine know the same rows"
        );
        prop_assert!(running.len() <= day.limits.rows);
        if fails && !running.is_empty() {
            for row in rows.values_mut().filter(|row| row.held.is_some()) {
                (row.done, row.held) = (0, None);
            }
            slots = 0;
            scheduler.set_slots(0);
            let blamed = scheduler.step_failed(&mut rows);
            for &id in &running {
                let known = asked(id).prompt + rows[&id].generated;
                scheduler.requeue(&mut rows, id, asked(id).prompt, known);
            }
            prop_assert_eq!(blamed.is_some(), running.len() == 1);
            if let Some(id) = blamed {
                remove(&mut scheduler, &mut rows, id);
                ends.insert(id, End::Blamed);
            }
            continue;
        }
        let (mut took, mut used) = (0, 0);
        for id in running {
            let row = rows.get_mut(&id).unwrap();
            let held = row.held.as_mut().unwrap();
            *held += 1;
            took += cost().row(*held);
            used += 1;
            row.progress.stepped(1);
            // After the tokens that were generated before a preemption are replayed, each step
            // generates a new one.
            row.generated = row.generated.max(*held - asked(id).prompt + 1);
            if row.generated == asked(id).tokens {
                remove(&mut scheduler, &mut rows, id);
                ends.insert(id, End::Finished(asked(id).tokens));
            }
        }
        if let Some(limit) = day.limits.cache_bytes {
            took += (slots.max(used) - used) * cost().row(0);
            prop_assert!(took <= limit, "tick {}: {} bytes of {}", tick, took, limit);
        }
        if tick > 60 && rows.is_empty() {
            prop_assert!(scheduler.counts() == [0; 3]);
            return Ok(ends);
        }
    }
    Err(TestCaseError::fail(format!(
        "a request waits for ever: {rows:?}"
    )))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_request_ends_once_and_memory_is_kept(day in days()) {
        let ends = run(&day)?;
        for (id, asked) in day.asked.iter().enumerate() {
            let end = &ends[&(id as u64)];
            let fits = day.limits.cache_bytes.is_none_or(|limit| {
                cost().row(asked.prompt + asked.tokens) <= limit
            });
            if asked.cancelled.is_none_or(|at| at < asked.arrives) && fits && day.failures.is_empty() {
                prop_assert_eq!(end, &End::Finished(asked.tokens));
            }
        }
    }
}

/// Room for drafts is asked for after requests have ended in the same tick.
#[test]
fn pages_that_were_shared_with_a_request_that_has_ended_count_again() {
    let layer = StateCost {
        row_bytes: 0,
        position_bytes: 1,
        limit: None,
    };
    let limits = Limits {
        cache_bytes: Some(6 * 64),
        ..Limits::default()
    };
    let mut scheduler = Scheduler::new(limits, CacheCost::new(vec![layer], 64), false);
    let mut rows: Table<RequestProgress> = Table::new();
    for id in [0, 1] {
        rows.insert(id, RequestProgress::new(200, 600, 512));
        scheduler.submit(&mut rows, id);
    }
    // Of their four pages, the younger one shares three.
    let plan = scheduler.plan(&mut rows, |_| vec![3]);
    assert!(plan.refuse.is_empty() && plan.preempt.is_empty());
    for id in [0, 1] {
        scheduler.joined(&mut rows, id, id as usize + 1);
    }
    assert!(scheduler.has_room(&rows, 50) && !scheduler.has_room(&rows, 60));
    scheduler.remove(&mut rows, 0);
    rows.remove(&0);
    scheduler.set_slots(1);
    assert!(scheduler.has_room(&rows, 183) && !scheduler.has_room(&rows, 184));
}
