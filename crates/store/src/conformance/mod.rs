//! The suite that every store must pass, unchanged.
//!
//! A case sees a store through its public traits alone and runs on a fresh database. New semantics go in
//! here first. After each case everything that is not over is delivered, to show that nothing was lost.

// A case that meets an error has failed, and says so by panicking; its name says what must hold.
#![allow(clippy::unwrap_used, missing_docs)]

pub mod archive;
pub mod audit;
pub mod backlog;
pub mod browser_sessions;
pub mod claim;
pub mod clock;
pub mod dead;
pub mod erasure;
pub mod event_types;
mod harness;
pub mod history;
pub mod idempotency;
pub mod interleaving;
pub mod lanes;
pub mod mail_addresses;
pub mod maintenance;
pub mod nodes;
pub mod notifications;
pub mod operations;
pub mod order;
pub mod publish;
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
pub mod webhooks;

use std::{any::Any, future::Future, pin::Pin, sync::Arc};

pub use self::harness::{Bench, END, FRESH, RETRY, at, closed, ids, order, page, together};
use crate::Store;

/// A store that is being opened.
pub type Reopening = Pin<Box<dyn Future<Output = Arc<dyn Store>> + Send>>;

/// Opens the same database once more, after the store before it was dropped.
pub type Reopen = Box<dyn Fn() -> Reopening + Send + Sync>;

/// A store on a fresh database.
pub struct Opened {
    /// The store.
    pub store: Arc<dyn Store>,
    /// What has to live as long as the database is used, such as its folder.
    pub keep: Box<dyn Any + Send + Sync>,
    /// The way to open it again.
    pub reopen: Reopen,
}

