//! Suites that wait, kill and restart.

mod backup;
mod config_check;
mod doctor;
mod mail;
mod nodes;
mod reference;
mod slow_clients;
mod systemd;
mod tls;
