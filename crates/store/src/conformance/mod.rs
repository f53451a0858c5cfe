//! Conformance suite that every store must pass unchanged.
//!
//! A case uses a store only through its public traits and runs on a fresh database. New semantics are added here
//! first. After each case all deliveries that have not ended are delivered, to show that none was lost.

// A case fails by panicking on any error; its name states what must hold.
#![allow(clippy::unwrap_used, missing_docs)]

pub mod across_tenants;
pub mod archive;
pub mod attempts;
pub mod audit;
pub mod backlog;
pub mod browser_sessions;
pub mod claim;
pub mod clock;
pub mod creations;
pub mod dead;
pub mod email_addresses;
pub mod erasure;
pub mod event_types;
pub mod failures;
mod harness;
pub mod history;
pub mod idempotency;
pub mod interleaving;
pub mod lanes;
pub mod maintenance;
pub mod nodes;
pub mod notification_groups;
pub mod notifications;
pub mod operations;
pub mod order;
pub mod payloads;
pub mod publish;
pub mod rankings;
pub mod record;
pub mod redrive;
pub mod rescue;
pub mod retention;
pub mod rollups;
pub mod runtime_state;
pub mod scale;
pub mod secrets;
pub mod tenancy;
pub mod tickets;
pub mod unsubscriptions;
pub mod webhook_uids;
pub mod webhooks;

use std::{any::Any, future::Future, pin::Pin, sync::Arc};

pub use self::harness::{END, FRESH, Harness, RETRY, at, closed, ids, order, page, together};
use crate::Store;

/// Future that opens a store.
pub type Reopening = Pin<Box<dyn Future<Output = Arc<dyn Store>> + Send>>;

/// Opens the same database again, after the previous store was dropped.
pub type Reopen = Box<dyn Fn() -> Reopening + Send + Sync>;

/// A store on a fresh database.
pub struct Opened {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Value that must live as long as the database, such as its folder.
    pub keep: Box<dyn Any + Send + Sync>,
    /// Function that opens it again.
    pub reopen: Reopen,
}

