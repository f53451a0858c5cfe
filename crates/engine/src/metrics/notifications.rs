//! What became of what owners were to be told.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use redrive_store::{Channel, ConfirmationRequestResult, Telling, Told};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    channel: &'static str,
    fate: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConfirmationLabels {
    result: &'static str,
}

/// Tries to tell owners, and confirmation e-mails.
pub(crate) struct Notices {
    notices: Family<Labels, Counter>,
    confirmations: Family<ConfirmationLabels, Counter>,
}

impl Notices {
    /// Makes and lists them, each at nothing.
    pub(super) fn new(registry: &mut Registry) -> Self {
        let family = Family::<Labels, Counter>::default();
        for channel in ["webhook", "mail"] {
            for fate in ["told", "nobody", "given_up", "suppressed", "later"] {
                drop(family.get_or_create(&Labels { channel, fate }));
            }
        }
        let help = "Tries to tell owners, by what became of them; later: it is tried again";
        registry.register("redrive_notices", help, family.clone());
        let confirmations = Family::<ConfirmationLabels, Counter>::default();
        for result in ["requested", "limited", "sent", "retried", "failed"] {
            drop(confirmations.get_or_create(&ConfirmationLabels { result }));
        }
        let help = "Confirmation e-mails: requested, refused by a limit, sent, tried again, failed";
        registry.register("redrive_confirmation_emails", help, confirmations.clone());
        Self { notices: family, confirmations }
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
            Told::Over(Telling::Suppressed, _) => "suppressed",
            Told::Over(Telling::Waiting, _) | Told::Later(..) => "later",
        };
        self.notices.get_or_create(&Labels { channel, fate }).inc();
    }

    /// Counts a request for a confirmation e-mail.
    pub(crate) fn count_confirmation_request(&self, result: ConfirmationRequestResult) {
        match result {
            ConfirmationRequestResult::Requested => self.count_confirmation("requested"),
            ConfirmationRequestResult::LimitReached(..) => self.count_confirmation("limited"),
            ConfirmationRequestResult::AlreadyConfirmed | ConfirmationRequestResult::NotFound => {}
        }
    }

    /// Counts a try to send a confirmation e-mail.
    pub(crate) fn count_confirmation(&self, result: &'static str) {
        self.confirmations.get_or_create(&ConfirmationLabels { result }).inc();
    }
}
