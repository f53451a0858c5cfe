//! Tests of merging stored runtime state with newer local state.

use redrive_core::{
    FailureCategory,
    protection::breaker::Counts,
    tenancy::DEFAULT_POOL,
    webhook::{WebhookSpec, failures::FailingRule},
};

use redrive_store::WebhookRuntime;

use super::*;
use crate::{cluster::limit_shares::LimitShares, routing::resolve_for_test};

const NOW: Time = Time::from_secs(1_700_000_000);
const MINUTE: Duration = Duration::from_secs(60);

fn bench() -> (LocalCoordinator, Arc<ResolvedWebhook>) {
    let shares = Arc::new(LimitShares::new(&[DEFAULT_POOL.into()], None));
    let webhook = resolve_for_test(WebhookSpec::default(), NOW, shares.clone());
    (LocalCoordinator::new(shares, FailingRule::default()), webhook)
}

fn saved(state: CircuitState, generation: u64) -> SavedCircuit {
    SavedCircuit {
        state,
        generation,
        since: NOW,
        until: (state == CircuitState::Open).then_some(NOW + MINUTE),
        sleep_ms: 60_000,
        consecutive_half_open_failures: 0,
        forced: None,
        counts: Counts::default(),
    }
}

fn runtime(webhook: &ResolvedWebhook, circuit: Option<SavedCircuit>) -> Option<WebhookRuntime> {
    let tenant_id = webhook.tenant.id.clone();
    Some(WebhookRuntime {
        webhook_id: webhook.id,
        tenant_id,
        pause_until: None,
        generation: circuit.as_ref().map_or(0, |circuit| circuit.generation),
        circuit,
        failures: None,
    })
}

fn respond(webhook: &ResolvedWebhook, local: &LocalCoordinator, outcome: CallOutcome) -> ReportEffects {
    let endpoint = match outcome {
        CallOutcome::Succeeded => EndpointResult::Accepted,
        CallOutcome::Failed(category) => EndpointResult::Failed(category),
        CallOutcome::Ignored => EndpointResult::Inconclusive,
    };
    local.record_attempt(
        webhook,
        AttemptReport { circuit_outcome: outcome, probe: None, endpoint, pause_until: None },
        NOW,
    )
}

fn state(webhook: &ResolvedWebhook, local: &LocalCoordinator) -> CircuitState {
    local.snapshot(webhook, NOW).circuit.state
}

#[test]
fn circuit_opened_by_peer_blocks_until_peer_closes_it() {
    let (local, webhook) = bench();
    let merge =
        |circuit| local.merge_stored(&webhook, runtime(&webhook, circuit), local.transition_count(), NOW);
    assert_eq!(local.merge_stored(&webhook, None, 0, NOW), RuntimeChange::Unchanged);
    assert_eq!(merge(Some(saved(CircuitState::Open, 7))), RuntimeChange::Blocked(NOW + MINUTE));
    assert!(local.is_impaired(webhook.id, NOW));
    assert_eq!(
        merge(Some(saved(CircuitState::Open, 7))),
        RuntimeChange::Unchanged,
        "the stored state is known"
    );
    assert!(matches!(merge(Some(saved(CircuitState::HalfOpen, 8))), RuntimeChange::Unblocked(Some(_))));
    assert!(!local.is_transferable(&webhook, NOW), "probes are counted on the node that sends them");
    assert_eq!(
        local.merge_stored(&webhook, None, local.transition_count(), NOW),
        RuntimeChange::Unblocked(None)
    );
    assert!(!local.is_impaired(webhook.id, NOW));
    assert_eq!(local.tracked_webhooks(), [webhook.id]);
}

/// Another node opened and reset the circuit after this node counted failures and before it read the store.
#[test]
fn circuit_reset_elsewhere_discards_earlier_failures() {
    let (local, webhook) = bench();
    respond(&webhook, &local, CallOutcome::Failed(FailureCategory::ServerError));
    assert_eq!(local.snapshot(&webhook, NOW).circuit.counts.failed, 1);
    let reset = NOW.millis().unsigned_abs() + 7;
    let closed = runtime(&webhook, None).map(|closed| WebhookRuntime { generation: reset, ..closed });
    local.merge_stored(&webhook, closed.clone(), local.transition_count(), NOW);
    assert_eq!(local.snapshot(&webhook, NOW).circuit.counts.failed, 0, "counted before the reset");
    respond(&webhook, &local, CallOutcome::Failed(FailureCategory::ServerError));
    local.merge_stored(&webhook, closed, local.transition_count(), NOW);
    assert_eq!(local.snapshot(&webhook, NOW).circuit.counts.failed, 1, "counted after the reset");
    let opened = loop {
        if let Some(change) =
            respond(&webhook, &local, CallOutcome::Failed(FailureCategory::ServerError)).circuit
        {
            break change;
        }
    };
    assert_eq!(opened.saved.generation, reset + 1, "the store treats it as newer than the reset");
}

