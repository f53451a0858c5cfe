//! All pairs of operations, run concurrently by several nodes on the same few rows: PostgreSQL must never detect a
//! deadlock. The lock order that the operations follow is in `docs/adr/0044-one-lock-order.md`.

mod harness;
mod operations;

use std::time::{Duration, Instant};

use harness::LockHarness;
use operations::Operation;

/// Run time of one combination of operations.
const COMBINATION_TIME: Duration = Duration::from_millis(100);

/// Runs operations concurrently, each on two nodes, for the given time.
async fn run_together(harness: &LockHarness, combination: &[Operation], seed: u64) {
    let end = Instant::now() + COMBINATION_TIME;
    let mut tasks = Vec::new();
    for (index, operation) in combination.iter().copied().enumerate() {
        for copy in 0..2 {
            let node = harness.node((index + copy) % harness::NODES, seed * 31 + (index * 2 + copy) as u64);
            tasks.push(tokio::spawn(async move {
                let mut node = node;
                while Instant::now() < end {
                    operations::run(&mut node, operation).await;
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
}

/// Fails with every combination that caused a deadlock, and with the server's log records about the first ones.
async fn assert_no_deadlocks(combinations: Vec<Vec<Operation>>) {
    let harness = LockHarness::start().await;
    let mut found = Vec::new();
    for (seed, combination) in combinations.iter().enumerate() {
        let before = harness.deadlocks();
        run_together(&harness, combination, seed as u64 + 1).await;
        let deadlocks = harness.deadlocks() - before;
        if deadlocks > 0 {
            found.push(format!("{combination:?}: {deadlocks}"));
        }
    }
    let counted = harness.counted_deadlocks().await;
    assert!(
        found.is_empty() && counted == 0,
        "{} of {} combinations deadlocked ({counted} deadlocks counted by the server):\n{}\n\n{}",
        found.len(),
        combinations.len(),
        found.join("\n"),
        harness.deadlock_details(10)
    );
    harness.assert_operations_worked();
}

#[tokio::test(flavor = "multi_thread")]
async fn pairs_of_operations_do_not_deadlock() {
    let all = Operation::ALL;
    let pairs = (0..all.len()).flat_map(|a| (a..all.len()).map(move |b| vec![all[a], all[b]]));
    assert_no_deadlocks(pairs.collect()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn triples_of_operations_do_not_deadlock() {
    let all = Operation::ALL;
    let triple =
        |n: usize| vec![all[n % all.len()], all[(n * 7 + 3) % all.len()], all[(n * 13 + 5) % all.len()]];
    assert_no_deadlocks((0..3 * all.len()).map(triple).collect()).await;
}