/// Defines one test per case. `open` is an async function that returns an [`Opened`].
#[macro_export]
macro_rules! conformance_suite {
    ($open:ident) => {
        $crate::conformance_theme! { $open, publish:
            edited_copy_refers_to_its_original,
            event_and_its_deliveries_appear_together,
            delivery_created_leased_belongs_to_its_publisher,
            delivery_created_waiting_is_claimed_when_due,
            sequence_numbers_have_no_gaps,
            publish_for_unknown_tenant_is_rejected,
            stale_fan_out_is_rejected_and_leaves_nothing,
            fenced_node_publishes_nothing,
            invalid_event_does_not_fail_its_batch,
            panic_in_one_callback_does_not_affect_the_others,
            failed_publish_breaks_off_its_order,
            event_with_two_deliveries_to_one_webhook_is_rejected,
            event_without_deliveries_is_stored,
            payload_bytes_are_stored_unchanged,
            delivery_keeps_its_format,
            publish_of_disconnected_publisher_is_committed,
            published_event_survives_reopening,
            trace_of_an_event_survives_crashes_and_retries,
            hop_count_of_an_event_survives_node_death,
        }
        $crate::conformance_theme! { $open, idempotency:
            same_key_and_body_return_the_first_event,
            same_key_with_another_body_is_rejected,
            idempotency_keys_are_separate_per_tenant,
            key_expires_to_the_millisecond,
            concurrent_publishers_of_one_key_create_one_event,
            duplicates_within_one_batch_are_found,
            expired_keys_are_pruned_in_bounded_steps,
            rejected_publish_claims_no_key,
            duplicate_with_stale_config_is_still_detected,
            keys_survive_reopening,
            key_is_held_until_the_confirmed_time_reaches_its_expiry,
        }
        $crate::conformance_theme! { $open, claim:
            deliveries_are_claimed_in_due_order,
            leases_of_an_epoch_are_read_in_pages,
            deliveries_that_are_not_due_are_not_claimed,
            lane_capacity_limits_a_claim,
            lane_capacity_may_be_zero_or_unlimited,
            byte_limit_applies_across_lanes,
            lane_with_more_is_held_until_it_is_empty,
            new_deliveries_in_a_held_lane_go_to_its_holder,
            longest_overdue_lanes_come_first,
            next_wake_is_the_earliest_of_unclaimed_lanes,
            concurrent_claims_return_each_delivery_once,
            claim_contains_all_data_for_sending,
            released_deliveries_are_due_at_the_given_time,
            only_the_lease_owner_can_release,
            releasing_a_cancelled_delivery_ends_it,
            only_the_lease_owner_can_mark_sending,
            fenced_node_claims_nothing,
            lane_emptied_by_cancellation_is_deleted,
        }
        $crate::conformance_theme! { $open, tickets:
            waiting_delivery_is_claimed_by_ticket_before_due_and_once,
            delivery_attempted_since_its_ticket_is_skipped,
            ticket_claim_contains_all_data_for_sending,
            ticket_for_another_lane_or_webhook_claims_nothing,
            ticket_for_an_ordered_lane_claims_nothing,
            ticket_for_a_blocked_webhook_claims_nothing,
            ticket_for_an_assigned_webhook_is_left_to_its_node,
            fenced_node_claims_no_tickets,
            byte_limit_applies_to_ticket_claims,
            delivery_claimed_by_ticket_can_be_released_and_cancelled,
            lane_emptied_by_tickets_is_deleted,
            new_delivery_in_a_lane_emptied_by_tickets_is_claimed,
            concurrent_ticket_and_lane_claims_return_each_delivery_once,
        }
        $crate::conformance_theme! { $open, record:
            delivered_ends_a_delivery,
            retry_returns_a_delivery_to_waiting,
            dead_ends_a_delivery_and_lists_it_as_dead_letter,
            cancelled_ends_a_delivery_with_its_reason,
            delivery_can_end_without_an_attempt,
            success_after_failure_clears_the_failure,
            repeated_outcome_is_recorded_once,
            repeated_outcome_is_detected_after_the_next_lease,
            foreign_epoch_records_nothing,
            rescued_lease_records_nothing,
            cancel_for_inactive_webhook_requires_an_inactive_webhook,
            expired_webhook_counts_as_ended,
            concurrent_cancellation_asks_to_decide_again,
            outcome_disables_an_active_webhook,
            outcome_does_not_disable_an_inactive_webhook,
            webhook_with_changed_url_is_not_disabled,
            webhook_pending_verification_is_not_disabled,
            invalid_outcome_does_not_fail_its_batch,
            arbitrary_response_bytes_are_stored_unchanged,
        }
        $crate::conformance_theme! { $open, rescue:
            rescued_deliveries_are_due_immediately,
            sender_deaths_are_counted_only_while_sending,
            panicked_deliveries_count_as_sender_deaths,
            attempt_clears_rescue_and_death_counts,
            rescue_works_in_bounded_steps,
            rescue_ends_cancelled_deliveries,
            rescue_releases_held_lanes,
            other_epochs_lists_live_nodes_and_unrescued_epochs,
            rescue_without_leases_moves_nothing,
            epochs_are_never_reused,
            leases_survive_reopening,
        }
        $crate::conformance_theme! { $open, notifications:
            earlier_notifications_about_a_webhook_are_listed_newest_first,
            first_occurrence_is_sent_immediately_and_later_ones_grouped,
            lasting_condition_is_repeated_only_while_it_recurs,
            notification_is_claimed_once_and_again_after_its_claim_expires,
            concurrent_nodes_create_and_claim_each_notification_once,
            notifications_are_listed_newest_first_and_pruned_when_old,
            circuit_occurrence_is_recorded_by_the_stored_transition,
            flapping_circuit_is_grouped_and_ends_with_its_current_state,
            outcome_records_only_occurrences_that_took_place,
            concurrent_deaths_are_one_notification,
            expiry_notification_has_the_number_of_deliveries,
            rejected_change_records_no_occurrence,
            deleted_tenant_gets_no_notifications,
        }
        $crate::conformance_theme! { $open, notification_groups:
            random_sequences_match_the_core_rules,
            occurrences_out_of_order_keep_the_last_details,
            suppressed_lasting_condition_leaves_no_trace,
            due_group_waits_for_its_opposite_without_delaying_others,
            concurrent_occurrences_of_new_groups_are_all_counted,
            occurrences_recorded_while_notifications_are_created_are_counted_once,
        }
        $crate::conformance_theme! { $open, nodes:
            exclusively_claimed_webhook_is_hidden_from_other_nodes,
            assigned_node_gets_lanes_held_by_other_nodes,
            released_assignment_is_free,
            release_assignments_also_releases_held_lanes,
            assignment_of_dead_node_ends_when_all_leases_are_rescued,
            empty_exclusive_claim_creates_no_assignment,
            unassigned_webhook_can_be_claimed_by_any_node,
            heartbeat_returns_the_cluster_view,
            ended_epoch_cannot_heartbeat,
            epoch_with_newer_heartbeat_is_not_ended,
            changes_are_returned_since_a_cursor,
            runtime_of_named_webhooks_is_returned,
        }
        $crate::conformance_theme! { $open, operations:
            operation_is_stored_as_requested,
            operation_is_claimed_by_one_node_at_a_time,
            step_is_applied_only_by_the_holder_of_a_running_operation,
            step_redrives_each_delivery_once_across_operations,
            results_of_queued_deliveries_are_counted,
            queued_deliveries_are_settled_in_pages,
            purged_dead_letters_leave_the_list_and_stay_in_history,
            step_cancels_several_deliveries,
            backfill_sends_an_event_to_a_webhook_once,
            scan_returns_each_delivery_once_oldest_first,
            scan_of_failing_deliveries_returns_dead_letters_and_failed_pending_ones,
            scan_of_named_deliveries_returns_those_of_the_tenant_once,
        }
        $crate::conformance_theme! { $open, redrive:
            retry_of_a_waiting_delivery_makes_it_due_now,
            retry_of_a_leased_delivery_changes_nothing,
            retry_of_an_ended_delivery_creates_a_new_round,
            repeated_retries_create_one_round,
            concurrent_retries_create_one_round,
            rounds_are_numbered_in_sequence,
            replay_creates_a_round_for_each_webhook,
            replay_is_all_or_nothing,
            replay_to_a_new_webhook_is_its_first_round,
            waiting_delivery_is_cancelled_immediately,
            cancel_of_a_leased_delivery_is_requested,
            cancel_does_not_change_an_ended_delivery,
            retry_replay_and_cancel_are_isolated_by_tenant,
        }
        $crate::conformance_theme! { $open, order:
            ordered_lane_is_claimed_by_sequence_not_due_time,
            first_delivery_that_is_not_due_blocks_the_rest,
            ordered_lane_is_blocked_while_another_node_has_a_lease,
            own_leases_block_an_ordered_lane,
            retry_stays_first_in_its_order,
            released_delivery_keeps_its_position,
            next_delivery_is_due_when_the_first_ends,
            next_delivery_is_due_when_the_leased_first_is_cancelled,
            next_delivery_is_due_when_the_waiting_first_is_cancelled,
            next_delivery_is_due_when_the_first_expires_or_is_cancelled,
            redriven_delivery_goes_to_the_end_of_its_order,
            orders_of_a_webhook_are_independent,
            unordered_deliveries_are_not_blocked_by_an_order,
            making_a_later_delivery_due_does_not_reorder,
            delivery_names_the_one_it_is_behind,
            orders_survive_reopening,
            order_is_sent_by_one_node_at_a_time,
        }
        $crate::conformance_theme! { $open, interleaving:
            ; slow: random_interleavings_never_break_an_order,
        }
        $crate::conformance_theme! { $open, runtime_state:
            blocked_webhook_yields_no_claims_until_unblocked,
            longest_block_applies,
            webhook_blocked_indefinitely_never_wakes,
            new_deliveries_do_not_wake_a_blocked_webhook,
            unblocking_wakes_a_webhook_immediately,
            blocking_releases_held_lanes,
            paused_webhook_keeps_its_new_deliveries,
            outcome_effects_are_stored_with_the_outcome,
            rejected_outcome_has_no_effects,
            older_circuit_never_replaces_a_newer_one,
            webhook_and_its_circuit_are_stored_together_or_not_at_all,
            late_opening_does_not_undo_a_reset,
            hold_is_never_shortened,
            pauses_and_circuits_set_by_a_wrong_clock_are_moved,
            runtime_is_listed_as_stored,
            circuit_periods_begin_and_end_once,
            circuit_periods_are_listed_since_a_time,
            circuit_periods_of_several_webhooks_are_read_together,
            incidents_of_a_tenant_are_listed_newest_first,
            incident_lasts_until_the_circuit_closes,
            open_half_open_and_forced_circuits_of_a_tenant_are_listed,
            circuits_of_operator_managed_webhooks_can_be_excluded,
        }
        $crate::conformance_theme! { $open, failures:
            failures_keep_their_start_and_end_with_a_success,
            series_of_failures_is_reported_once_and_its_recovery_once,
            series_of_failures_is_reported_by_its_age,
            change_of_state_ends_the_series_of_failures,
            failure_of_a_paused_webhook_starts_no_series,
            failure_after_an_unrecorded_recovery_starts_a_new_series,
        }
        $crate::conformance_theme! { $open, lanes:
            retry_moves_to_the_retry_lane,
            released_delivery_returns_to_its_lane,
            claim_takes_only_from_the_named_lane,
            retry_can_change_the_priority_of_a_waiting_delivery,
            new_round_can_have_another_priority,
            due_lanes_excludes_other_pools,
            changing_the_tenant_pool_moves_its_lanes,
            new_lanes_get_the_tenant_pool,
        }
        $crate::conformance_theme! { $open, backlog:
            deliveries_parked_too_long_expire_in_bounded_steps,
            lanes_are_recomputed_on_expiry,
            oldest_waiting_delivery_is_listed_per_webhook_in_pages,
            backlog_is_counted_by_wait_reason,
            backlog_count_stops_at_the_limit,
            backlogs_are_counted_by_priority_and_webhook,
            backlogged_webhooks_of_a_tenant_are_found,
        }
        $crate::conformance_theme! { $open, rollups:
            rollups_of_a_minute_are_summed,
            minute_rollups_are_read_since_a_time,
            minute_rollups_of_several_webhooks_are_read_together,
            successes_after_a_time_are_counted_per_webhook,
            last_success_is_found_and_kept,
            failing_webhooks_are_found_among_many_healthy_ones,
            tenant_rollups_are_summed_and_read_since_a_time,
            concurrent_rollup_additions_are_all_counted,
            expired_tenant_rollups_are_pruned_in_bounded_steps,
            old_minute_rollups_are_pruned_in_bounded_steps,
        }
        $crate::conformance_theme! { $open, webhooks:
            webhook_is_stored_unchanged,
            webhook_requires_its_tenant,
            webhook_change_requires_the_current_revision,
            unknown_foreign_or_deleted_webhook_cannot_be_changed,
            config_changes_are_returned_since_a_version,
            config_changes_in_pages_reach_the_same_version,
            config_version_is_separate_per_tenant,
            webhooks_are_listed_newest_first_in_pages,
            hidden_operator_managed_webhooks_do_not_count_in_pages,
            webhook_labels_are_those_of_the_listed_webhooks,
            deleted_webhooks_are_found_by_id,
            cancel_pending_works_in_bounded_steps,
            cancel_pending_empties_every_lane,
            cancel_pending_stops_when_the_webhook_is_enabled_again,
            cancel_pending_skips_an_active_webhook,
            cancel_pending_continues_after_reopening,
            expired_webhooks_are_listed,
            due_verifications_of_excluded_tenants_are_skipped,
            event_reaches_every_webhook_created_before_it,
        }
        $crate::conformance_theme! { $open, history:
            every_delivery_filter_matches_the_reference,
            dead_letter_filters_match_the_reference,
            every_event_filter_matches_the_reference,
            listings_are_isolated_by_tenant,
            deliveries_are_paged_newest_event_first,
            paging_deliveries_neither_skips_nor_repeats,
            paging_events_neither_skips_nor_repeats,
            paging_dead_letters_neither_skips_nor_repeats,
            rare_match_is_found_in_pages_of_bounded_cost,
            attempts_are_listed_first_to_last,
            attempts_of_an_event_are_listed_oldest_delivery_first,
        }
        $crate::conformance_theme! { $open, attempts:
            every_attempt_filter_matches_the_reference,
            attempts_are_paged_in_order,
            paging_attempts_neither_skips_nor_repeats,
            attempts_are_isolated_by_tenant,
            attempts_to_operator_managed_webhooks_can_be_excluded,
            attempts_of_an_event_with_many_deliveries_are_paged,
            attempt_is_found_by_its_id,
            pruned_attempts_leave_the_listing,
            rare_attempt_is_found_in_pages_of_bounded_cost,
            indexed_attempts_are_counted_by_result,
        }
        $crate::conformance_theme! { $open, payloads:
            payloads_are_scanned_newest_first_in_bounded_steps,
            payloads_of_other_tenants_are_not_scanned,
        }
        $crate::conformance_theme! { $open, across_tenants:
            delivery_filters_over_all_tenants_match_the_reference,
            filter_that_needs_a_tenant_is_refused,
            paging_over_all_tenants_neither_skips_nor_repeats,
            events_of_all_tenants_are_listed_newest_first,
            attempts_of_all_tenants_are_those_of_each,
            rare_delivery_of_all_tenants_is_found_in_pages_of_bounded_cost,
            tenant_of_an_object_is_found_by_its_id,
            dead_letters_of_all_tenants_are_counted,
            webhooks_of_all_tenants_are_listed_newest_first,
            notifications_of_all_tenants_are_listed_newest_first,
            activity_of_tenants_is_summed_in_pages,
            traffic_of_all_tenants_is_their_sum,
            circuits_of_all_tenants_are_listed_by_tenant,
            waiting_deliveries_are_counted_by_webhook,
        }
        $crate::conformance_theme! { $open, dead:
            dead_letters_are_counted_by_every_group_field,
            dead_letter_count_stops_at_the_limit,
            operator_managed_webhooks_can_be_excluded,
            dead_letters_are_counted_up_to_a_bound,
        }
        $crate::conformance_theme! { $open, tenancy:
            default_tenant_exists_in_a_new_database,
            tenant_is_created_once,
            tenant_can_be_changed,
            rules_of_several_tenants_are_read_together,
            tenants_are_listed_by_name_in_pages,
            tenant_ids_are_compared_by_their_bytes,
            key_requires_its_tenant,
            keys_are_listed_newest_first_in_pages,
            key_is_live_until_revoked,
            key_is_revoked_only_by_its_owner,
            tenants_and_keys_survive_reopening,
            deleted_tenant_is_inactive_and_its_name_stays_reserved,
            last_use_of_a_key_is_recorded,
            portal_sessions_are_unlisted_keys_and_pruned_when_ended,
        }
        $crate::conformance_theme! { $open, creations:
            every_kind_of_object_is_created_once_per_key,
            key_of_another_body_names_the_first_object,
            keys_of_tenants_and_of_the_installation_are_separate,
            refused_creation_claims_no_key,
            creation_key_is_held_until_the_confirmed_time_reaches_its_expiry,
            concurrent_creations_with_one_key_create_one_object,
            expired_creation_keys_are_pruned_in_bounded_steps,
        }
        $crate::conformance_theme! { $open, webhook_uids:
            webhook_is_found_by_its_uid_in_its_tenant_only,
            uid_of_another_webhook_is_refused_and_nothing_changes,
            changed_or_removed_uid_is_free,
            uid_of_a_deleted_webhook_is_free,
            concurrent_creations_with_one_uid_store_one_webhook,
        }
        $crate::conformance_theme! { $open, email_addresses:
            confirmation_is_requested_and_claimed_once,
            confirmed_address_gets_no_further_requests,
            tenant_and_mailbox_limits_hold_across_tenants_and_reopening,
            refused_request_stores_no_address,
            concurrent_requests_and_claims_never_exceed_the_limits,
            released_reservation_can_be_reserved_again,
            unsent_confirmation_is_retried_unless_already_confirmed,
            only_unconfirmed_addresses_and_old_usage_are_pruned,
            addresses_belong_to_the_tenant_and_are_deleted_with_it,
        }
        $crate::conformance_theme! { $open, browser_sessions:
            session_is_found_until_it_is_deleted,
            session_of_a_user_is_returned_unchanged,
            login_of_a_user_starts_one_session,
            session_beyond_the_limit_evicts_the_oldest_of_its_key,
            sessions_of_a_key_are_deleted_together,
            sessions_of_users_are_listed_in_pages,
            revoked_key_ends_its_sessions,
            deleted_tenant_ends_the_sessions_of_its_keys,
            expired_sessions_are_pruned_in_bounded_steps,
        }
        $crate::conformance_theme! { $open, unsubscriptions:
            unsubscription_is_stored_by_kind,
            resubscribe_removes_one_kind_or_all,
            unsubscriptions_are_listed_in_order_in_pages,
            unsubscriptions_belong_to_the_tenant_and_are_deleted_with_it,
        }
        $crate::conformance_theme! { $open, event_types:
            event_type_is_stored_unchanged,
            event_type_names_are_unique_and_limited_in_number,
            change_needs_the_current_revision,
            event_types_are_listed_by_name,
            event_types_are_separate_per_tenant,
            every_event_type_change_gets_a_new_version,
            publish_with_stale_catalogue_is_rejected,
        }
        $crate::conformance_theme! { $open, secrets:
            confidential_fields_are_returned_unchanged,
            master_keys_in_use_are_listed,
        }
        $crate::conformance_theme! { $open, audit:
            entry_is_visible_before_its_end_and_ends_once,
            entries_are_found_by_tenant_action_object_and_time,
            old_entries_are_pruned_in_bounded_steps,
        }
        $crate::conformance_theme! { $open, rankings:
            dead_letters_are_ranked_by_tenant_and_webhook,
            dead_letters_of_several_reads_are_ranked,
            redriven_dead_letters_leave_the_ranking,
            attempts_are_ranked_by_intolerable_failures,
            dead_deliveries_are_ranked_by_tenant,
            rankings_are_bounded,
            tenants_of_several_reads_are_ranked_together,
            unclosed_circuits_are_listed_by_their_time_without_success,
        }
        $crate::conformance_theme! { $open, maintenance:
            working_store_responds_to_ping,
            stats_count_waiting_leased_and_dead_deliveries,
            tenants_with_many_dead_letters_are_counted,
            webhooks_are_counted_until_they_are_deleted,
            waiting_deliveries_are_counted_by_priority,
            overdue_time_is_reported_by_pool,
        }
        $crate::conformance_theme! { $open, clock:
            clock_state_survives_reopening,
            due_times_set_by_a_wrong_clock_are_moved,
            moved_due_times_wake_their_lanes,
            pending_deliveries_keep_their_partition_at_any_time,
        }
        $crate::conformance_theme! { $open, retention:
            old_event_is_pruned_with_all_dependent_rows,
            retention_is_exact_to_the_millisecond,
            pending_deliveries_are_never_pruned,
            event_is_pruned_once_all_deliveries_have_ended,
            pruning_leaves_other_tenants_alone,
            dead_letters_are_pruned_before_their_events,
            dead_letters_are_pruned_in_bounded_steps,
            event_with_many_deliveries_is_pruned_in_several_steps,
            interrupted_pruning_reaches_the_same_result,
            concurrent_pruners_prune_each_event_once,
            pruned_delivery_cannot_be_retried_replayed_or_cancelled,
            concurrent_retry_keeps_the_event_or_is_not_found,
            paging_continues_during_pruning,
            retention_by_tenant_includes_deleted_tenants,
            ended_circuit_periods_are_pruned,
            partition_is_dropped_when_all_its_deliveries_have_ended,
            retry_during_partition_drop_keeps_it_or_is_not_found,
        }
        $crate::conformance_theme! { $open, erasure:
            erase_deletes_payload_and_keeps_history,
            erasing_twice_changes_nothing,
            erase_by_another_tenant_changes_nothing,
            erased_event_cannot_be_retried_or_replayed,
            claim_of_erased_event_shows_erasure,
            idempotency_key_of_erased_event_stays_taken,
            events_of_a_subject_are_found_oldest_first,
            responses_are_erased_in_bounded_steps,
        }
        $crate::conformance_theme! { $open, archive:
            pruned_event_is_archived_completely,
            object_is_unchanged_until_it_is_stored,
            object_covers_one_day_and_is_bounded,
            ; slow: random_interruptions_lose_or_duplicate_nothing,
        }
        $crate::conformance_theme! { $open, scale:
            ; slow: claim_cost_does_not_depend_on_parked_deliveries,
        }
    };
}

