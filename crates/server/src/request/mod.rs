//! What a handler reads of a request: the client's address, the URL that it was sent to, the session cookie, the body.
//! The HTTP server provides it, the API and the dashboard use it. This module must not depend on any of the three.

pub(crate) mod base_url;
pub(crate) mod body;
mod client;
pub(crate) mod cookie;

pub(crate) use self::{
    base_url::{BaseUrl, Scheme},
    client::{ClientAddr, address_group, client_address},
};
