//! The dashboard as people see it: in a real browser, against the real binary. What happens in each story is in
//! the script of its name in `tests/browser/`.

use redrive_testkit::Redrive;
use redrive_tests::browser::play;

async fn on_a_fresh_server(story: &str) {
    play(story, &mut Redrive::start().await).await;
}

#[tokio::test]
async fn what_goes_wrong_in_a_browser_is_noticed() {
    on_a_fresh_server("noticed").await;
}

#[tokio::test]
async fn whoever_has_a_key_gets_in_and_out_again() {
    on_a_fresh_server("doors").await;
}

#[tokio::test]
async fn a_page_stays_true_while_it_is_looked_at() {
    on_a_fresh_server("live").await;
}

#[tokio::test]
async fn pages_can_be_read_without_scripts() {
    on_a_fresh_server("without_scripts").await;
}

#[tokio::test]
async fn text_of_others_stays_text() {
    on_a_fresh_server("inert").await;
}

#[tokio::test]
async fn everybody_can_use_every_page_in_both_themes_and_on_a_phone() {
    on_a_fresh_server("looks").await;
}
