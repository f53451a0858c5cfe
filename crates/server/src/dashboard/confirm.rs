//! Confirming an address by the link in a confirmation e-mail, without logging in. Opening the page confirms nothing, since
//! scanners of e-mails open every link: its button does.

use axum::{
    extract::{Path, State},
    http::{Extensions, StatusCode},
    response::Response,
};
use redrive_core::notification::preferences::Language;

use super::{
    page::Failed,
    unsubscribe::{AddressPage, page},
};
use crate::{
    api::{AppState, client_address},
    mail::{
        links::Confirmation,
        texts::{Words, filled},
    },
};

fn invalid_link() -> Result<Response, Failed> {
    let language = Language::default();
    let words = &Words::of(language).confirm;
    let shown = AddressPage {
        language: language.code(),
        title: words.bad_title,
        text: words.bad.to_owned(),
        more: String::new(),
        button: None,
        action: None,
    };
    page(StatusCode::NOT_FOUND, &shown)
}

fn fill(text: &str, confirmation: &Confirmation, tenant: &str) -> String {
    filled(text, &[("address", &confirmation.address), ("tenant", tenant)])
}

/// Asks whether to confirm the address.
pub(super) async fn ask(State(app): State<AppState>, Path(token): Path<String>) -> Result<Response, Failed> {
    let Some((confirmation, tenant)) = app.confirmation(&token).await? else { return invalid_link() };
    let words = &Words::of(confirmation.language).confirm;
    let shown = AddressPage {
        language: confirmation.language.code(),
        title: words.title,
        text: fill(words.question, &confirmation, &tenant),
        more: String::new(),
        button: Some(words.button),
        action: None,
    };
    page(StatusCode::OK, &shown)
}

/// Confirms the address.
pub(super) async fn confirm(
    State(app): State<AppState>,
    extensions: Extensions,
    Path(token): Path<String>,
) -> Result<Response, Failed> {
    let Some((confirmation, tenant)) = app.confirmation(&token).await? else { return invalid_link() };
    app.confirm(&confirmation, client_address(&extensions)).await?;
    let words = &Words::of(confirmation.language).confirm;
    let shown = AddressPage {
        language: confirmation.language.code(),
        title: words.done_title,
        text: fill(words.done, &confirmation, &tenant),
        more: words.back.to_owned(),
        button: None,
        action: None,
    };
    page(StatusCode::OK, &shown)
}
