//! Ending mails by the link in one, without logging in, and undoing that: the link is the only way to either, so that
//! only the holder of the address can. Looking at the page changes nothing: scanners of mails look at every link.
//! Mail programs that end mails by one click send what the page's button sends (RFC 8058).

use askama::Template;
use axum::{
    extract::{Path, State},
    http::{Extensions, StatusCode, header},
    response::{IntoResponse, Response},
};
use redrive_core::notification::preferences::Language;

use super::page::{Failed, Html};
use crate::{
    api::{AppState, client_address},
    mail::{
        links::Ending,
        texts::{Words, filled},
    },
};

#[derive(Template)]
#[template(path = "unsubscribe.html")]
pub(super) struct AddressPage {
    pub(super) language: &'static str,
    pub(super) title: &'static str,
    pub(super) text: String,
    pub(super) more: String,
    /// What the button says; none if there is nothing to do.
    pub(super) button: Option<&'static str>,
    /// Where the button sends its form; to the page itself if there is none.
    pub(super) action: Option<String>,
}

/// A page about an address, for its holder.
pub(super) fn page(status: StatusCode, page: &AddressPage) -> Result<Response, Failed> {
    // Whose link it is stays between the mail and the page.
    let headers = [(header::CACHE_CONTROL, "no-store"), (header::REFERRER_POLICY, "no-referrer")];
    Ok((status, headers, Html::of(page)?).into_response())
}

fn words_about(ending: &Ending, tenant: &str) -> (&'static Words, impl Fn(&str) -> String) {
    let words = Words::of(ending.language);
    let (address, tenant, kind) = (ending.address.clone(), tenant.to_owned(), words.kind(ending.kind).name);
    (words, move |text| filled(text, &[("address", &address), ("tenant", &tenant), ("kind", kind)]))
}

fn bad() -> Result<Response, Failed> {
    let words = &Words::of(Language::default()).page;
    let (text, more) = (words.bad.to_owned(), String::new());
    let language = Language::default().code();
    page(
        StatusCode::NOT_FOUND,
        &AddressPage { language, title: words.bad_title, text, more, button: None, action: None },
    )
}

/// Asks.
pub(super) async fn ask(State(app): State<AppState>, Path(token): Path<String>) -> Result<Response, Failed> {
    let Some((ending, tenant)) = app.ending(&token).await? else { return bad() };
    let (words, fill) = words_about(&ending, &tenant);
    let shown = AddressPage {
        language: ending.language.code(),
        title: words.page.title,
        text: fill(words.page.question),
        more: String::new(),
        button: Some(words.page.button),
        action: None,
    };
    page(StatusCode::OK, &shown)
}

/// Does it.
pub(super) async fn end(
    State(app): State<AppState>,
    extensions: Extensions,
    Path(token): Path<String>,
) -> Result<Response, Failed> {
    let Some((ending, tenant)) = app.ending(&token).await? else { return bad() };
    app.unsubscribe(&ending, client_address(&extensions)).await?;
    let (words, fill) = words_about(&ending, &tenant);
    let shown = AddressPage {
        language: ending.language.code(),
        title: words.page.done_title,
        text: fill(words.page.done),
        more: fill(words.page.back),
        button: Some(words.page.undo),
        action: Some(format!("/unsubscribe/{token}/undo")),
    };
    page(StatusCode::OK, &shown)
}

/// Undoes it.
pub(super) async fn undo(
    State(app): State<AppState>,
    extensions: Extensions,
    Path(token): Path<String>,
) -> Result<Response, Failed> {
    let Some((ending, tenant)) = app.ending(&token).await? else { return bad() };
    app.resubscribe(&ending, client_address(&extensions)).await?;
    let (words, fill) = words_about(&ending, &tenant);
    let shown = AddressPage {
        language: ending.language.code(),
        title: words.page.undone_title,
        text: fill(words.page.undone),
        more: String::new(),
        button: None,
        action: None,
    };
    page(StatusCode::OK, &shown)
}
