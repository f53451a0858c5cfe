//! Webhook pages: the list with a health summary, a webhook's page, and the form to create and change webhooks.

mod attempts;
mod charts;
mod fields;
mod form;
mod list;
mod responses;
mod settings_text;
mod show;
pub(super) mod status_badge;
mod status_text;

pub(super) use self::{
    attempts::attempts,
    form::{check, edit, new},
    list::{ListQuery, find_webhooks, list},
    show::{name_of, show},
};
