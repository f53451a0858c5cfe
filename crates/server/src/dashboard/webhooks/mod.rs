//! Webhooks: the listing with their health at a glance, one of them in full, and the form that makes and changes them.

mod drawn;
mod facts;
mod fields;
mod form;
mod list;
mod say;
mod show;

pub(super) use self::{
    form::{check, edit, new},
    list::list,
    show::show,
};
