//! Metrics of notifications and confirmation emails.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use redrive_store::{Channel, ChannelResult, ChannelStatus, ConfirmationRequestResult};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    channel: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConfirmationLabels {
    result: &'static str,
}

/// Notification attempts by channel and result, and confirmation emails.
pub(crate) struct NotificationMetrics {
    notifications: Family<Labels, Counter>,
    confirmations: Family<ConfirmationLabels, Counter>,
}

impl NotificationMetrics {
    /// Creates and registers the metrics, each at 0.
    pub(super) fn new(registry: &mut Registry) -> Self {
        let family = Family::<Labels, Counter>::default();
        for channel in ["webhook", "email"] {
            for outcome in ["sent", "no_recipients", "failed", "suppressed", "retried"] {
                drop(family.get_or_create(&Labels { channel, outcome }));
            }
        }
        let help = "Attempts to send notifications, by channel and outcome; retried: another attempt follows";
        registry.register("redrive_notifications", help, family.clone());
        let confirmations = Family::<ConfirmationLabels, Counter>::default();
        for result in ["requested", "limited", "sent", "retried", "failed"] {
            drop(confirmations.get_or_create(&ConfirmationLabels { result }));
        }
        let help = "Confirmation emails: requested, refused by a limit, sent, retried, failed";
        registry.register("redrive_confirmation_emails", help, confirmations.clone());
        Self { notifications: family, confirmations }
    }

    /// Counts an attempt to send a notification.
    pub(crate) fn count(&self, channel: Channel, result: &ChannelResult) {
        let channel = match channel {
            Channel::Webhook => "webhook",
            Channel::Email => "email",
        };
        let outcome = match result {
            ChannelResult::Done(ChannelStatus::Sent, _) => "sent",
            ChannelResult::Done(ChannelStatus::Failed, _) => "failed",
            ChannelResult::Done(ChannelStatus::NoRecipients, _) => "no_recipients",
            ChannelResult::Done(ChannelStatus::Suppressed, _) => "suppressed",
            ChannelResult::Done(ChannelStatus::Pending, _) | ChannelResult::RetryAt(..) => "retried",
        };
        self.notifications.get_or_create(&Labels { channel, outcome }).inc();
    }

    /// Counts a request for a confirmation email.
    pub(crate) fn count_confirmation_request(&self, result: ConfirmationRequestResult) {
        match result {
            ConfirmationRequestResult::Requested => self.count_confirmation("requested"),
            ConfirmationRequestResult::LimitReached(..) => self.count_confirmation("limited"),
            ConfirmationRequestResult::AlreadyConfirmed | ConfirmationRequestResult::NotFound => {}
        }
    }

    /// Counts an attempt to send a confirmation email.
    pub(crate) fn count_confirmation(&self, result: &'static str) {
        self.confirmations.get_or_create(&ConfirmationLabels { result }).inc();
    }
}