/// Makes one test of each case. `open` is an async function that gives an [`Opened`].
#[macro_export]
macro_rules! conformance_suite {
    ($open:ident) => {
        $crate::conformance_theme! { $open, publish:
            an_event_and_its_deliveries_appear_together,
            what_is_born_leased_belongs_to_its_publisher,
            what_is_born_waiting_is_claimed_when_due,
            sequence_numbers_have_no_gaps,
            an_unknown_tenant_is_refused,
            a_stale_fan_out_is_refused_and_leaves_nothing,
            a_fenced_node_publishes_nothing,
            one_bad_item_never_fails_its_neighbours,
            panic_in_one_callback_does_not_affect_the_others,
            failed_publish_breaks_off_its_order,
            failed_publish_does_not_refuse_what_comes_before_it,
            one_event_is_owed_to_a_webhook_once,
            an_event_that_nobody_wants_is_stored,
            bytes_are_kept_as_they_are,
            a_delivery_keeps_its_format,
            a_publisher_that_went_away_is_served_all_the_same,
            what_was_published_survives_reopening,
            the_trace_of_an_event_stays_with_it_through_crashes_and_retries,
            hop_count_of_an_event_stays_with_it_through_crashes_and_retries,
        }
        $crate::conformance_theme! { $open, idempotency:
            the_same_key_and_body_give_the_first_event,
            the_same_key_with_another_body_is_refused,
            tenants_have_their_own_keys,
            a_key_expires_to_the_millisecond,
            many_publishers_of_one_key_make_one_event,
            duplicates_within_one_batch_are_found,
            expired_keys_are_forgotten_in_bounded_steps,
            a_refused_publish_takes_no_key,
            a_duplicate_is_known_even_to_a_stale_publisher,
            keys_survive_reopening,
            key_is_held_until_the_confirmed_time_reaches_its_end,
        }
        $crate::conformance_theme! { $open, claim:
            claims_come_in_the_order_they_are_due,
            what_an_epoch_owns_is_read_by_pages,
            what_is_not_due_is_not_given,
            room_is_respected,
            any_room_is_taken,
            bytes_are_respected_across_lanes,
            a_lane_with_more_is_held_until_it_is_empty,
            new_work_on_a_held_lane_reaches_its_holder,
            the_longest_overdue_lanes_come_first,
            the_next_wake_is_the_earliest_that_nobody_holds,
            concurrent_claims_give_each_delivery_once,
            a_claim_has_all_that_sending_needs,
            released_deliveries_are_due_when_told,
            only_the_owner_releases,
            releasing_what_was_called_off_ends_it,
            sending_is_noted_for_the_owner_alone,
            a_fenced_node_claims_nothing,
            a_lane_left_empty_by_a_cancellation_goes,
        }
        $crate::conformance_theme! { $open, tickets:
            what_waits_is_taken_before_it_is_due_and_once,
            what_was_tried_since_is_left_where_it_waits,
            what_is_taken_has_all_that_sending_needs,
            a_ticket_for_another_lane_or_webhook_takes_nothing,
            an_order_is_taken_by_nobody,
            what_is_blocked_stays_where_it_is,
            what_is_at_home_elsewhere_is_left_to_its_home,
            a_fenced_node_takes_nothing,
            bytes_are_respected,
            what_was_taken_can_be_given_back_and_called_off,
            a_lane_emptied_by_tickets_goes,
            what_comes_into_a_lane_emptied_by_tickets_is_found,
            takers_and_claimers_get_each_delivery_once,
        }
        $crate::conformance_theme! { $open, record:
            delivered_ends_a_delivery,
            retry_makes_it_wait,
            dead_ends_it_in_the_dead_list,
            cancelled_ends_it_with_its_reason,
            a_delivery_can_end_without_an_attempt,
            success_after_failure_clears_the_failure,
            a_resend_is_known_and_recorded_once,
            a_resend_is_known_even_when_the_delivery_is_leased_again,
            a_foreign_epoch_records_nothing,
            a_rescued_lease_records_nothing,
            a_cancel_because_of_the_webhook_needs_a_webhook_that_has_ended,
            a_webhook_whose_expiry_has_passed_has_ended,
            a_cancellation_meanwhile_asks_to_decide_again,
            an_outcome_disables_an_active_webhook,
            only_an_active_webhook_is_disabled,
            a_webhook_that_has_moved_is_not_disabled,
            one_bad_outcome_never_fails_its_neighbours,
            odd_bytes_are_kept,
        }
        $crate::conformance_theme! { $open, rescue:
            rescued_deliveries_wait_due_now,
            deaths_are_counted_only_while_sending,
            an_attempt_clears_what_a_delivery_has_been_through,
            rescue_works_in_bounded_steps,
            called_off_deliveries_end_cancelled,
            held_lanes_are_freed,
            others_are_those_who_left_something_or_live,
            rescuing_nobody_moves_nothing,
            epochs_are_never_used_again,
            leases_survive_reopening,
        }
        $crate::conformance_theme! { $open, notifications:
            the_first_is_told_at_once_and_what_follows_together,
            what_stands_is_as_the_rule_says,
            what_lasts_is_told_again_only_while_it_does,
            a_notice_is_taken_by_one_and_again_when_it_is_not_heard_of,
            many_makers_and_takers_get_each_notice_once,
            notices_are_listed_by_tenant_newest_first_and_forgotten_when_old,
            a_circuit_is_told_of_by_the_move_that_is_stored,
            flapping_is_told_together_and_ends_with_how_it_stands,
            an_outcome_tells_what_took_place_with_it,
            many_deaths_at_once_are_one_row,
            what_expires_is_told_with_its_number,
            a_change_that_is_refused_tells_nothing,
            a_tenant_that_is_gone_is_told_nothing_more,
        }
        $crate::conformance_theme! { $open, nodes:
            what_is_claimed_alone_is_kept_from_others,
            a_home_gets_the_lanes_that_others_held,
            a_home_that_was_left_is_free,
            who_leaves_holds_no_lanes,
            a_home_goes_when_all_that_its_node_had_is_back,
            finding_nothing_makes_no_home,
            what_has_no_home_is_given_to_anybody,
            a_beat_tells_who_is_there,
            an_epoch_that_is_over_beats_no_more,
            an_epoch_that_has_beaten_since_is_not_ended,
            changes_are_told_from_a_mark_on,
            the_trouble_of_some_is_told,
        }
        $crate::conformance_theme! { $open, operations:
            an_operation_is_kept_as_it_was_asked_for,
            one_node_at_a_time_carries_an_operation_on,
            a_step_is_taken_by_the_holder_while_it_runs,
            a_step_makes_one_round_of_each_whoever_else_does,
            it_is_counted_how_queued_deliveries_went,
            what_was_queued_is_looked_at_in_slices,
            purged_letters_leave_the_list_and_stay_in_history,
            many_are_called_off_at_once,
            an_event_is_sent_to_a_new_webhook_once,
            walks_come_upon_everything_once_from_the_oldest_on,
        }
        $crate::conformance_theme! { $open, redrive:
            retrying_what_waits_makes_it_due_now,
            retrying_what_is_leased_changes_nothing,
            retrying_what_is_over_makes_a_new_round,
            retrying_twice_makes_one_round,
            concurrent_retries_make_one_round,
            rounds_follow_one_another,
            a_replay_makes_a_round_for_each_webhook,
            a_replay_is_all_or_nothing,
            a_replay_to_a_new_webhook_is_its_first_round,
            what_waits_is_cancelled_at_once,
            what_is_leased_is_asked_to_stop,
            what_is_over_stays_over,
            other_tenants_reach_nothing,
        }
        $crate::conformance_theme! { $open, order:
            an_order_is_claimed_by_sequence_whatever_the_due_times,
            a_first_that_is_not_due_holds_the_rest_back,
            nothing_is_given_while_another_node_has_one,
            ones_own_leases_hold_an_order,
            a_retry_keeps_its_place_in_front,
            what_is_given_back_keeps_its_place,
            the_end_of_a_first_lets_the_next_go_at_once,
            calling_off_a_leased_first_lets_the_next_go_at_once,
            calling_off_a_waiting_first_lets_the_next_go_at_once,
            a_first_that_expires_or_is_swept_up_lets_the_next_go,
            what_is_sent_again_goes_to_the_back,
            orders_of_a_webhook_are_independent,
            deliveries_outside_of_an_order_pass_by,
            making_a_later_one_due_does_not_let_it_overtake,
            a_delivery_names_the_one_it_is_behind,
            orders_survive_reopening,
            one_node_at_a_time_has_an_order,
        }
        $crate::conformance_theme! { $open, interleaving:
            ; slow: no_order_is_broken_whatever_happens,
        }
        $crate::conformance_theme! { $open, runtime_state:
            a_blocked_webhook_gives_nothing_until_its_time,
            what_blocks_longest_counts,
            a_webhook_blocked_without_end_never_wakes,
            new_work_does_not_wake_a_blocked_webhook,
            unblocking_wakes_a_webhook_at_once,
            blocking_takes_a_lane_from_its_holder,
            a_paused_webhook_keeps_what_it_gets,
            an_outcomes_effects_are_stored_with_it,
            what_is_not_recorded_has_no_effects,
            an_older_circuit_never_replaces_a_newer_one,
            late_opening_does_not_undo_a_reset,
            a_hold_is_never_shortened,
            holds_and_circuits_of_a_wrong_clock_are_moved,
            failures_count_from_the_first,
            trouble_is_told_as_it_was_stored,
            periods_begin_and_end_once,
            periods_are_listed_from_a_time_on,
            periods_of_several_webhooks_are_read_together,
            a_tenants_incidents_are_listed_the_last_first,
            a_tenants_circuits_are_listed_while_they_are_not_closed,
            circuits_of_operator_managed_webhooks_are_left_out_where_asked,
        }
        $crate::conformance_theme! { $open, lanes:
            a_retry_leaves_the_fresh_lane,
            what_is_given_back_returns_to_its_lane,
            a_claim_takes_from_the_lane_it_names_alone,
            a_retry_can_make_what_waits_more_urgent,
            a_new_round_can_be_more_urgent,
            lanes_of_other_pools_are_not_given,
            changing_a_tenants_pool_moves_what_waits,
            new_lanes_take_their_tenants_pool,
        }
        $crate::conformance_theme! { $open, backlog:
            what_was_parked_too_long_expires_in_bounded_steps,
            lanes_settle_when_something_expires,
            the_oldest_that_waits_is_told_page_by_page,
            a_backlog_is_counted_by_what_it_waits_for,
            a_backlog_is_counted_no_further_than_asked,
            backlogs_are_counted_by_priority_and_webhook,
            the_webhooks_of_a_tenant_that_something_waits_for_are_found,
        }
        $crate::conformance_theme! { $open, rollups:
            figures_of_a_minute_are_added_up,
            minutes_are_read_from_a_time_on,
            minutes_of_several_webhooks_are_read_at_once,
            the_last_success_is_known,
            webhooks_that_fail_are_found_however_many_do_not,
            traffic_is_added_up_and_read_from_a_time_on,
            figures_are_added_all_or_nothing_by_many_at_once,
            traffic_is_forgotten_in_bounded_steps_when_its_time_is_over,
            minutes_are_forgotten_in_bounded_steps,
        }
        $crate::conformance_theme! { $open, webhooks:
            a_webhook_is_kept_as_it_was_given,
            a_webhook_needs_its_tenant,
            a_change_needs_the_revision_it_was_made_from,
            what_is_not_there_cannot_be_changed,
            changes_are_told_since_a_version,
            changes_are_told_in_pages_that_lead_to_the_same_end,
            a_tenants_version_is_its_own,
            webhooks_are_listed_newest_first_in_pages,
            operator_managed_webhooks_are_not_counted_by_pages,
            webhooks_are_found_by_id_even_deleted,
            sweeping_cancels_in_bounded_steps,
            sweeping_empties_every_lane,
            sweeping_stops_when_the_webhook_is_enabled_again,
            an_active_webhook_is_not_swept,
            sweeping_is_remembered_across_reopening,
            webhooks_whose_time_is_over_are_told,
            due_verifications_of_tenants_that_are_left_out_are_skipped,
            no_event_misses_a_webhook_created_before_it,
        }
        $crate::conformance_theme! { $open, history:
            every_filter_of_deliveries_holds,
            the_dead_are_filtered_in_the_same_way,
            every_filter_of_events_holds,
            other_tenants_see_nothing,
            deliveries_are_paged_newest_event_first,
            walking_deliveries_neither_skips_nor_repeats,
            walking_events_neither_skips_nor_repeats,
            walking_the_dead_neither_skips_nor_repeats,
            what_is_rare_is_found_in_pages_that_end,
            attempts_are_listed_first_to_last,
            attempts_of_an_event_are_listed_oldest_delivery_first,
        }
        $crate::conformance_theme! { $open, dead:
            the_dead_are_counted_by_all_that_tells_them_apart,
            the_dead_are_counted_no_further_than_asked,
            webhooks_that_the_operator_manages_are_left_out_where_asked,
            the_size_of_the_list_is_known_up_to_a_bound,
        }
        $crate::conformance_theme! { $open, tenancy:
            there_is_a_tenant_from_the_start,
            a_tenant_is_made_once,
            a_tenant_can_be_changed,
            tenants_are_listed_by_name_in_pages,
            a_key_needs_its_tenant,
            keys_are_listed_newest_first_in_pages,
            a_key_lives_until_it_is_revoked,
            a_key_is_revoked_by_its_owner_alone,
            tenants_and_keys_survive_reopening,
            a_tenant_that_is_gone_does_nothing_and_leaves_its_name,
            it_is_known_when_a_key_was_last_used,
            sessions_are_keys_that_are_not_listed_and_go_when_they_are_over,
        }
        $crate::conformance_theme! { $open, mail_addresses:
            confirmation_is_requested_once_and_taken_once,
            confirmed_address_is_asked_no_more,
            limits_of_tenant_and_mailbox_hold_over_tenants_and_reopening,
            refused_request_stores_no_address,
            concurrent_requests_and_takers_never_exceed_the_limits,
            released_reservation_can_be_reserved_again,
            unsent_confirmation_is_retried_unless_confirmed_meanwhile,
            unconfirmed_addresses_and_old_usage_are_pruned_and_nothing_else,
            addresses_are_the_tenants_own_and_go_with_it,
        }
        $crate::conformance_theme! { $open, browser_sessions:
            session_is_found_until_it_is_deleted,
            session_beyond_the_limit_evicts_the_oldest_of_its_key,
            sessions_of_a_key_are_deleted_together,
            revoked_key_ends_its_sessions,
            deleted_tenant_ends_the_sessions_of_its_keys,
            expired_sessions_are_pruned_in_bounded_steps,
        }
        $crate::conformance_theme! { $open, unsubscriptions:
            who_unsubscribes_is_remembered_by_kind,
            it_can_be_undone_by_kind_or_altogether,
            who_unsubscribed_is_listed_in_order_and_by_pages,
            who_unsubscribed_is_the_tenants_own_and_goes_with_it,
        }
        $crate::conformance_theme! { $open, event_types:
            a_type_is_kept_as_it_was_given,
            a_name_is_taken_once_and_there_are_only_so_many,
            only_what_was_read_is_changed,
            types_are_listed_by_name,
            tenants_have_their_own,
            every_change_is_a_version_of_its_own,
            whoever_checked_by_an_older_catalogue_is_refused,
        }
        $crate::conformance_theme! { $open, secrets:
            what_is_confidential_comes_back_as_it_was,
            it_is_known_which_master_keys_are_in_use,
        }
        $crate::conformance_theme! { $open, audit:
            an_entry_is_there_before_its_end_and_ends_once,
            entries_are_found_by_tenant_action_object_and_time,
            old_entries_are_forgotten_in_bounded_steps,
        }
        $crate::conformance_theme! { $open, maintenance:
            a_store_that_works_answers,
            vitals_tell_what_waits_and_what_is_dead,
            tenants_with_many_dead_letters_are_counted,
            webhooks_are_counted_until_they_are_deleted,
            what_waits_is_counted_by_priority,
            it_is_known_how_long_what_is_due_waits,
        }
        $crate::conformance_theme! { $open, clock:
            clock_state_survives_reopening,
            due_times_of_a_wrong_clock_are_moved,
            moved_due_times_are_looked_at,
            pending_deliveries_keep_their_month_whatever_the_time,
        }
        $crate::conformance_theme! { $open, retention:
            what_is_old_goes_with_all_that_belongs_to_it,
            it_goes_by_the_millisecond,
            nothing_pending_is_ever_pruned,
            what_was_pending_goes_once_it_is_over,
            other_tenants_are_left_alone,
            dead_letters_go_before_their_events,
            any_number_of_dead_letters_goes_in_bounded_steps,
            an_event_with_many_deliveries_goes_in_several_steps,
            interrupted_anywhere_and_begun_anew_it_comes_to_the_same,
            two_at_once_do_no_harm,
            what_is_gone_is_sent_no_more,
            a_round_made_meanwhile_keeps_its_event_or_is_not_made,
            a_walk_goes_on_while_things_go,
            tenants_are_told_even_those_that_are_gone,
            periods_of_circuits_are_forgotten,
            a_month_goes_when_all_of_it_is_over,
            a_round_made_while_its_month_goes_keeps_it_or_is_not_made,
        }
        $crate::conformance_theme! { $open, erasure:
            a_payload_is_gone_and_its_history_stays,
            erasing_twice_changes_nothing,
            other_tenants_erase_nothing,
            what_is_erased_is_sent_no_more,
            whoever_claims_it_sees_that_it_is_gone,
            its_key_is_still_taken,
            all_of_a_subject_is_found_the_oldest_first,
            answers_go_in_bounded_steps,
        }
        $crate::conformance_theme! { $open, archive:
            what_is_pruned_is_packed_whole,
            an_object_stays_the_same_until_it_is_stored,
            an_object_is_of_one_day_and_bounded,
            ; slow: interrupted_at_random_nothing_is_lost_or_doubled,
        }
        $crate::conformance_theme! { $open, scale:
            ; slow: parked_deliveries_cost_a_claim_nothing,
        }
    };
}

