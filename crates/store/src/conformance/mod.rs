//! The suite that every store must pass, unchanged.
//!
//! A case sees a store through its public traits alone and runs on a fresh database. New semantics go in
//! here first. After each case everything that is not over is delivered, to show that nothing was lost.

// A case that meets an error has failed, and says so by panicking; its name says what must hold.
#![allow(clippy::unwrap_used, missing_docs)]

mod bench;
pub mod claim;
pub mod history;
pub mod idempotency;
pub mod publish;
pub mod record;
pub mod rescue;
pub mod rounds;
pub mod scale;
pub mod tenancy;
pub mod upkeep;
pub mod webhooks;

use std::{any::Any, future::Future, pin::Pin, sync::Arc};

pub use self::bench::{Bench, END, at, page, together};
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
            one_event_is_owed_to_a_webhook_once,
            an_event_that_nobody_wants_is_stored,
            bytes_are_kept_as_they_are,
            a_publisher_that_went_away_is_served_all_the_same,
            what_was_published_survives_reopening,
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
        }
        $crate::conformance_theme! { $open, claim:
            claims_come_in_the_order_they_are_due,
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
            released_deliveries_are_due_now,
            only_the_owner_releases,
            releasing_what_was_called_off_ends_it,
            sending_is_noted_for_the_owner_alone,
            a_fenced_node_claims_nothing,
            a_lane_left_empty_by_a_cancellation_goes,
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
        $crate::conformance_theme! { $open, rounds:
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
        $crate::conformance_theme! { $open, webhooks:
            a_webhook_is_kept_as_it_was_given,
            a_webhook_needs_its_tenant,
            a_change_needs_the_revision_it_was_made_from,
            what_is_not_there_cannot_be_changed,
            changes_are_told_since_a_version,
            a_tenants_version_is_its_own,
            webhooks_are_listed_newest_first_in_pages,
            webhooks_are_found_by_id_even_deleted,
            sweeping_cancels_in_bounded_steps,
            sweeping_stops_when_the_webhook_is_enabled_again,
            an_active_webhook_is_not_swept,
            sweeping_is_remembered_across_reopening,
            no_event_misses_a_webhook_created_before_it,
        }
        $crate::conformance_theme! { $open, history:
            every_filter_of_deliveries_holds,
            the_dead_are_filtered_in_the_same_way,
            every_filter_of_events_holds,
            other_tenants_see_nothing,
            deliveries_are_paged_newest_event_first,
            walking_deliveries_neither_skips_nor_repeats,
            walking_a_webhooks_deliveries_neither_skips_nor_repeats,
            walking_events_neither_skips_nor_repeats,
            walking_the_dead_neither_skips_nor_repeats,
            attempts_are_listed_first_to_last,
            attempts_of_an_event_are_listed_oldest_delivery_first,
        }
        $crate::conformance_theme! { $open, tenancy:
            there_is_a_tenant_from_the_start,
            a_tenant_is_made_once,
            tenants_are_listed_by_name_in_pages,
            a_key_needs_its_tenant,
            keys_are_listed_newest_first_in_pages,
            a_key_lives_until_it_is_revoked,
            a_key_is_revoked_by_its_owner_alone,
            tenants_and_keys_survive_reopening,
        }
        $crate::conformance_theme! { $open, upkeep:
            a_store_that_works_answers,
            vitals_tell_what_waits_and_what_is_dead,
        }
        $crate::conformance_theme! { $open, scale:
            parked_deliveries_cost_a_claim_nothing,
        }
    };
}

/// The tests of one theme.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_theme {
    ($open:ident, $theme:ident: $($case:ident),* $(,)?) => {
        mod $theme {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $case() {
                    let mut bench = $crate::conformance::Bench::new(super::$open().await).await;
                    $crate::conformance::$theme::$case(&mut bench).await;
                    bench.drain().await;
                }
            )*
        }
    };
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_case_is_in_the_suite() {
        let suite = include_str!("mod.rs");
        let themes = [
            include_str!("claim.rs"),
            include_str!("history.rs"),
            include_str!("idempotency.rs"),
            include_str!("publish.rs"),
            include_str!("record.rs"),
            include_str!("rescue.rs"),
            include_str!("rounds.rs"),
            include_str!("scale.rs"),
            include_str!("tenancy.rs"),
            include_str!("upkeep.rs"),
            include_str!("webhooks.rs"),
        ];
        for line in themes.iter().flat_map(|theme| theme.lines()) {
            let Some(rest) = line.strip_prefix("pub async fn ") else { continue };
            let case = rest.split('(').next().unwrap();
            assert!(suite.contains(&format!(" {case},\n")), "{case} is never run");
        }
    }
}
