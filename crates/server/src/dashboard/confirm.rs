//! Confirms an address by the link in a confirmation email, without login. Opening the page does not confirm it,
//! because email scanners open every link; its button does.

use axum::{
    extract::{Path, State},
    http::{Extensions, StatusCode},
    response::Response,
};
use redrive_core::notification::preferences::Language;

use super::{
    page::PageError,
    unsubscribe::{AddressPage, render_page},
};
use crate::{
    api::AppState,
    mail::{
        links::Confirmation,
        texts::{MailTexts, fill_placeholders},
    },
    request::client_address,
};

fn invalid_link() -> Result<Response, PageError> {
    let language = Language::default();
    let texts = &MailTexts::for_language(language).confirm;
    let content = AddressPage {
        language: language.code(),
        title: texts.bad_title,
        text: texts.bad.to_owned(),
        more: String::new(),
        button: None,
        action: None,
    };
    render_page(StatusCode::NOT_FOUND, &content)
}

fn fill(text: &str, confirmation: &Confirmation, tenant: &str) -> String {
    fill_placeholders(text, &[("address", &confirmation.address), ("tenant", tenant)])
}

/// Asks whether to confirm the address.
pub(super) async fn ask(
    State(app): State<AppState>,
    Path(token): Path<String>,
) -> Result<Response, PageError> {
    let Some((confirmation, tenant)) = app.confirmation(&token).await? else { return invalid_link() };
    let texts = &MailTexts::for_language(confirmation.language).confirm;
    let content = AddressPage {
        language: confirmation.language.code(),
        title: texts.title,
        text: fill(texts.question, &confirmation, &tenant),
        more: String::new(),
        button: Some(texts.button),
        action: None,
    };
    render_page(StatusCode::OK, &content)
}

/// Confirms the address.
pub(super) async fn confirm(
    State(app): State<AppState>,
    extensions: Extensions,
    Path(token): Path<String>,
) -> Result<Response, PageError> {
    let Some((confirmation, tenant)) = app.confirmation(&token).await? else { return invalid_link() };
    app.confirm(&confirmation, client_address(&extensions)).await?;
    let texts = &MailTexts::for_language(confirmation.language).confirm;
    let content = AddressPage {
        language: confirmation.language.code(),
        title: texts.done_title,
        text: fill(texts.done, &confirmation, &tenant),
        more: texts.back.to_owned(),
        button: None,
        action: None,
    };
    render_page(StatusCode::OK, &content)
}