/// Defines the tests of one theme.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_theme {
    ($open:ident, $theme:ident: $($case:ident),* $(,)? $(; slow: $($slow:ident),* $(,)?)?) => {
        mod $theme {
            $($crate::conformance_case! { super::$open, $theme::$case })*
            $(
                mod slow {
                    $($crate::conformance_case! { super::super::$open, $theme::$slow })*
                }
            )?
        }
    };
}

/// Defines one test: the case on a newly opened store.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_case {
    ($open:path, $theme:ident::$case:ident) => {
        #[tokio::test(flavor = "multi_thread")]
        async fn $case() {
            let mut bench = $crate::conformance::Harness::new($open().await).await;
            $crate::conformance::$theme::$case(&mut bench).await;
            bench.check_listings().await;
            bench.drain().await;
            bench.check_listings().await;
        }
    };
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_case_is_in_the_suite() {
        let suite = include_str!("mod.rs");
        let themes = [
            include_str!("across_tenants.rs"),
            include_str!("archive.rs"),
            include_str!("audit.rs"),
            include_str!("backlog.rs"),
            include_str!("browser_sessions.rs"),
            include_str!("claim.rs"),
            include_str!("clock.rs"),
            include_str!("erasure.rs"),
            include_str!("creations.rs"),
            include_str!("dead.rs"),
            include_str!("event_types.rs"),
            include_str!("runtime_state.rs"),
            include_str!("history.rs"),
            include_str!("idempotency.rs"),
            include_str!("interleaving.rs"),
            include_str!("retention.rs"),
            include_str!("lanes.rs"),
            include_str!("email_addresses.rs"),
            include_str!("rollups.rs"),
            include_str!("nodes.rs"),
            include_str!("notification_groups.rs"),
            include_str!("notifications.rs"),
            include_str!("operations.rs"),
            include_str!("order.rs"),
            include_str!("publish.rs"),
            include_str!("rankings.rs"),
            include_str!("record.rs"),
            include_str!("rescue.rs"),
            include_str!("redrive.rs"),
            include_str!("scale.rs"),
            include_str!("secrets.rs"),
            include_str!("tenancy.rs"),
            include_str!("tickets.rs"),
            include_str!("unsubscriptions.rs"),
            include_str!("maintenance.rs"),
            include_str!("webhook_uids.rs"),
            include_str!("webhooks.rs"),
        ];
        for line in themes.iter().flat_map(|theme| theme.lines()) {
            let Some(rest) = line.strip_prefix("pub async fn ") else { continue };
            let case = rest.split('(').next().unwrap();
            assert!(suite.contains(&format!(" {case},\n")), "{case} is never run");
        }
    }
}