#[test]
fn stored_429_pause_applies_to_all_nodes() {
    let (local, webhook) = bench();
    let paused =
        runtime(&webhook, None).map(|state| WebhookRuntime { pause_until: Some(NOW + MINUTE), ..state });
    assert_eq!(local.merge_stored(&webhook, paused, 0, NOW), RuntimeChange::Blocked(NOW + MINUTE));
    assert!(local.is_impaired(webhook.id, NOW) && !local.is_impaired(webhook.id, NOW + MINUTE));
    assert_eq!(
        local.merge_stored(&webhook, None, 0, NOW),
        RuntimeChange::Unchanged,
        "a pause is never shortened"
    );
    assert_eq!(local.merge_stored(&webhook, None, 0, NOW + MINUTE), RuntimeChange::Unchanged);
}

#[test]
fn local_transition_survives_older_stored_state() {
    let (local, webhook) = bench();
    let read_after = local.transition_count();
    let mut unstored_failures = 0;
    while state(&webhook, &local) == CircuitState::Closed {
        let effects = respond(&webhook, &local, CallOutcome::Failed(FailureCategory::ServerError));
        unstored_failures += usize::from(effects.failing.is_some());
    }
    assert_eq!(unstored_failures, 5, "failures are stored until the series is reported");
    assert_eq!(
        local.merge_stored(&webhook, None, local.transition_count(), NOW),
        RuntimeChange::Stale,
        "the transition is not stored yet"
    );
    let read_before_commit = local.transition_count();
    local.mark_circuit_stored(webhook.id);
    assert_eq!(
        local.merge_stored(&webhook, None, read_before_commit, NOW),
        RuntimeChange::Stale,
        "the read began before the transition was stored"
    );
    assert_eq!(
        local.merge_stored(&webhook, None, read_after, NOW),
        RuntimeChange::Stale,
        "the state was read before the transition"
    );
    assert_eq!(state(&webhook, &local), CircuitState::Open);
    assert_eq!(
        local.failures(webhook.id).map(|failures| failures.since),
        Some(NOW),
        "the start of failing is kept as well"
    );
    assert_eq!(
        local.merge_stored(&webhook, None, local.transition_count(), NOW),
        RuntimeChange::Unblocked(None),
        "another node has closed it"
    );
    for _ in 0..unstored_failures {
        assert!(local.failures(webhook.id).is_some(), "another failure is not stored yet");
        local.mark_failing_stored(webhook.id);
    }
    local.merge_stored(&webhook, None, local.transition_count(), NOW);
    assert_eq!(local.failures(webhook.id), None);
}

#[test]
fn rereading_same_generation_keeps_probes() {
    let (local, webhook) = bench();
    let half_open = |generation| runtime(&webhook, Some(saved(CircuitState::HalfOpen, generation)));
    local.restore(half_open(7).unwrap(), NOW);
    let ask = |n| AdmissionRequest {
        webhook: &webhook,
        event_id: EventId::new(NOW, &[n; 10]),
        probe_timeout: MINUTE,
    };
    let max = local.refresh_half_open_limit(&webhook).unwrap();
    let admitted = |from: u8| {
        let requests: Vec<_> = (from..from + 20).map(ask).collect();
        local
            .admit(&requests, NOW)
            .iter()
            .filter(|decision| matches!(decision, AdmissionDecision::Go { .. }))
            .count()
    };
    assert_eq!(admitted(0), max);
    assert_eq!(
        local.merge_stored(&webhook, half_open(7), local.transition_count(), NOW),
        RuntimeChange::Unchanged
    );
    assert_eq!(admitted(20), 0, "all probes are in flight");
    local.merge_stored(&webhook, half_open(9), local.transition_count(), NOW);
    assert_eq!(admitted(40), max, "after another failed recovery the probes are new");
}

#[test]
fn timed_transition_is_left_to_peer_for_grace_period() {
    let (local, webhook) = bench();
    local.merge_stored(&webhook, runtime(&webhook, Some(saved(CircuitState::Open, 7))), 0, NOW);
    let find = |_| Some(webhook.clone());
    let moved_count = |after: u64, ours: bool| {
        let now = NOW + MINUTE + Duration::from_secs(after);
        local.tick(now, &find, &|_| ours).changes.len()
    };
    assert_eq!(local.preview_transition(&webhook, NOW), None);
    assert!(matches!(local.preview_transition(&webhook, NOW + MINUTE), Some(Some(_))));
    assert_eq!(
        (moved_count(0, false), moved_count(9, false), moved_count(10, false)),
        (0, 0, 1),
        "no other node made the transition"
    );
    let (local, webhook) = bench();
    local.merge_stored(&webhook, runtime(&webhook, Some(saved(CircuitState::Open, 7))), 0, NOW);
    assert_eq!(local.tick(NOW + MINUTE, &|_| Some(webhook.clone()), &|_| true).changes.len(), 1);
    assert!(local.advance(&webhook, NOW + MINUTE).is_none(), "the circuit made a transition");
}
