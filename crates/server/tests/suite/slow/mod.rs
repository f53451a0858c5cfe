//! Suites that wait, kill and restart.

mod mail;
mod nodes;
mod slow_clients;
mod tls;
