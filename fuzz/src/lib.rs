//! Fuzz targets for every parser that untrusted input reaches, and a driver that mutates seeds.
//!
//! A target takes any bytes and panics if a property does not hold. It must never depend on time, order or chance: an
//! input that fails once fails always. Seeds are in `corpus/<target>`, and an input that once failed is one of them.

pub mod driver;
pub mod mutate;
mod targets;

/// One parser, or a few that belong together.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, which is also its folder in `corpus`.
    pub name: &'static str,
    /// Parses the input and checks what came of it.
    pub run: fn(&[u8]),
    /// Pieces of its language, for mutations.
    pub tokens: &'static [&'static str],
    /// How many times more inputs than others it gets: cheap ones get many, costly ones few.
    pub weight: u64,
}

/// Every target.
pub const TARGETS: &[Target] = &[
    targets::network::URL,
    targets::network::ADDRESS,
    targets::network::FORWARDED,
    targets::network::RETRY_AFTER,
    targets::network::COOKIE,
    targets::network::QUERY,
    targets::network::TRACE,
    targets::events::DOCUMENT,
    targets::events::CLOUDEVENTS_STRUCTURED,
    targets::events::CLOUDEVENTS_BINARY,
    targets::events::AMQP,
    targets::events::ARCHIVE,
    targets::rules::FILTER,
    targets::rules::SCHEMA,
    targets::rules::WEBHOOK,
    targets::rules::EVENT_TYPE,
    targets::rules::IDS_AND_TIMES,
];
