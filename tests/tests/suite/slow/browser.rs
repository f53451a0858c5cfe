//! The dashboard as people see it: in a real browser, against the real binary. What happens in each story is in
//! the script of its name in `tests/browser/`.

use redrive_testkit::Redrive;
use redrive_tests::browser::play;

async fn on_a_fresh_server(story: &str) {
    play(story, &mut Redrive::start().await).await;
}

#[tokio::test]
async fn what_goes_wrong_in_a_browser_is_noticed() {
    on_a_fresh_server("harness_self_test").await;
}

#[tokio::test]
async fn whoever_has_a_key_gets_in_and_out_again() {
    on_a_fresh_server("login").await;
}

#[tokio::test]
async fn a_page_stays_true_while_it_is_looked_at() {
    on_a_fresh_server("live").await;
}

#[tokio::test]
async fn pages_can_be_read_without_scripts() {
    on_a_fresh_server("no_javascript").await;
}

#[tokio::test]
async fn text_of_others_stays_text() {
    on_a_fresh_server("untrusted_text").await;
}

#[tokio::test]
async fn a_webhook_is_made_and_tried_and_its_events_arrive() {
    on_a_fresh_server("first_event").await;
}

#[tokio::test]
async fn a_failing_endpoint_is_seen_and_its_circuit_reset() {
    on_a_fresh_server("circuit").await;
}

#[tokio::test]
async fn dead_letters_are_sent_again_and_arrive() {
    on_a_fresh_server("dead_letters").await;
}

#[tokio::test]
async fn things_are_found_by_filters_and_pages() {
    on_a_fresh_server("filters").await;
}

#[tokio::test]
async fn a_secret_is_rotated_and_shown_once() {
    on_a_fresh_server("secrets").await;
}

#[tokio::test]
async fn a_portal_shows_its_tenant_alone() {
    on_a_fresh_server("portal").await;
}

mod extended {
    use super::*;

    #[tokio::test]
    async fn everybody_can_use_every_page_in_both_themes_and_on_a_phone() {
        on_a_fresh_server("accessibility").await;
    }
}
