//! What became of what owners were to be told.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use redrive_store::{Channel, Telling, Told};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    channel: &'static str,
    fate: &'static str,
}

/// Tries to tell owners.
pub(crate) struct Notices(Family<Labels, Counter>);

impl Notices {
    /// Makes and lists them, each at nothing.
    pub(super) fn new(registry: &mut Registry) -> Self {
        let family = Family::<Labels, Counter>::default();
        for channel in ["webhook", "mail"] {
            for fate in ["told", "nobody", "given_up", "later"] {
                drop(family.get_or_create(&Labels { channel, fate }));
            }
        }
        let help = "Tries to tell owners, by what became of them; later: it is tried again";
        registry.register("redrive_notices", help, family.clone());
        Self(family)
    }

    /// Counts a try.
    pub(crate) fn count(&self, channel: Channel, told: &Told) {
        let channel = match channel {
            Channel::Event => "webhook",
            Channel::Mail => "mail",
        };
        let fate = match told {
            Told::Over(Telling::Told, _) => "told",
            Told::Over(Telling::GivenUp, _) => "given_up",
            Told::Over(Telling::Nobody, _) => "nobody",
            Told::Over(Telling::Waiting, _) | Told::Later(..) => "later",
        };
        self.0.get_or_create(&Labels { channel, fate }).inc();
    }
}
