//! Webhooks: the listing with their health at a glance, one of them in full, and the form that makes and changes them.

mod charts;
mod fields;
mod form;
mod list;
mod settings_text;
mod show;
mod status_text;

pub(super) use self::{
    form::{check, edit, new},
    list::list,
    show::show,
};
