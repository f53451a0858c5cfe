//! The dashboard in a real browser, against the real binary. The steps of each scenario are in the script of its
//! name in `tests/browser/`.

use redrive_testkit::Redrive;
use redrive_tests::{browser::play, oidc_provider::OidcProvider};

async fn on_a_fresh_server(story: &str) {
    play(story, &mut Redrive::start().await).await;
}

#[tokio::test]
async fn browser_faults_are_detected() {
    on_a_fresh_server("harness_self_test").await;
}

#[tokio::test]
async fn login_and_logout_work() {
    on_a_fresh_server("login").await;
}

#[tokio::test]
async fn user_logs_in_with_the_identity_provider_and_acts() {
    let (_provider, mut redrive) = OidcProvider::start().await;
    play("user_login", &mut redrive).await;
}

#[tokio::test]
async fn pages_work_without_javascript() {
    on_a_fresh_server("no_javascript").await;
}

#[tokio::test]
async fn webhook_is_created_tested_and_receives_events() {
    on_a_fresh_server("first_event").await;
}

#[tokio::test]
async fn rotated_secret_is_shown_once() {
    on_a_fresh_server("secrets").await;
}

#[tokio::test]
async fn objects_are_found_by_pasted_ids_and_texts() {
    on_a_fresh_server("search").await;
}

mod extended {
    use super::*;

    #[tokio::test]
    async fn pages_are_accessible_in_both_themes_and_on_a_phone() {
        on_a_fresh_server("accessibility").await;
    }

    #[tokio::test]
    async fn dead_letters_are_resent_and_delivered() {
        on_a_fresh_server("dead_letters").await;
    }

    #[tokio::test]
    async fn failed_deliveries_are_recovered_with_two_clicks() {
        on_a_fresh_server("recover").await;
    }

    #[tokio::test]
    async fn chosen_deliveries_are_resent_with_three_clicks() {
        on_a_fresh_server("selection").await;
    }

    #[tokio::test]
    async fn operator_of_many_tenants_recovers_and_resends() {
        on_a_fresh_server("all_tenants").await;
    }

    #[tokio::test]
    async fn event_is_resent_without_webhooks_that_received_it() {
        on_a_fresh_server("event_resend").await;
    }

    #[tokio::test]
    async fn edited_payload_is_resent_as_a_new_event() {
        on_a_fresh_server("edited_resend").await;
    }

    #[tokio::test]
    async fn open_page_updates_live() {
        on_a_fresh_server("live").await;
    }

    #[tokio::test]
    async fn untrusted_text_stays_text() {
        on_a_fresh_server("untrusted_text").await;
    }

    #[tokio::test]
    async fn portal_shows_only_its_tenant() {
        on_a_fresh_server("portal").await;
    }

    #[tokio::test]
    async fn failing_endpoint_is_shown_and_its_circuit_reset() {
        on_a_fresh_server("circuit").await;
    }

    #[tokio::test]
    async fn objects_are_found_by_filters_and_pagination() {
        on_a_fresh_server("filters").await;
    }

    #[tokio::test]
    async fn rows_that_are_read_stay_in_place() {
        on_a_fresh_server("held_rows").await;
    }

    #[tokio::test]
    async fn unresponsive_server_is_reported_within_five_seconds() {
        on_a_fresh_server("outage").await;
    }

    #[tokio::test]
    async fn times_are_shown_in_the_chosen_time_zone() {
        on_a_fresh_server("time_zone").await;
    }

    #[tokio::test]
    async fn tables_are_sorted_resized_and_stacked() {
        on_a_fresh_server("tables").await;
    }

    #[tokio::test]
    async fn form_errors_are_shown_beside_their_fields() {
        on_a_fresh_server("form_errors").await;
    }

    #[tokio::test]
    async fn payloads_are_coloured_copied_and_compared() {
        on_a_fresh_server("payloads").await;
    }

    #[tokio::test]
    async fn tenant_sees_its_notifications_and_changes_their_settings() {
        on_a_fresh_server("notifications").await;
    }
}
