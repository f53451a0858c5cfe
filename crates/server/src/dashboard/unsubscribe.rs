//! Unsubscribes an address by the link in an email, without login, and undoes it. The link is the only way to do
//! either, so only the holder of the address can. Opening the page changes nothing, because email scanners open
//! every link. Email clients with one-click unsubscribe send the same request as the page's button (RFC 8058).

use askama::Template;
use axum::{
    extract::{Path, State},
    http::{Extensions, StatusCode, header},
    response::{IntoResponse, Response},
};
use redrive_core::notification::preferences::Language;

use super::page::{Html, PageError};
use crate::{
    api::AppState,
    mail::{
        links::UnsubscribeToken,
        texts::{MailTexts, fill_placeholders},
    },
    request::client_address,
};

#[derive(Template)]
#[template(path = "unsubscribe.html")]
pub(super) struct AddressPage {
    pub(super) language: &'static str,
    pub(super) title: &'static str,
    pub(super) text: String,
    pub(super) more: String,
    /// Label of the button. `None` if there is nothing to do.
    pub(super) button: Option<&'static str>,
    /// Target of the form. `None` for the page itself.
    pub(super) action: Option<String>,
}

/// Renders a page about an address for its holder.
pub(super) fn render_page(status: StatusCode, page: &AddressPage) -> Result<Response, PageError> {
    // The link is a secret: the page is not cached and sends no referrer.
    let headers = [(header::CACHE_CONTROL, "no-store"), (header::REFERRER_POLICY, "no-referrer")];
    Ok((status, headers, Html::render(page)?).into_response())
}

fn texts_for(
    token_content: &UnsubscribeToken,
    tenant: &str,
) -> (&'static MailTexts, impl Fn(&str) -> String) {
    let texts = MailTexts::for_language(token_content.language);
    let (address, tenant, kind) =
        (token_content.address.clone(), tenant.to_owned(), texts.kind(token_content.kind).name);
    (texts, move |text| {
        fill_placeholders(text, &[("address", &address), ("tenant", &tenant), ("kind", kind)])
    })
}

fn invalid_link() -> Result<Response, PageError> {
    let texts = &MailTexts::for_language(Language::default()).page;
    let (text, more) = (texts.bad.to_owned(), String::new());
    let language = Language::default().code();
    render_page(
        StatusCode::NOT_FOUND,
        &AddressPage { language, title: texts.bad_title, text, more, button: None, action: None },
    )
}

/// Renders the page that asks whether to unsubscribe.
pub(super) async fn ask(
    State(app): State<AppState>,
    Path(token): Path<String>,
) -> Result<Response, PageError> {
    let Some((token_content, tenant)) = app.unsubscribe_target(&token).await? else { return invalid_link() };
    let (texts, fill) = texts_for(&token_content, &tenant);
    let content = AddressPage {
        language: token_content.language.code(),
        title: texts.page.title,
        text: fill(texts.page.question),
        more: String::new(),
        button: Some(texts.page.button),
        action: None,
    };
    render_page(StatusCode::OK, &content)
}

/// Unsubscribes the address.
pub(super) async fn unsubscribe(
    State(app): State<AppState>,
    extensions: Extensions,
    Path(token): Path<String>,
) -> Result<Response, PageError> {
    let Some((token_content, tenant)) = app.unsubscribe_target(&token).await? else { return invalid_link() };
    app.unsubscribe(&token_content, client_address(&extensions)).await?;
    let (texts, fill) = texts_for(&token_content, &tenant);
    let content = AddressPage {
        language: token_content.language.code(),
        title: texts.page.done_title,
        text: fill(texts.page.done),
        more: fill(texts.page.back),
        button: Some(texts.page.undo),
        action: Some(format!("/unsubscribe/{token}/undo")),
    };
    render_page(StatusCode::OK, &content)
}

/// Undoes the unsubscription.
pub(super) async fn undo(
    State(app): State<AppState>,
    extensions: Extensions,
    Path(token): Path<String>,
) -> Result<Response, PageError> {
    let Some((token_content, tenant)) = app.unsubscribe_target(&token).await? else { return invalid_link() };
    app.resubscribe(&token_content, client_address(&extensions)).await?;
    let (texts, fill) = texts_for(&token_content, &tenant);
    let content = AddressPage {
        language: token_content.language.code(),
        title: texts.page.undone_title,
        text: fill(texts.page.undone),
        more: String::new(),
        button: None,
        action: None,
    };
    render_page(StatusCode::OK, &content)
}
