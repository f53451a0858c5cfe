//! Fuzz targets for every parser that receives untrusted input, and a driver that mutates seeds.
//!
//! A target accepts any bytes and panics if a property does not hold. It must never depend on time, order or
//! chance: an input that fails once must always fail. Seeds are in `corpus/<target>`, together with every input
//! that once failed.

pub mod driver;
pub mod mutate;
mod targets;

/// One parser, or a few that belong together.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, which is also its folder in `corpus`.
    pub name: &'static str,
    /// Parses the input and checks the properties of the result.
    pub run: fn(&[u8]),
    /// Tokens of its input language, for mutations.
    pub tokens: &'static [&'static str],
    /// The relative number of inputs: high for cheap targets, low for costly ones.
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
    targets::login::ID_TOKEN,
    targets::login::CLAIMS,
    targets::rules::FILTER,
    targets::rules::SCHEMA,
    targets::rules::WEBHOOK,
    targets::rules::EVENT_TYPE,
    targets::rules::IDS_AND_TIMES,
];
