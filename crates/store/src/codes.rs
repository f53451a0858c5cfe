//! Numeric codes of enum values in every backend. A code must never change its meaning.

use redrive_core::{
    DeadReason, DeliveryStatus, FailureCategory, Role, WebhookId,
    delivery::lane::Priority,
    event::PayloadFormat,
    notification::{NotificationKind, confirmation::ConfirmedBy, mail_limit::MailPurpose},
    protection::breaker::CircuitState,
    statistics::traffic::Resolution,
    tenancy::user_role::UserRole,
};

use redrive_core::delivery::outcome::AttemptStatus;

use crate::{ChannelStatus, EmailScope};

/// Stored in place of a webhook id where a row is about the tenant as a whole.
pub(crate) const NO_WEBHOOK: WebhookId = WebhookId::from_bytes([0; 16]);

/// A value that is stored as a small number.
pub(crate) trait Code: Copy + std::fmt::Debug {
    /// Returns the code of the value.
    fn code(self) -> i16;
    /// Returns the value of a code, `None` if the code is unknown.
    fn from_code(code: i16) -> Option<Self>;
}

/// Encodes a cause of death as one number, `reason * 100 + category`, as the statements of both stores do.
pub(crate) fn death_code((reason, category): (DeadReason, Option<FailureCategory>)) -> i32 {
    i32::from(reason.code()) * 100 + i32::from(category.map_or(0, Code::code))
}

macro_rules! codes {
    ($($type:ty { $($variant:path = $code:literal),* $(,)? })*) => {$(
        impl Code for $type {
            fn code(self) -> i16 {
                match self { $($variant => $code),* }
            }

            fn from_code(code: i16) -> Option<Self> {
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
    UserRole {
        UserRole::Viewer = 1,
        UserRole::Operator = 2,
        UserRole::Admin = 3,
    }
    // `InFlight` is never stored: only the node that sends a request knows that it is in flight.
    DeliveryStatus {
        DeliveryStatus::Pending = 0,
        DeliveryStatus::InFlight = 1,
        DeliveryStatus::Delivered = 2,
        DeliveryStatus::Dead = 3,
        DeliveryStatus::Cancelled = 4,
    }
    Resolution {
        Resolution::Minute = 1,
        Resolution::Hour = 2,
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
        AttemptStatus::FinalFailure = 3,
    }
    NotificationKind {
        NotificationKind::CircuitOpened = 1,
        NotificationKind::CircuitRecovered = 2,
        NotificationKind::WebhookDisabled = 3,
        NotificationKind::DeliveryDead = 4,
        NotificationKind::DnsFailing = 5,
        NotificationKind::SecretRotationDue = 6,
        NotificationKind::QuotaReached = 7,
        NotificationKind::WebhookFailing = 8,
        NotificationKind::WebhookRecovered = 9,
    }
    ChannelStatus {
        ChannelStatus::Pending = 0,
        ChannelStatus::Sent = 1,
        ChannelStatus::NoRecipients = 2,
        ChannelStatus::Failed = 3,
        ChannelStatus::Suppressed = 4,
    }
    ConfirmedBy {
        ConfirmedBy::Holder = 1,
        ConfirmedBy::Operator = 2,
    }
    MailPurpose {
        MailPurpose::Notification = 1,
        MailPurpose::Confirmation = 2,
    }
    EmailScope {
        EmailScope::Tenant = 1,
        EmailScope::Mailbox = 2,
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