/// The tests of one theme.
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

/// One test: the case on a store that is opened for it.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_case {
    ($open:path, $theme:ident::$case:ident) => {
        #[tokio::test(flavor = "multi_thread")]
        async fn $case() {
            let mut bench = $crate::conformance::Bench::new($open().await).await;
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
            include_str!("archive.rs"),
            include_str!("audit.rs"),
            include_str!("backlog.rs"),
            include_str!("browser_sessions.rs"),
            include_str!("claim.rs"),
            include_str!("erasure.rs"),
            include_str!("dead.rs"),
            include_str!("event_types.rs"),
            include_str!("runtime_state.rs"),
            include_str!("history.rs"),
            include_str!("idempotency.rs"),
            include_str!("interleaving.rs"),
            include_str!("retention.rs"),
            include_str!("lanes.rs"),
            include_str!("mail_addresses.rs"),
            include_str!("rollups.rs"),
            include_str!("nodes.rs"),
            include_str!("order.rs"),
            include_str!("publish.rs"),
            include_str!("record.rs"),
            include_str!("rescue.rs"),
            include_str!("redrive.rs"),
            include_str!("scale.rs"),
            include_str!("secrets.rs"),
            include_str!("tenancy.rs"),
            include_str!("unsubscriptions.rs"),
            include_str!("maintenance.rs"),
            include_str!("webhooks.rs"),
        ];
        for line in themes.iter().flat_map(|theme| theme.lines()) {
            let Some(rest) = line.strip_prefix("pub async fn ") else { continue };
            let case = rest.split('(').next().unwrap();
            assert!(suite.contains(&format!(" {case},\n")), "{case} is never run");
        }
    }
}
