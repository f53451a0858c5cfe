//! Suites that wait, kill and restart.

mod postgres;
mod rabbitmq;
mod redis;
