//! Lengths of prompts that recurrent layers record.

use super::cost;
use crate::engine::scheduler::{RequestProgress, Scheduler, TAIL, Table};
use crate::request::limits::Limits;

/// A prompt alone, with and without recording: the number of its chunks, and the lengths that are
/// recorded.
#[test]
fn long_prompts_are_recorded_before_their_end() {
    let parts = |prompt: usize, chunk: usize, reused: usize, records: bool| {
        let mut scheduler = Scheduler::new(Limits::default(), cost(), records);
        let mut requests = Table::from([(1, RequestProgress::new(prompt, prompt + 1, chunk))]);
        scheduler.submit(&mut requests, 1);
        scheduler.plan(&mut requests, |_| Vec::new());
        requests.get_mut(&1).unwrap().reuse(reused, None);
        let (mut done, mut parts, mut recorded) = (reused, 0, Vec::new());
        while done < prompt {
            let [piece] = scheduler.chunks(&requests)[..] else {
                panic!("one prompt")
            };
            assert!(piece.start == done && piece.end > done && piece.end <= done + chunk);
            assert_eq!(piece.is_last, piece.end == prompt);
            done = piece.end;
            recorded.extend(piece.is_recorded.then_some(done));
            requests.get_mut(&1).unwrap().prefilled(done);
            parts += 1;
        }
        (parts, recorded)
    };
    for chunk in [1, 7, 16, 17, 64] {
        for prompt in (1..200).chain([1000, 4000]) {
            for reused in [0, prompt / 3, prompt - 1] {
                let (least, none) = parts(prompt, chunk, reused, false);
                let (n, recorded) = parts(prompt, chunk, reused, true);
                assert!(none.is_empty() && recorded.len() <= 5, "{recorded:?}");
                assert!(n == least || n == least + 1, "{n} parts for {least}");
                let tail = prompt.saturating_sub(TAIL);
                let is_recorded = prompt > chunk && reused < tail;
                assert_eq!(
                    recorded.last() == Some(&tail),
                    is_recorded,
                    "{prompt} {chunk} {reused}"
                );
                assert!(recorded.iter().all(|&len| len > reused && len < prompt));
            }
        }
    }
    let (_, recorded) = parts(4000, 64, 0, true);
    assert_eq!(recorded, [1024, 2048, 3008, 3984]);
}
