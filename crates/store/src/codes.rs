//! Small numbers that stand for names in every backend; what they mean is fixed for good here.

use redrive_core::{
    DeadReason, DeliveryStatus, FailureCategory, Role, WebhookId,
    delivery::lane::Priority,
    event::PayloadFormat,
    notification::{Kind, confirmation::ConfirmedBy, mail_limit::MailPurpose},
    protection::breaker::CircuitState,
    statistics::traffic::Grain,
};

use crate::{AttemptStatus, MailScope, Telling};

/// What stands for the tenant as a whole, where a webhook is stored.
pub(crate) const NO_WEBHOOK: WebhookId = WebhookId::from_bytes([0; 16]);

/// Something that is stored as a small number.
pub(crate) trait Code: Copy + std::fmt::Debug {
    /// Its number.
    fn code(self) -> i16;
    /// What a number stands for.
    fn of(code: i16) -> Option<Self>;
}

/// A way to die as one number: `reason * 100 + category`, as the statements of both stores have it.
pub(crate) fn way((reason, category): (DeadReason, Option<FailureCategory>)) -> i32 {
    i32::from(reason.code()) * 100 + i32::from(category.map_or(0, Code::code))
}

macro_rules! codes {
    ($($type:ty { $($variant:path = $code:literal),* $(,)? })*) => {$(
        impl Code for $type {
            fn code(self) -> i16 {
                match self { $($variant => $code),* }
            }

            fn of(code: i16) -> Option<Self> {
                match code {
                    $($code => Some($variant),)*
                    _ => None,
                }
            }
        }
    )*};
}
codes! {
    Role {
        Role::All = 0,
        Role::Api = 1,
        Role::Worker = 2,
    }
    // `InFlight` is never stored: a request under way is known to the node that sends it.
    DeliveryStatus {
        DeliveryStatus::Pending = 0,
        DeliveryStatus::InFlight = 1,
        DeliveryStatus::Delivered = 2,
        DeliveryStatus::Dead = 3,
        DeliveryStatus::Cancelled = 4,
    }
    Grain {
        Grain::Minute = 1,
        Grain::Hour = 2,
    }
    DeadReason {
        DeadReason::Permanent = 1,
        DeadReason::Exhausted = 2,
        DeadReason::TlsLimit = 3,
        DeadReason::BlockedAddress = 4,
        DeadReason::Expired = 5,
    }
    FailureCategory {
        FailureCategory::Timeout = 1,
        FailureCategory::ServerError = 2,
        FailureCategory::ClientError = 3,
        FailureCategory::Network = 4,
        FailureCategory::Dns = 5,
        FailureCategory::Tls = 6,
        FailureCategory::RateLimit = 7,
        FailureCategory::PayloadTooLarge = 8,
        FailureCategory::Redirect = 9,
        FailureCategory::BlockedAddress = 10,
    }
    AttemptStatus {
        AttemptStatus::Success = 1,
        AttemptStatus::Failed = 2,
        AttemptStatus::Exhausted = 3,
    }
    Kind {
        Kind::CircuitOpened = 1,
        Kind::CircuitRecovered = 2,
        Kind::WebhookDisabled = 3,
        Kind::DeliveryDead = 4,
        Kind::DnsFailing = 5,
        Kind::SecretDue = 6,
        Kind::QuotaReached = 7,
    }
    Telling {
        Telling::Waiting = 0,
        Telling::Told = 1,
        Telling::Nobody = 2,
        Telling::GivenUp = 3,
        Telling::Suppressed = 4,
    }
    ConfirmedBy {
        ConfirmedBy::Holder = 1,
        ConfirmedBy::Operator = 2,
    }
    MailPurpose {
        MailPurpose::Notification = 1,
        MailPurpose::Confirmation = 2,
    }
    MailScope {
        MailScope::Tenant = 1,
        MailScope::Mailbox = 2,
    }
    Priority {
        Priority::High = 1,
        Priority::Normal = 2,
        Priority::Low = 3,
    }
    CircuitState {
        CircuitState::Closed = 0,
        CircuitState::Open = 1,
        CircuitState::HalfOpen = 2,
    }
    PayloadFormat {
        PayloadFormat::Envelope = 1,
        PayloadFormat::Data = 2,
        PayloadFormat::Cloudevents = 3,
        PayloadFormat::CloudeventsBinary = 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Statements of both stores find the counterpart of a kind at 3 less its code.
    #[test]
    fn a_kind_and_its_counterpart_add_up_to_three_and_no_others_do() {
        for kind in Kind::ALL {
            assert_eq!(Kind::of(3 - kind.code()), kind.counterpart(), "{kind:?}");
        }
    }
}
